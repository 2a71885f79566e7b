# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from drom.agent.cli import doctor_checks
from drom.agent.cli.doctor_checks import Finding

from tests.agent.ipc.test_cpu_locks import holding
from tests.support.paths import ROOT as REPOSITORY

ROOT = str(Path(doctor_checks.__file__).parents[1])


def put(path: Path, text: str) -> Path:
    """Write a file of a made-up machine; return it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("held", "uid", "state", "text"),
    [
        ("000001ffffffffff", 0, "ok", "every user"),
        ("0000000000880000", 1, "ok", "every user"),
        ("0000000000000000", 1, "warn", "of its own user: run it as root to bind programs of all users."),
        ("0000000000080000", 0, "warn", "of its own user: give the agent CAP_SYS_NICE."),
        ("0000000000000000", 0, "warn", "give the agent CAP_SYS_PTRACE and CAP_SYS_NICE."),
    ],
)
def test_capabilities(tmp_path: Path, held: str, uid: int, state: str, text: str) -> None:
    """Two of them let an agent look into, and bind, what others run."""
    put(tmp_path / "self/status", f"Name:\tx\nCapEff:\t{held}\n")
    found = doctor_checks.capabilities(tmp_path, uid)

    assert found.state == state
    assert text in found.text


@pytest.mark.parametrize(
    ("scripts", "uid_and_rights", "text"),
    [
        (("echo Version: 4.1", "true"), (1000, "0"), "to save them in containers takes root."),
        (("", "true"), (0, "0"), "CRIU is not installed: install CRIU 4.1 or newer, or save jobs by"),
        (("echo Version: 3.17", "true"), (0, "0"), "is CRIU 3.17: install CRIU 4.1 or newer."),
        (("echo Version: 4.1", ""), (0, "0"), "install runc to save them in containers."),
        (("echo Version: 4.1; [ $1 != check ]", "true"), (0, "0"), "criu check' says what this kernel lacks."),
        (("echo Version: 4.1", "true"), (0, "0"), "Only root's fillers are saved in containers: CRIU needs"),
        (("echo Version: 4.1", "true"), (0, "1000000"), "Fillers are saved in containers, or by their programs' own"),
    ],
)
def test_ways_to_save_fillers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scripts: tuple[str, str],
    uid_and_rights: tuple[int, str],
    text: str,
) -> None:
    """One line says which ways the node has, and what it lacks for others."""
    uid, held = uid_and_rights
    put(tmp_path / "proc/self/status", f"CapEff:\t{held}\n")
    for name, script in zip(("criu", "runc"), scripts, strict=True):
        if script:
            put(tmp_path / "bin" / name, f"#!/bin/sh\n{script}\n")
            (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    assert text in doctor_checks.fillers(tmp_path / "proc", uid).text


@pytest.mark.parametrize(
    ("hard", "capacity", "state", "text"),
    [
        (8256, 4096, "ok", "are enough for 4096 tasks."),
        (8254, 4096, "warn", "are enough for 4095 of 4096 tasks: raise "),
        (10, 1024, "warn", "are enough for 0 of 1024 tasks: raise "),
    ],
)
def test_descriptors(hard: int, capacity: int, state: str, text: str) -> None:
    """Two for each task, and some for the agent."""
    found = doctor_checks.descriptors(hard, capacity)

    assert (found.state, text in found.text) == (state, True), found


def test_delegation(tmp_path: Path) -> None:
    """Version 2 must be mounted, have the cpuset controller in our group, and be ours to write, if it is needed."""

    def text(*, needed: bool = True) -> str:
        found = doctor_checks.delegation(tmp_path, needed=needed)
        return f"{found.state}: {found.text}"

    advice = "start drom-tasks.service, or use --enforce affinity."
    undone = "fail: Tasks cannot have cpusets: "
    unasked = "ok: Affinity binds programs; control groups could not (--enforce cpuset)."
    assert text(needed=False) == unasked
    assert text() == f"{undone}no control groups of version 2 are mounted here: {advice}"
    put(tmp_path / "proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    put(tmp_path / "proc/self/cgroup", "0::/a/b\n")
    assert text() == f"{undone}the cpuset controller is not delegated to the control group /a/b: {advice}"
    put(tmp_path / "sys/fs/cgroup/a/b/cgroup.controllers", "cpuset\n")
    assert text() == f"{undone}the control group /a/b is not delegated to this user: {advice}"
    assert text(needed=False) == unasked
    for name in ("procs", "subtree_control"):
        put(tmp_path / f"sys/fs/cgroup/a/b/cgroup.{name}", "")
    assert text() == f"ok: Tasks can have control groups in {tmp_path}/sys/fs/cgroup/a/b (--enforce cpuset)."
    put(tmp_path / "proc/self/cgroup", "0::/a/b/agent\n")
    for name in ("procs", "subtree_control", "controllers"):
        put(tmp_path / f"sys/fs/cgroup/a/b/agent/cgroup.{name}", "cpuset")
    assert text().endswith("/sys/fs/cgroup/a/b (--enforce cpuset).")


def test_the_service(tmp_path: Path) -> None:
    """A unit is installed, starts this drom, and keeps programs over a restart; if systemd runs."""
    shipped = (REPOSITORY / "contrib" / doctor_checks.UNIT).read_text(encoding="utf-8")
    assert doctor_checks.service(tmp_path, "/opt/drom/bin/drom").state == "ok"
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    assert "There is no drom-agent.service" in doctor_checks.service(tmp_path, "/opt/drom/bin/drom").text
    unit = put(tmp_path / "etc/systemd/system" / doctor_checks.UNIT, shipped)
    assert doctor_checks.service(tmp_path, "/opt/drom/bin/drom") == Finding(
        "service", "ok", f"{unit} starts this drom."
    )
    assert "starts /opt/drom/bin/drom, and this is /x/drom: " in doctor_checks.service(tmp_path, "/x/drom").text
    put(unit, shipped.replace("Type=notify", "Type=simple"))
    assert f"{unit} lacks Type=notify: install" in doctor_checks.service(tmp_path, "/opt/drom/bin/drom").text


def test_the_service_of_a_node_that_starts_jobs(tmp_path: Path) -> None:
    """The unit keeps the agent from that, and a drop-in lets it."""
    contrib = REPOSITORY / "contrib"
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    unit = put(
        tmp_path / "etc/systemd/system" / doctor_checks.UNIT, (contrib / doctor_checks.UNIT).read_text(encoding="utf-8")
    )
    found = doctor_checks.service(tmp_path, "/opt/drom/bin/drom", starts_jobs=True)
    advice = f"install drom-agent-jobs.conf as {unit}.d/jobs.conf."
    assert found == Finding("service", "fail", f"{unit} keeps the agent from starting jobs as their users: {advice}")

    jobs = (contrib / "drom-agent-jobs.conf").read_text(encoding="utf-8")
    put(tmp_path / f"usr/lib/systemd/system/{doctor_checks.UNIT}.d/jobs.conf", jobs)
    assert doctor_checks.service(tmp_path, "/opt/drom/bin/drom", starts_jobs=True).state == "ok"


def test_the_file_of_events(tmp_path: Path) -> None:
    """Its folder must be there, and take the files that are rotated; what is there already must be the agent's."""
    me = os.geteuid()
    assert doctor_checks.events_file(tmp_path / "events", me).state == "ok"
    put(tmp_path / "events", "")
    assert doctor_checks.events_file(tmp_path / "events", me).state == "ok"
    assert "is not a file of the agent's user: choose" in doctor_checks.events_file(tmp_path / "events", me + 1).text
    assert doctor_checks.events_file(tmp_path, me).state == "fail"
    gone = doctor_checks.events_file(tmp_path / "none/events", me)
    text = f"There is no folder {tmp_path}/none: make it, or choose another --events-file."
    assert gone == Finding("events", "fail", text)


