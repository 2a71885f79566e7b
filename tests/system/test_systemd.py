"""The unit file, under a real systemd."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from drom.agent import errors
from drom.agent.control import client

from dromlib import native
from tests.support import private_systemd
from tests.support.agents import Programs, affinity, build_program, programs, wait_until
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.private_systemd import Systemd

pytestmark = pytest.mark.system
UNIT = ROOT / "contrib" / "drom-agent.service"
NAME = "drom-agent.service"
DROM = Path(sys.executable).with_name("drom")


def installed() -> str:
    """Return the unit as an admin installs it: with the path of the drom that is here."""
    return UNIT.read_text(encoding="utf-8").replace("/opt/drom/bin/drom", str(DROM))


@pytest.mark.skipif(not Path("/usr/bin/systemd-analyze").exists(), reason="systemd-analyze is missing")
@pytest.mark.parametrize("jobs", [False, True])
def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path, jobs: bool) -> None:
    """All that it says is known and can be, also with the drop-in of a cluster's node."""
    file = tmp_path / NAME
    file.write_text(installed())
    if jobs:
        (tmp_path / f"{NAME}.d").mkdir()
        shutil.copy(UNIT.with_name("drom-agent-jobs.conf"), tmp_path / f"{NAME}.d")
    done = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False)

    assert (done.returncode, [line for line in done.stderr.splitlines() if "drom-agent" in line]) == (0, [])


@pytest.mark.skipif(not Path("/usr/bin/systemd-analyze").exists(), reason="systemd-analyze is missing")
@pytest.mark.parametrize("name", ["drom-scheduler.service", "drom-tasks.service"])
def test_systemd_finds_no_fault_in_the_other_units(tmp_path: Path, name: str) -> None:
    """As they are installed."""
    file = tmp_path / name
    file.write_text(UNIT.with_name(file.name).read_text(encoding="utf-8").replace("/opt/drom/bin/drom", str(DROM)))
    done = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False)

    assert (done.returncode, [line for line in done.stderr.splitlines() if name in line]) == (0, [])


class Node:
    """A node whose agent is a service."""

    def __init__(self, systemd: Systemd, folder: Path, start: Programs) -> None:
        self.systemd = systemd
        self.folder = folder
        self.start = start
        self.dir = systemd.root / "run/drom"

    def launch(self, job: str, *command: str | Path) -> Any:
        """Start a command under drom-run, as nobody."""
        user = ("setpriv", "--reuid=65534", "--clear-groups")
        run = (native.run_path(), "--runtime-dir", "/run/drom", "--job", job, "--", *command)
        return self.start.start(*self.systemd.inside(*user, *run))

    def rows(self) -> dict[str, list[Any]]:
        """Return what must not change while agents come and go, by job."""
        keys = ("pid", "held", "granted", "applied", "owned", "mode")
        return {row["job"]: [row[key] for key in keys] for row in client.order(self.dir, "ps")["tasks"]}

    @property
    def log(self) -> str:
        """Return what all agents have said."""
        return (self.folder / "agent.log").read_text(encoding="utf-8")

    def await_rows(self, wanted: dict[str, list[Any]]) -> None:
        """Wait until an agent answers that, and nothing else."""
        seen: list[Any] = []

        def there() -> bool:
            try:
                seen[:] = [self.rows()]
            except errors.ControlError as error:
                seen[:] = [error]
            return seen == [wanted]

        wait_until(there, lambda: f"{seen}\n{self.log}")


def affinity_of_children(pid: int) -> str:
    """Return the CPUs of the only child of a process: nsenter forks for a new pid namespace."""
    return affinity(psutil.Process(pid).children()[0].pid)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Return a node with the service running, for two cores in two sockets."""
    if reason := private_systemd.why_not():
        pytest.skip(reason)
    units = tmp_path / "units"
    (units / f"{NAME}.d").mkdir(parents=True)
    (units / NAME).write_text(installed())
    config = tmp_path / "drom.toml"
    config.write_text("grace = 2\n")
    words = ("NUMBA_DISABLE_JIT=1", f"DROM_CLAIMS_DIR={tmp_path}", f"DROM_CONFIG={config}")
    quoted = " ".join(f'"{word}"' for word in (*words, "DROM_TOPOLOGY=pack:2 core:1"))
    extra = f"[Service]\nEnvironment={quoted}\nReadWritePaths={tmp_path}\nPrivateTmp=no\nWatchdogSec=5\n"
    extra += f"StandardError=append:{tmp_path}/agent.log\n"
    (units / f"{NAME}.d/test.conf").write_text(extra)
    with private_systemd.systemd(tmp_path, units) as systemd, programs(tmp_path / "programs") as start:
        done = systemd.ctl("start", NAME)
        node = Node(systemd, tmp_path, start)
        assert done.returncode == 0, done.stderr + node.log
        yield node


@pytest.fixture
def public() -> Iterator[Path]:
    """Return a folder that other users can enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1")
