# SPDX-License-Identifier: Apache-2.0
"""Real machines of other shapes: the package runs in a virtual machine and Linux is asked who may run where."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from dromlib import native
from dromlib.cpulist import parse_cpulist
from tests.support.packages import copy_packages
from tests.support.paths import ROOT

pytestmark = pytest.mark.vm
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def rig() -> str:
    """Return the program that boots machines: DROM_RIG, called with --sockets, --cores, --threads, --share."""
    path = os.environ.get("DROM_RIG")
    if not path:
        pytest.skip("DROM_RIG does not name a program that boots virtual machines.")
    return path


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the package as a wheel installs it, and the scenario."""
    top = tmp_path_factory.mktemp("guest")
    copy_packages(top)
    built = native.library_path().parent.parent
    for name in ("lib", "bin", "include"):
        shutil.copytree(built / name, top / "dromlib" / name, dirs_exist_ok=True)
    shutil.copy(native.example_path("jacobi"), top)  # the guest has no compiler
    files = metadata.distribution("drom").files or []
    info = next(Path(str(file.locate())).parent for file in files if file.name == "METADATA")
    shutil.copytree(info, top / info.name)
    inside = top / "tests" / "vm"
    inside.mkdir(parents=True)
    for script in ("__init__", "scenario", "shapes", "changes", "fences", "batch", "service", "memory"):
        shutil.copy(HERE / f"{script}.py", inside)
    (inside.parent / "__init__.py").touch()
    shutil.copytree(HERE.parent / "support", inside.parent / "support")
    for unit in ("drom-agent.service", "drom-tasks.service"):
        shutil.copy(ROOT / "contrib" / unit, top)
    return top