def test_the_spool(tmp_path: Path) -> None:
    """The spool can be made where its parent is writable; one that exists must belong to the agent."""
    me = os.geteuid()
    assert doctor_checks.spool(tmp_path / "a/b", me).state == "ok"
    assert doctor_checks.spool(tmp_path, me).state == "ok"
    assert "belongs to another user: choose another --spool." in doctor_checks.spool(tmp_path, me + 1).text
    assert doctor_checks.spool(put(tmp_path / "file", "") / "a", me).state == "fail"
    tmp_path.chmod(0o777)
    fault = f"Others may write in {tmp_path} (mode 0777), and so may replace {tmp_path / 'a'}: choose another --spool."
    assert doctor_checks.spool(tmp_path / "a", me).text == fault


@pytest.mark.parametrize("zmq", [True, False])
def test_addresses(zmq: bool) -> None:
    """What cannot be bound is told with the reason; what is taken may be by the agent that runs."""

    def look(host: str, port: int, *, taken: bool = False) -> str:
        bind = partial(doctor_checks.bind_zmq, f"{host}:{port}") if zmq else partial(doctor_checks.bind_tcp, host, port)
        found = doctor_checks.address("metrics", f"{host}:{port}", bind, taken=taken)
        return f"{found.state}: {found.text}"

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert (
            look("127.0.0.1", port) == f"fail: Another program listens at 127.0.0.1:{port}: choose another --metrics."
        )
        assert look("127.0.0.1", port, taken=True) == f"ok: The agent can listen at 127.0.0.1:{port}."
    assert look("127.0.0.1", 0).startswith("ok: ")
    assert look("203.0.113.1", 1).startswith("fail: The agent cannot listen at 203.0.113.1:1 (")


