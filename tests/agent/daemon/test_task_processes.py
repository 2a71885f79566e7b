# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from drom.agent.daemon import task_processes
from drom.agent.daemon.task_processes import EnvironmentTags, ProcScanner
from drom.agent.system import proc as processes
from drom.agent.system.proc import Identity

from tests.support.child_processes import UID, Child, until

if TYPE_CHECKING:
    from pathlib import Path

    from drom.agent.system.proc import Stat


class Machine:
    """A folder like /proc, and the pids whose stat has been read since `read` was emptied."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self.read: list[int] = []
        monkeypatch.setattr(task_processes, "read_stat", self._read_stat)
        self.scan = ProcScanner(str(root))

    def _read_stat(self, pid: int, proc: str) -> Stat | None:
        self.read.append(pid)
        return processes.read_stat(pid, proc)

    def begin(self, pid: int, parent: int, start: int) -> None:
        """Have a process, which may have been adopted since."""
        (self._root / str(pid)).mkdir(exist_ok=True)
        (self._root / str(pid) / "stat").write_text(f"{pid} (x) S {parent}{' 0' * 17} {start} 0 0\n")

    def end(self, pid: int) -> None:
        """Have a process no more; its inode is not given to the next folder, which is made before."""
        (self._root / str(pid)).rename(self._root / f"gone-{pid}")

    def take(self) -> tuple[dict[int, int], set[int]]:
        """Return the parents that a scan finds, and whose stat it read for that."""
        self.read.clear()
        parents = {pid: stat.ppid for pid, stat in self.scan.take().items()}
        return parents, set(self.read)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a machine with init, a shell and its program."""
    there = Machine(tmp_path, monkeypatch)
    for pid, parent in ((1, 0), (20, 1), (30, 20)):
        there.begin(pid, parent, pid)
    return there


class TestScan:
    """All processes, of which only what may have changed is read."""

    def test_reads_once_what_stays(self, machine: Machine) -> None:
        """A second scan finds the same and reads nothing; a new process alone is read."""
        first, again = machine.take(), machine.take()
        machine.begin(31, 20, 40)

        assert first == ({1: 0, 20: 1, 30: 20}, {1, 20, 30})
        assert again == (first[0], set())
        assert machine.take() == ({1: 0, 20: 1, 30: 20, 31: 20}, {31})

    def test_an_orphan_has_another_parent(self, machine: Machine) -> None:
        """Who loses its parent is read anew."""
        machine.take()
        machine.end(20)
        machine.begin(30, 1, 30)

        assert machine.take() == ({1: 0, 30: 1}, {30})

    def test_a_reused_pid_is_another_process(self, machine: Machine) -> None:
        """A pid that comes back is read anew, as are the children of the process that had it before."""
        machine.take()
        machine.end(20)
        machine.begin(20, 1, 50)
        machine.begin(30, 1, 30)

        assert machine.take() == ({1: 0, 20: 1, 30: 1}, {20, 30})
        assert machine.scan.take()[20].start_time == 50

    def test_one_that_ends_meanwhile_is_left_out(self, machine: Machine, tmp_path: Path) -> None:
        """A folder without a stat is no process, at this scan and the next."""
        shutil.rmtree(tmp_path / "30")
        (tmp_path / "30").mkdir()

        assert [machine.take()[0], machine.take()[0]] == [{1: 0, 20: 1}] * 2

    def test_real_processes(self, child: Child) -> None:
        """Of real processes that come, are adopted and go, it finds at each moment what a look at all finds."""
        scan = ProcScanner()

        def seen() -> dict[int, tuple[int, int]]:
            mine = {child.pid, *others}
            found = {pid: (stat.ppid, stat.start_time) for pid, stat in scan.take().items() if pid in mine}
            whole = {pid: (stat.ppid, stat.start_time) for pid, stat in processes.scan().items() if pid in mine}
            assert found == whole
            return found

        others: set[int] = set()
        assert seen().keys() == {child.pid}
        others = {fork := int(child.ask("fork")), orphan := int(child.ask("orphan"))}
        before = seen()
        child.popen.kill()
        child.popen.wait()
        until(lambda: seen().get(fork, before[fork]) != before[fork], "the fork has another parent")

        assert before.keys() == {child.pid, fork, orphan}
        assert before[fork][0] == child.pid
        assert child.pid not in seen()