def run_in(rig: str, tree: Path, shape: tuple[int, int, int, int], command: str) -> list[dict[str, Any]]:
    """Boot sockets x cores x threads with so many NUMA nodes; return the lines of JSON that a command prints there."""
    words = ("--sockets", "--cores", "--threads", "--numa")
    options = [word for pair in zip(words, map(str, shape), strict=True) for word in pair]
    environment = ["--env", "OMP_WAIT_POLICY=passive", "--env", "NUMBA_DISABLE_JIT=1", "--timeout", "1200"]
    guest = [rig, *options, "--share", str(tree), *environment, "--", f"/opt/venv/bin/python {command}"]
    done = subprocess.run(guest, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_shape(topology: dict[str, Any], shape: tuple[int, int, int, int]) -> None:
    """Check that a machine has so many sockets, cores in each, threads in each of those, and NUMA nodes."""
    sockets, cores, threads, nodes = shape
    within = [sum(core["package"] == package["os"] for core in topology["cores"]) for package in topology["packages"]]
    assert within == [cores] * sockets
    assert {parse_cpulist(core["cpus"]).bit_count() for core in topology["cores"]} == {threads}
    assert len(topology["numa"]) == nodes
    for level in ("packages", "numa", "cores"):
        masks = [parse_cpulist(part["cpus"]) for part in topology[level]]
        assert sum(masks) == parse_cpulist(topology["online"]), "each CPU is in one of them"
    assert topology["warnings"] == []


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("shape", [(1, 3, 2, 1)], ids=str)
def test_the_topology_is_the_one_that_was_booted(rig: str, tree: Path, shape: tuple[int, int, int, int]) -> None:
    """Sockets, cores, hardware threads and NUMA nodes are what the machine was given."""
    (topology,) = run_in(rig, tree, shape, "-m drom topology --json")
    assert_shape(topology, shape)


@pytest.mark.timeout(1500)
def test_openmp_programs_share_two_sockets_of_four_cores_with_two_threads(rig: str, tree: Path) -> None:
    """Linux's masks of a task's threads are what it holds, and lie where policy, layout or unit want them."""
    shape = (2, 4, 2, 2)
    looks = {look["look"]: look for look in run_in(rig, tree, shape, "-m tests.vm.scenario")}
    topology = looks["machine"]["topology"]
    assert_shape(topology, shape)
    for name in ("alone", "together", "alone again", "layouts", "attached", "threads"):
        held = [parse_cpulist(job["held"]) for job in looks[name]["jobs"].values()]
        assert sum(held) == functools.reduce(int.__or__, held), f"{name}: nothing is held twice"
        assert all(job["threads"] == [job["held"]] for job in looks[name]["jobs"].values()), looks[name]

    whole = topology["allowed"]
    assert {job["held"] for job in looks["together"]["jobs"].values()} == {p["cpus"] for p in topology["packages"]}
    assert looks["alone"]["jobs"]["jacobi"]["held"] == looks["alone again"]["jobs"]["jacobi"]["held"] == whole
    assert looks["stopped"]["threads"] == looks["released"]["threads"] == [whole]

    places = {job: per_part(row["held"], topology["packages"]) for job, row in looks["attached"]["jobs"].items()}
    assert sorted(places["close"]) == [0, 4]
    assert places["wide"] == [2, 2]
    assert sum(places["taken"]) == 8
    assert looks["attached"]["jobs"]["close"]["held"] == looks["layouts"]["jobs"]["close"]["held"]

    threads = looks["threads"]["jobs"]
    assert sorted(per_part(threads["odd"]["held"], topology["packages"])) == [0, 3]
    assert sorted(per_part(threads["odd"]["held"], topology["cores"]))[-2:] == [1, 2]
    assert sum(per_part(threads["rest"]["held"], topology["packages"])) == 13


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("shape", [(4, 2, 1, 4), (2, 4, 1, 4)], ids=["four sockets", "two NUMA nodes in a socket"])
def test_programs_are_kept_apart_by_socket_and_numa_node(
    rig: str, tree: Path, shape: tuple[int, int, int, int]
) -> None:
    """Two jobs share no socket; four no NUMA node, nor do two that are left; Linux's masks are what each holds."""
    looks = {look["look"]: look for look in run_in(rig, tree, shape, "-m tests.vm.shapes")}
    topology = looks["machine"]["topology"]
    assert_shape(topology, shape)
    for name, there in [(name, look["jobs"]) for name, look in looks.items() if "jobs" in look]:
        held = [parse_cpulist(job["held"]) for job in there.values()]
        assert sum(held) == functools.reduce(int.__or__, held, 0), f"{name}: nothing is held twice"
        assert sum(held) == (parse_cpulist(topology["allowed"]) if there else 0), f"{name}: nothing idles"
        assert all(job["threads"] == [job["held"]] for job in there.values()), looks[name]

    for name, level in (("2 there", "packages"), ("4 there", "numa"), ("2 left", "numa")):
        places = [per_part(job["held"], topology[level]) for job in looks[name]["jobs"].values()]
        assert all(sum(map(bool, part)) == 1 for part in zip(*places, strict=True)), f"{name}: {places} share nothing"


@pytest.mark.timeout(1500)
def test_cpus_go_and_come_back_while_programs_run(rig: str, tree: Path) -> None:
    """Hotplug, a cpuset, a partition and a quota of cgroup v2 take CPUs from running jobs, which get them back."""
    looks = {look["look"]: look["jobs"] for look in run_in(rig, tree, (1, 4, 1, 1), "-m tests.vm.changes")}
    held = {name: [parse_cpulist(job["held"]) for job in jobs.values()] for name, jobs in looks.items()}
    whole = {name: functools.reduce(int.__or__, masks, 0) for name, masks in held.items()}
    for name, masks in held.items():
        assert sum(masks) == whole[name], f"{name}: nothing is held twice"
        assert all(job["threads"] == [job["held"]] for job in looks[name].values()), looks[name]
    assert {name: mask for name, mask in whole.items() if mask != 0b1111} == {
        "unplugged": 0b0111,
        "cpuset": 0b0110,
        "partition": 0b0011,
        "quota": 0b0011,
        "empty": 0,
    }


def per_part(cpus: str, parts: list[dict[str, Any]]) -> list[int]:
    """Return how many of the CPUs are in each part of a machine."""
    return [(parse_cpulist(cpus) & parse_cpulist(part["cpus"])).bit_count() for part in parts]


@pytest.mark.timeout(1500)
def test_each_task_is_fenced_in_by_a_control_group(rig: str, tree: Path) -> None:
    """Its cpuset follows the grant; who sets his own affinity stays inside; a restart adopts, and a stop lets go."""
    lines = run_in(rig, tree, (1, 4, 1, 1), "-m tests.vm.fences")
    found = {line["look"]: (line["mine"], line["all"]) for line in lines if "mine" in line}
    (first, second), sets = found["apart"]

    assert found["fenced"] == ([["task", "0-3", ["0-3"]]], ["0-3"])
    assert sets == sorted([first[1], second[1]]) == ["0-1", "2-3"]
    assert [first[2], second[2]] == [[first[1]], [second[1]]]
    assert found["broken out"] == ([first], sets)
    assert found["killed"] == found["adopted"] == ([first, second], sets)
    assert found["alone again"] == ([["task", "0-3", ["0-3"]]], ["0-3"])
    assert found["stopped"] == ([["home", "", ["0-3"]]], [])
    (third,), (cpus,) = found["third"]
    assert third == ["task", cpus, [cpus]]
    assert found["without fences"] == ([["home", "", [cpus]]], [])


@pytest.mark.timeout(1500)
def test_the_memory_of_jobs_is_limited_by_cgroup_v2(rig: str, tree: Path) -> None:
    """In the root group and below that of a service for tasks; agents whose tasks have cpusets limit none."""
    lines = run_in(rig, tree, (1, 2, 1, 1), "-m tests.vm.memory")
    assert [line["left"] for line in lines[3::4]] == [[], [], []]
    in_root, fenced, in_service = (lines[first : first + 3] for first in (0, 4, 8))

    note = "it needed more than its 50 MiB of memory: ask for more with --mem."
    for found in (in_root, in_service):
        assert [(line["limits"], line["status"], line["note"]) for line in found] == [
            (True, -9, note),
            (True, 0, ""),
            (True, 0, ""),
        ]
    assert [line["below"] for line in in_root[:2]] == ["/drom"] * 2
    assert [line["below"] for line in in_service[:2]] == ["/system.slice/drom-tasks.service"] * 2
    assert [(line["limits"], line["status"]) for line in fenced] == [(False, 0)] * 3


@pytest.mark.timeout(1500)
def test_jobs_of_slurm_keep_to_their_groups_of_cgroup_v2(rig: str, tree: Path) -> None:
    """A job has the CPUs of its group; a foreign one keeps its share of those that Slurm gave to two jobs."""
    lines = run_in(rig, tree, (1, 4, 1, 1), "-m tests.vm.batch")
    held = {line["look"]: {job: row["held"] for job, row in line["jobs"].items()} for line in lines}
    assert all(row["threads"] == [row["held"]] for line in lines for row in line["jobs"].values()), lines

    assert held["own"] == {"slurm-7": "0-1"}
    assert held["beside a foreign job"] in ({"slurm-7": "0-1", "slurm-9": cpu} for cpu in "23")
    assert held["alone"] == {"slurm-7": "0-1", "slurm-9": "2-3"}
    assert held["shared"] in ({"slurm-7": "0-1", "slurm-8": a, "slurm-9": b} for a, b in ("23", "32"))
    assert held["back"] == {"slurm-7": "0-1", "slurm-8": "2-3"}


@pytest.mark.timeout(1500)
def test_fences_outlive_every_agent_of_a_service(rig: str, tree: Path) -> None:
    """Under systemd, by the units of contrib/: reload, restart and kill leave each in its group; a stop lets go."""
    lines = run_in(rig, tree, (1, 4, 1, 1), "-m tests.vm.service")
    service = {line["service"]: (line["state"], line["groups"]) for line in lines if "state" in line}
    found = {line["look"]: (line["mine"], line["all"]) for line in lines if "mine" in line}
    if not service:
        pytest.skip("needs systemd in the machines that DROM_RIG boots")
    (first, second), sets = found["fenced"]

    assert sets == sorted([first[1], second[1]]) == ["0-1", "2-3"]
    assert [first[0], second[0]] == ["task", "task"]
    assert [first[2], second[2]] == [[first[1]], [second[1]]]
    assert found["restarted"] == found["killed"] == found["fenced"]
    assert found["alone"] == ([["task", "0-3", ["0-3"]]], ["0-3"])
    assert found["stopped"] == ([["home", "", ["0-3"]]], [])
    assert service == {
        "started": ("active", ["agent"]),
        "fenced": ("active", ["agent", "task", "task"]),
        "reloaded": ("active", ["agent", "task", "task"]),
        "stopped": ("inactive", ["agent"]),
    }