@pytest.mark.parametrize(
    ("host", "state"),
    [("127.0.0.1", "ok"), ("localhost", "ok"), ("::1", "ok"), ("0.0.0.0", "warn"), ("10.0.0.7", "warn")],
)
def test_metrics_that_others_can_read_are_warned_of(host: str, state: str) -> None:
    """Names of jobs and users are served to whoever can connect; what cannot be served stays as it is."""
    assert doctor_checks.unguarded(Finding("metrics", "ok", "Fine."), host).state == state
    assert doctor_checks.unguarded(Finding("metrics", "fail", "Taken."), host).state == "fail"


def test_reachable_files(tmp_path: Path) -> None:
    """Each folder above must let others through, and the file itself must be readable, and to run if it is to run."""
    file = put(tmp_path / "in/file", "").resolve()
    file.chmod(0o755)
    opened = [folder for folder in file.parents if not folder.stat().st_mode & 1]
    modes = [folder.stat().st_mode for folder in opened]
    for folder in opened:
        folder.chmod(0o711)
    try:
        assert doctor_checks.reachable("x", lambda: file, runs=True).state == "ok"
        file.chmod(0o644)
        assert doctor_checks.reachable("x", lambda: file, runs=False).state == "ok"
        assert (
            doctor_checks.reachable("x", lambda: file, runs=True).text
            == f"Other users cannot use {file}: chmod o+rx it."
        )
        file.chmod(0o640)
        assert (
            doctor_checks.reachable("x", lambda: file, runs=False).text
            == f"Other users cannot use {file}: chmod o+r it."
        )
        file.parent.chmod(0o700)
        assert doctor_checks.reachable("x", lambda: file, runs=False).text.endswith(
            f"through {file.parent}: install drom elsewhere, as in /opt/drom."
        )
    finally:
        for folder, mode in zip(opened, modes, strict=True):
            folder.chmod(mode)
    assert doctor_checks.reachable("x", lambda: tmp_path / "none", runs=False).state == "fail"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a file system")