class Environments:
    """Marks of a folder like /proc, and the pids whose environment has been read since `read` was emptied."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self.read: list[int] = []
        monkeypatch.setattr(task_processes, "environment", self._environment)
        self._marks = EnvironmentTags(str(root))

    def _environment(self, pid: int, proc: str) -> list[bytes]:
        self.read.append(pid)
        return processes.environment(pid, proc)

    def put(self, pid: int, environ: bytes, start: int = 7) -> None:
        """Have a process that executes with this environment."""
        (self._root / str(pid)).mkdir(exist_ok=True)
        (self._root / str(pid) / "environ").write_bytes(environ)
        stat = f"{pid} (x) S 1{' 0' * 17} {start}{' 0' * 25} 0 0 {len(environ)} 0"
        (self._root / str(pid) / "stat").write_text(stat)

    def look(self) -> tuple[dict[int, int], set[int], list[int]]:
        """Return the pids of the tasks that our processes name, whose not all are read, and those read now."""
        self.read.clear()
        stats = processes.scan(str(self._root))
        named, unread = self._marks.look(stats, stats, {UID})
        return {pid: task.pid for pid, (task, _) in named.items()}, unread, self.read


@pytest.fixture
def environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environments:
    """Return environments, none as yet."""
    return Environments(tmp_path, monkeypatch)


class TestMarks:
    """Which tasks processes name."""

    def test_reads_once_until_another_program_is_executed(self, environments: Environments) -> None:
        """What a process names is known until it executes something, or another has its pid."""
        environments.put(5, b"DROM_TASK=1:2\0")
        environments.put(6, b"A=1\0")

        assert environments.look() == ({5: 1}, set(), [5, 6])
        assert environments.look() == ({5: 1}, set(), [])
        environments.put(6, b"DROM_TASK=30:4\0")
        assert environments.look() == ({5: 1, 6: 30}, set(), [6])
        environments.put(5, b"DROM_TASK=2:2\0", start=8)
        assert environments.look() == ({5: 2, 6: 30}, set(), [5])

    def test_a_look_reads_so_much_of_a_user(self, environments: Environments, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is left, the younger first, is read at the next look, and before what is known and has changed."""
        monkeypatch.setattr(task_processes, "BUDGET", 8192)
        for pid in (5, 6, 7):
            environments.put(pid, b"DROM_TASK=1:2\0", start=10 - pid)

        assert environments.look() == ({6: 1, 7: 1}, {UID}, [7, 6])
        environments.put(7, b"DROM_TASK=10:2\0" + bytes(20000), start=3)
        environments.put(6, b"DROM_TASK=20:2\0", start=4)
        assert environments.look() == ({5: 1, 6: 1, 7: 10}, set(), [5, 7])
        assert environments.look() == ({5: 1, 6: 20, 7: 10}, set(), [6])

    def test_changes_are_looked_for_in_turn(self, environments: Environments, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of many that are known a few are looked at again each time, those first whose turn is longest ago."""
        for pid in (5, 6, 7):
            environments.put(pid, b"DROM_TASK=1:2\0")
        environments.look()
        monkeypatch.setattr(task_processes, "BUDGET", 1)
        for pid in (5, 6, 7):
            environments.put(pid, b"DROM_TASK=30:4\0")

        assert [environments.look()[2][:] for _ in range(4)] == [[5], [6], [7], []]

    def test_other_users_are_passed_over(self, environments: Environments) -> None:
        """Nobody looks into processes of those who have no task."""
        environments.put(5, b"DROM_TASK=1:2\0")
        stats = processes.scan("/proc")

        assert EnvironmentTags().look([os.getpid()], stats, {UID + 1}) == ({}, set())

    def test_a_real_process_that_executes_another_program(self) -> None:
        """The kernel tells that the environment is another one."""
        marks, script = EnvironmentTags(), "echo runs; read line; exec env DROM_TASK=3:4 cat"
        pipe = subprocess.PIPE
        with subprocess.Popen(
            ["sh", "-c", script], env={"DROM_TASK": "1:2"}, text=True, stdin=pipe, stdout=pipe
        ) as process:
            assert process.stdin
            assert process.stdout
            assert process.stdout.readline() == "runs\n"  # Popen returns before the kernel shows its environment
            found = [marks.look([process.pid], processes.scan(), {UID})[0]]
            process.stdin.write("go\nsaid\n")
            process.stdin.flush()
            assert process.stdout.readline() == "said\n"
            found.append(marks.look([process.pid], processes.scan(), {UID})[0])
            process.kill()

        assert found == [{process.pid: (Identity(*task), UID)} for task in ((1, 2), (3, 4))]
