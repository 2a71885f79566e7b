# SPDX-License-Identifier: Apache-2.0
"""Adaptive MPI jobs over several nodes under equipartition: they shrink and grow across nodes, whatever is killed."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.demo.adaptive import QUIETLY
from drom.scheduler.testbed.cluster import HEAD

from tests.cluster.adaptive_jobs import EACH, LONG, OPEN_MPI, WHEEL, await_cores, end, start
from tests.cluster.rig import RealRig, rig
from tests.support import native_build
from tests.support.agents import wait_until
from tests.support.example_programs import SOURCES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cluster.rig import Rig
    from tests.support.mpi_programs import Mpi

pytestmark = pytest.mark.timeout(300)
STEPS = "1500"
"""Steps of an example, for longer than its ranks change."""
ALL = {"n1": 2, "n2": 2, "n3": 2, "n4": 2}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Return a cluster of four nodes with two cores each."""
    folder = tmp_path_factory.mktemp("adaptive") / "c"
    patient = ("--give-up", "60")  # all agents are killed and started again
    with rig(folder, "--policy", "equipartition", *patient, nodes=4, cores=2) as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where programs are compiled."""
    return tmp_path_factory.mktemp("programs")


def submit(here: Rig, folder: Path, least: int, most: int, *words: str, mpi: Mpi = OPEN_MPI) -> int:
    """Submit an adaptive program with a range of cores."""
    return start(here, folder, *words, mpi=mpi, least=least, most=most)


def on(here: Rig, name: str) -> list[str]:
    """Return the names of what runs on a node beside its agent."""
    found = here.network[name].do("ps", "-e", "-o", "comm=").split()
    return [one for one in found if one not in ("sh", "sleep", "ps", "drom-agent")]


def sleeper(here: Rig, cores: int) -> int:
    """Submit a rigid job that sleeps until it is ended."""
    return here.submit("sleep", "inf", ranks=cores, **LONG)


@EACH
def test_a_job_shrinks_and_grows_across_nodes(here: Rig, folder: Path, mpi: Mpi) -> None:
    """A job has all cores, gives newcomers theirs, down to its minimum, and has them back; every element is right."""
    number = submit(here, folder, 2, 8, mpi=mpi)
    here.await_held(number, ALL)
    first = sleeper(here, 3)
    here.await_state(first, "running")
    await_cores(here, number, 5)
    second = sleeper(here, 3)
    here.await_state(second, "running")
    await_cores(here, number, 2)
    third = sleeper(here, 1)
    assert here.job(third)["state"] == "pending"

    here.ask("cancel", job=second)
    here.await_state(third, "running")
    await_cores(here, number, 4)
    for other in (first, third):
        here.ask("cancel", job=other)
    here.await_held(number, ALL)
    end(here, number, mpi)


def test_more_ranks_than_free_cores_begin_at_rest(here: Rig, folder: Path) -> None:
    """Two jobs with ranks on all cores each share them equally from the start of the second."""
    both = [submit(here, folder, 1, 8)]
    here.await_held(both[0], ALL)
    both.append(submit(here, folder, 1, 8))
    for number in both:
        here.await_state(number, "running")
        await_cores(here, number, 4)

    def states() -> list[str]:
        return sorted(row["state"] for name in here.names for row in here.tasks(name))

    wait_until(lambda: states() == ["resting"] * 8 + ["running"] * 8, states)
    (here.work / "stop").touch()
    for number in both:
        end(here, number)


@pytest.mark.parametrize("source", ["mpi_heat.c", "mpi4py_heat.py"])
def test_an_example_gives_its_answer(here: Rig, folder: Path, source: str) -> None:
    """While others come and go it runs on other ranks, and prints what it prints without them."""
    command = [str(word) for word in OPEN_MPI.command(SOURCES / source, folder)]
    environment = here.spec().environment | QUIETLY | {"MPICC": "mpicc.openmpi", "MPI4PY_MPIABI": "openmpi"}
    command += ["--size", "64", "--steps", STEPS]
    number = here.submit(*command, environment=environment, least=2, most=8, **LONG)
    here.await_held(number, ALL)
    for cores in (4, 6):
        other = sleeper(here, cores)
        here.await_state(other, "running")
        await_cores(here, number, 8 - cores)
        here.ask("cancel", job=other)

    assert here.await_state(number, "completed", "failed")["status"] == 0, here.output(number)
    name = source.partition(".")[0]
    assert here.lines(f"drom-{number}.out")[-1] == f"{name}: 64 x 64, {STEPS} steps ok"


@pytest.mark.parametrize("times", [2, pytest.param(50, marks=pytest.mark.timeout(1800))])
def test_a_drained_node_is_left_and_comes_back(here: Rig, folder: Path, times: int) -> None:
    """Nothing of a job is left on a drained node with an MPI library that ends ranks alone; ranks return after it."""
    number = submit(here, folder, 2, 8, mpi=WHEEL)
    here.await_held(number, ALL)
    wait_until(lambda: "begins 8" in here.output(number), lambda: here.output(number))
    for _ in range(times):
        here.ask("drain", node="n3", reason="repair")
        wait_until(lambda: on(here, "n3") == [], lambda: f"{on(here, 'n3')}\n{here.output(number)}\n{here.said(HEAD)}")
        here.await_held(number, {"n1": 2, "n2": 2, "n4": 2})
        here.ask("drain", node="n3", reason="")
        here.await_held(number, ALL)
    end(here, number)


def test_a_node_drained_before_its_ranks_begin_is_left_once_they_have(here: Rig, folder: Path) -> None:
    """A job whose node is drained while it starts leaves the node, and comes back to it."""
    for _ in range(4):
        number = submit(here, folder, 2, 8, mpi=WHEEL)
        here.await_state(number, "running")
        here.ask("drain", node="n3", reason="repair")
        here.await_held(number, {"n1": 2, "n2": 2, "n4": 2})
        wait_until(lambda: on(here, "n3") == [], lambda: f"{on(here, 'n3')}\n{here.said(HEAD)}")
        here.ask("drain", node="n3", reason="")
        here.await_held(number, ALL)
        end(here, number)
        (here.work / "stop").unlink()


def test_a_node_on_which_no_ranks_come_is_given_back(tmp_path: Path, folder: Path) -> None:
    """A job whose mpirun does not answer holds the cores of the node that it comes back to for a bounded time."""
    with rig(tmp_path / "c", "--policy", "equipartition", "--spawn-within", "2", nodes=2, cores=1) as here:
        number = submit(here, folder, 1, 2, mpi=WHEEL)
        here.await_held(number, {"n1": 1, "n2": 1})
        here.ask("drain", node="n2", reason="repair")
        here.await_held(number, {"n1": 1})
        wait_until(lambda: on(here, "n2") == [], lambda: on(here, "n2"))
        here.network["n1"].do("kill", "-STOP", *here.network["n1"].do("ps", "-C", "mpirun", "-o", "pid=").split())
        here.ask("drain", node="n2", reason="")
        here.await_said(HEAD, "event=ranks_missing")

        other = sleeper(here, 1)
        here.await_state(other, "running")
        assert here.held(other) == {"n2": 1}
        assert (here.job(number)["state"], here.job(number)["sizes"]) == ("running", {"n1": 1, "n2": 0})


def test_ranks_that_hang_as_they_begin_hold_no_core(tmp_path: Path) -> None:
    """A job gives back the cores of ranks that do not report in time, and releases them if they do that later."""
    options = ("--policy", "equipartition", "--spawn-within", "2")
    with rig(tmp_path / "c", *options, nodes=2, cores=1) as here:
        number, gate = submit(here, tmp_path, 1, 2, mpi=WHEEL), here.work / "gate"

        def left() -> int:
            return [entry["what"] for entry in here.job(number)["history"]].count("left")

        wait_until(lambda: "begins 2" in here.output(number), lambda: here.output(number))
        here.ask("drain", node="n2", reason="repair")
        wait_until(lambda: on(here, "n2") == [], lambda: on(here, "n2"))
        program = WHEEL.compile(native_build.SOURCES / "adaptive.c", tmp_path)
        program.rename(tmp_path / "original")
        waits = f'#!/bin/sh\nwhile [ ! -e {gate} ]; do sleep 0.1; done\nexec {tmp_path}/original "$@"\n'
        program.write_text(waits, encoding="utf-8")
        program.chmod(0o755)
        here.ask("drain", node="n2", reason="")
        here.await_said(HEAD, "event=ranks_missing")

        other = sleeper(here, 1)
        here.await_state(other, "running")
        assert here.held(other) == {"n2": 1}
        assert "Its ranks did not come on n2" in str(here.job(number)["explanation"])
        gate.touch()
        wait_until(lambda: left() == 2, lambda: f"{here.job(number)}\n{here.output(number)}")
        end(here, number)


@pytest.mark.parametrize("comes", ["before", "after"])
def test_ranks_that_come_while_the_scheduler_dies_stay(tmp_path: Path, folder: Path, comes: str) -> None:
    """Ranks that come before or after the next scheduler begins keep the cores of their node."""
    with rig(tmp_path / "c", "--policy", "equipartition", "--spawn-within", "30", nodes=2, cores=1) as here:
        number = submit(here, folder, 1, 2, mpi=WHEEL)
        wait_until(lambda: "begins 2" in here.output(number), lambda: here.output(number))
        here.ask("drain", node="n2", reason="repair")
        here.await_held(number, {"n1": 1})
        here.ask("drain", node="n2", reason="")
        if comes == "before":
            wait_until(lambda: here.said("n2").count("event=arrived") == 2, lambda: here.said("n2"))
        else:
            wait_until(lambda: here.job(number)["sizes"]["n2"], lambda: here.job(number))
        assert here.scheduler
        here.scheduler.end(signal.SIGKILL)
        if comes == "before":
            here.await_held(number, {"n1": 1, "n2": 1})
        here.start_scheduler()
        here.await_nodes(up=here.names)

        here.await_held(number, {"n1": 1, "n2": 1})
        awaits = "waits for its ranks on n2"
        wait_until(lambda: awaits not in str(here.job(number)), lambda: here.job(number))
        end(here, number)
        assert "ranks_missing" not in here.said(HEAD)


def test_ranks_rest_on_a_drained_node_if_they_cannot_end_alone(here: Rig, folder: Path) -> None:
    """A job with Open MPI has no cores of a drained node, keeps its ranks there at rest, and says so."""
    number = submit(here, folder, 2, 8)
    here.await_held(number, ALL)
    here.ask("drain", node="n3", reason="repair")
    await_cores(here, number, 6)
    wait_until(lambda: "ranks stay on a node" in here.output(number), lambda: here.output(number))
    (node,) = (node for node in here.ask("nodes")["nodes"] if node["name"] == "n3")
    assert node["leaving"].startswith(f"the ranks of job {number} on n3 rest, and end")
    assert {row["state"] for row in here.tasks("n3")} == {"resting"}

    here.ask("drain", node="n3", reason="")
    here.await_held(number, ALL)
    end(here, number)


def test_changes_survive_the_scheduler(here: Rig, folder: Path) -> None:
    """A scheduler that is killed in the middle of a change is followed by one that completes it; nothing runs twice."""
    number = submit(here, folder, 2, 8)
    here.await_held(number, ALL)
    other = sleeper(here, 4)
    assert here.scheduler
    here.scheduler.end(signal.SIGKILL)
    here.start_scheduler()

    here.await_state(other, "running")
    await_cores(here, number, 4)
    assert here.job(other)["attempt"] == 1
    here.ask("cancel", job=other)
    here.await_held(number, ALL)
    end(here, number)


def test_changes_survive_agents(here: Rig, folder: Path) -> None:
    """Ranks rest on while there is no agent, and the next ones have them shrink, grow and return."""
    number = submit(here, folder, 2, 8)
    here.await_held(number, ALL)
    other = sleeper(here, 4)
    here.await_state(other, "running")
    await_cores(here, number, 4)
    for name in here.names:
        here.agents[name].end(signal.SIGKILL)
    for name in here.names:
        here.start_agent(name)
    here.await_nodes(up=here.names)
    await_cores(here, number, 4)

    here.ask("cancel", job=other)
    here.await_held(number, ALL)
    end(here, number)
    assert here.job(number)["attempt"] == 1


@pytest.mark.parametrize("state", ["running", "resting"])
def test_a_killed_rank_ends_its_job_and_leaves_clean_cores(here: Rig, folder: Path, state: str) -> None:
    """MPI ends the other ranks on all nodes, and the cores go to who is there."""
    number, other = submit(here, folder, 2, 8), submit(here, folder, 2, 8)
    for one in (number, other):
        here.await_state(one, "running")
        await_cores(here, one, 4)
    rows = [(name, row) for name in here.names for row in here.tasks(name) if row["job"] == f"drom-{number}"]
    name, row = next((name, row) for name, row in rows if row["state"] == state)
    here.network[name].do("kill", "-9", str(row["pid"]))

    assert here.await_state(number, "failed")["attempt"] == 1
    here.await_held(other, ALL)
    end(here, other)


def test_a_job_changes_its_own_range(here: Rig, folder: Path) -> None:
    """A program that reports that it can use three ranks has three cores; the others go to a job that can use them."""
    number = submit(here, folder, 2, 8, "0", "3", "3")
    await_cores(here, number, 3)
    other = submit(here, folder, 5, 8)
    await_cores(here, other, 5)

    assert (here.job(number)["least"], here.job(number)["most"]) == (3, 3)
    (here.work / "stop").touch()
    for one in (number, other):
        end(here, one)


def test_a_rank_that_reaches_no_point_keeps_its_core(tmp_path: Path, folder: Path) -> None:
    """The change is withdrawn after its time, with a sentence, and comes through when the rank gets to a point."""
    with rig(tmp_path / "c", "--policy", "equipartition", "--shrink-within", "1", nodes=2, cores=1) as here:
        number = submit(here, folder, 1, 2, "8")
        wait_until(lambda: "stops" in here.output(number), lambda: here.output(number))
        other = sleeper(here, 1)

        def reasons() -> list[str]:
            return [entry["detail"]["reason"] for entry in here.job(other)["history"] if entry["what"] == "requeued"]

        wait_until(reasons, lambda: here.job(other))
        why = f"job {number} did not make room: it was not applied in time: 0 cores were ordered."
        assert reasons()[0] == why
        assert sum(here.held(number).values()) == 2

        here.await_state(other, "running")
        await_cores(here, number, 1)
        here.ask("cancel", job=other)
        end(here, number)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_ranks_at_rest_are_bound_to_the_cpus_of_their_node(tmp_path: Path, folder: Path) -> None:
    """Two nodes with a real CPU each: a rank begins on its own, rests on it beside the newcomer, and has it again."""
    with rig(tmp_path / "c", "--policy", "equipartition", nodes=2, kind=RealRig) as here:
        number, other = submit(here, folder, 1, 2), sleeper(here, 1)
        here.await_state(other, "running")
        await_cores(here, number, 1)
        rows = [(name, row) for name in here.names for row in here.tasks(name) if row["state"] == "resting"]
        ((name, row),) = rows
        cpu = sorted(os.sched_getaffinity(0))[here.names.index(name)]

        def allowed() -> list[str]:
            status = here.network[name].do("cat", f"/proc/{row['pid']}/status")
            return re.findall(r"Cpus_allowed_list:\s+(\S+)", status)

        wait_until(lambda: allowed() == [str(cpu)], allowed)  # in MPI_Init() hwloc goes over all CPUs for a moment

        here.ask("cancel", job=other)
        here.await_held(number, {"n1": 1, "n2": 1})
        end(here, number)