def test_a_service_is_reloaded_replaced_watched_and_stopped(node: Node, public: Path) -> None:
    """Programs of another user are managed with the few rights it has, and none is disturbed until it is stopped."""
    systemd = node.systemd
    systemd.await_shown(NAME, "StatusText", "managing 2 CPUs, 0 jobs")
    program = build_program(public)
    a = node.launch("a", program)
    a.await_out("applied .* cpus 0,1$")
    b = node.launch("b", "sleep", "1000")
    a.await_out("applied .* cpus 0$")
    systemd.await_shown(NAME, "StatusText", "managing 2 CPUs, 2 jobs")
    wait_until(lambda: node.rows()["b"][3] == "1", node.rows)
    rows = node.rows()
    assert (affinity_of_children(a.pid), affinity_of_children(b.pid)) == ("0", "1")

    config = node.folder / "drom.toml"
    config.write_text("grace = 3\n")
    assert systemd.ctl("reload", NAME).returncode == 0
    config.write_text("grace = much\n")
    assert systemd.ctl("reload", NAME).returncode == 1
    assert f"drom: {config}:1: " in node.log
    config.write_text("grace = 3\n")
    assert systemd.show(NAME, "ActiveState") == "active"

    def replaced(old: str) -> str:
        wait_until(lambda: systemd.show(NAME, "MainPID") not in ("0", old), lambda: node.log)
        systemd.await_shown(NAME, "ActiveState", "active")
        node.await_rows(rows)
        assert (affinity_of_children(a.pid), affinity_of_children(b.pid)) == ("0", "1")
        assert a.applied() == ["0,1", "0"]
        return systemd.show(NAME, "MainPID")

    pid = systemd.show(NAME, "MainPID")
    assert systemd.ctl("restart", NAME).returncode == 0
    pid = replaced(pid)
    os.kill(systemd.pid_of(NAME), signal.SIGKILL)
    pid = replaced(pid)
    os.kill(systemd.pid_of(NAME), signal.SIGSTOP)
    replaced(pid)
    assert systemd.show(NAME, "NRestarts") == "2"

    assert systemd.ctl("stop", NAME).returncode == 0
    assert systemd.show(NAME, "Result") == "success"
    before = affinity(os.getpid())
    wait_until(lambda: affinity_of_children(b.pid) == before, lambda: affinity_of_children(b.pid))
    wait_until(lambda: affinity_of_children(a.pid) == before, lambda: affinity_of_children(a.pid))
    assert sorted(path.name for path in node.dir.iterdir()) == ["events", "lock"]


def test_jobs_get_the_limits_that_they_need(tmp_path: Path) -> None:
    """With the drop-in of a cluster's node: locked memory for InfiniBand, a stack that may grow, all their tasks."""
    if reason := private_systemd.why_not():
        pytest.skip(reason)
    units = tmp_path / "units"
    (units / f"{NAME}.d").mkdir(parents=True)
    (units / NAME).write_text(installed())
    shutil.copy(UNIT.with_name("drom-agent-jobs.conf"), units / f"{NAME}.d")
    wanted = {
        "LimitMEMLOCK": "infinity",
        "LimitMEMLOCKSoft": "infinity",
        "LimitSTACK": "infinity",
        "LimitSTACKSoft": str(8 << 20),
        "LimitNOFILE": "131072",
        "TasksMax": "infinity",
    }
    with private_systemd.systemd(tmp_path, units) as systemd:
        found = {name: systemd.show(NAME, name) for name in wanted}

    assert found == wanted