def test_files_that_may_not_be_run(tmp_path: Path) -> None:
    """Where a file system is mounted noexec, neither programs nor libraries serve."""
    look = "from drom.agent.cli.doctor_checks import reachable; from pathlib import Path\n"
    look += "for runs in (True, False): print(reachable('x', lambda: Path('file'), runs=runs))"
    steps = 'mount -t tmpfs -o noexec none "$1" && cd "$1" && touch file && "$2" -c "$3"'
    command = ["unshare", "--mount", "sh", "-c", steps, "sh", str(tmp_path), sys.executable, look]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": ROOT})
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr}")

    said = "it is on a file system mounted noexec: install drom elsewhere."
    assert done.stdout.count(said) == done.stdout.count("state='fail'") == 2
    assert "file cannot be run: " in done.stdout
    assert "file cannot be loaded: " in done.stdout


def test_sleeping_on_memory_that_may_only_be_read() -> None:
    """The kernel is asked; where the number of the call is not known or is another's, that is a warning."""
    assert doctor_checks.futex() == Finding("futex", "ok", "Programs can sleep until a grant is published.")
    assert doctor_checks.futex(None).state == "warn"
    found = doctor_checks.futex(-1)
    assert found.state == "warn"
    assert "(Function not implemented)" in found.text


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/run/drom", "/run/drom is in memory (tmpfs)."),
        ("/run", "/run is in memory (tmpfs)."),
        ("/running/drom", "/running/drom is on ext4, not in memory"),
        ("/a b/drom", "/a b/drom is on nfs4, not in memory"),
    ],
)
def test_where_the_runtime_directory_is(tmp_path: Path, path: str, text: str) -> None:
    """The nearest mount point above it decides; blanks in its name are escaped."""
    mounts = """21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
22 21 0:5 / /run rw,nosuid - tmpfs tmpfs rw,size=5k
23 21 0:6 / /a\\040b rw shared:7 - nfs4 server:/x rw
odd
"""
    put(tmp_path / "self/mountinfo", mounts)
    found = doctor_checks.storage(Path(path), tmp_path)

    assert found.text.startswith(text)
    assert found.state == ("ok" if "in memory (" in found.text else "warn")
    assert doctor_checks.storage(Path(path), tmp_path / "none").state == "warn"


def test_other_agents(tmp_path: Path) -> None:
    """Those that claim CPUs of ours are named, but for our own."""
    file = tmp_path / "claims"
    with holding(file, 0b10) as other:
        found = doctor_checks.claimed(file, 0b11, None)
        assert found.text == f"Other agents manage CPU 1 (pid {other.pid}): stop them, or use --reserved."
        assert (
            doctor_checks.claimed(file, 0b11, other.pid).state == doctor_checks.claimed(file, 0b01, None).state == "ok"
        )


def test_actors(tmp_path: Path) -> None:
    """Programs by name, DLB by its shared memory, systemd by its setting."""
    proc, shm, etc = tmp_path / "proc", tmp_path / "shm", tmp_path / "etc"
    proc.mkdir()
    assert [found.state for found in doctor_checks.competing_programs(proc, shm, etc)] == ["ok"]
    put(proc / "7/comm", "numad\n")
    put(proc / "8/comm", "irqbalance\n")
    put(shm / "DLB_cpuinfo_0", "")
    put(etc / "systemd/system.conf", "#CPUAffinity=9\nCPUAffinity=0-1\n")

    found = doctor_checks.competing_programs(proc, shm, etc)
    assert [(one.state, one.text.split()[0]) for one in found] == [
        ("warn", "numad"),
        ("ok", "irqbalance"),
        ("warn", "Programs"),
        ("warn", "systemd"),
    ]
    assert "CPUAffinity=0-1" in found[3].text


def test_kernel_features_are_tried() -> None:
    """On a kernel that runs these tests nothing fails."""
    assert {one.name for one in doctor_checks.kernel_features() if one.state in {"ok", "warn"}} == {"pidfd", "sockets"}


def test_a_kernel_without_pidfds_fails() -> None:
    """As where a sandbox forbids them."""
    code = "import os\ndef no(pid): raise OSError(38, 'Function not implemented')\nos.pidfd_open = no\n"
    code += "from drom.agent.cli.doctor_checks import kernel_features\nprint(kernel_features()[0].state)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "fail\n"


@pytest.mark.parametrize(("text", "state"), [("128\n", "ok"), ("8\n", "warn"), ("", "warn")])
def test_inotify(tmp_path: Path, text: str, state: str) -> None:
    """Too low a limit, or none told."""
    put(tmp_path / "sys/fs/inotify/max_user_instances", text)

    assert doctor_checks.inotify(tmp_path).state == state


def test_the_runtime_directory(tmp_path: Path) -> None:
    """The runtime directory may be missing; one that exists must be one that the agent would use, and have room."""
    where, me = tmp_path / "run", os.geteuid()
    assert doctor_checks.runtime_directory(where / "a", me, 1).state == "ok"
    where.mkdir(mode=0o755)
    assert doctor_checks.runtime_directory(where, me, 1).state == "ok"
    assert doctor_checks.runtime_directory(where, me, 1 << 62).text.startswith(f"{where} has room for less than")
    (tmp_path / "link").symlink_to(where)
    linked = doctor_checks.runtime_directory(tmp_path / "link", me, 1)
    assert (linked.state, linked.text.partition(" is ")[2][:16]) == ("fail", "a symbolic link:")
    letter = put(where / "mail/1", "a letter")
    others = doctor_checks.runtime_directory(where, me, 1)
    assert (others.state, others.text.partition(" holds ")[2][:33]) == ("fail", "files that are not an agent's: ch")
    assert letter.read_text(encoding="utf-8") == "a letter"
    where.chmod(0o777)
    assert doctor_checks.runtime_directory(where, me, 1).text.startswith(f"Others may write in {where} (mode 0777): ")
    below = doctor_checks.runtime_directory(where / "a", me, 1)
    assert below.text.startswith(f"Others may write in {where} (mode 0777), and so may replace {where / 'a'}: ")
    assert doctor_checks.runtime_directory(put(tmp_path / "file", ""), me, 1).state == "fail"


@pytest.mark.parametrize(("name", "state"), [("tsc", "ok"), ("arch_sys_counter", "ok"), ("hpet", "warn"), ("", "ok")])
def test_the_clock(tmp_path: Path, name: str, state: str) -> None:
    """A slow one is named."""
    put(tmp_path / "devices/system/clocksource/clocksource0/current_clocksource", name)

    assert doctor_checks.clock(tmp_path).state == state


@pytest.mark.parametrize(
    ("load", "busy"),
    [({}, ""), ({0: 0.9, 1: 0.9}, "all CPUs"), ({0: 0.1, 1: 0.9}, "CPU 1"), ({0: 0.0, 1: 0.4}, "")],
)
def test_the_load_of_unmanaged_programs(load: dict[int, float], busy: str) -> None:
    """What a CPU carries beyond the least loaded one counts, and that all are busy."""
    found = doctor_checks.unmanaged(load)

    assert found.state == ("warn" if busy else "ok")
    assert f"keep {busy} busy" in found.text if busy else "No unmanaged program keeps a CPU busy" in found.text


@pytest.mark.parametrize(
    ("value", "state", "word"),
    [
        (None, "warn", "No agent answers"),
        ({"frozen_since": "2026-01-01T00:00:00Z", "observe": False}, "warn", "is frozen since 2026-01-01"),
        ({"frozen_since": None, "observe": True}, "warn", "only observes"),
        ({"frozen_since": None, "observe": False}, "ok", "manages this node"),
    ],
)
def test_the_agent(value: dict[str, Any] | None, state: str, word: str) -> None:
    """Gone, frozen, observing or managing."""
    found = doctor_checks.frozen_or_not(value, Path("/r"))

    assert found.state == state
    assert word in found.text
