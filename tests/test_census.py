# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from agent import census, processes
from agent.census import Scan
from tests.children import Child, until

if TYPE_CHECKING:
    from pathlib import Path

    from agent.processes import Stat


class Machine:
    """A folder like /proc, and the pids whose stat has been read since `read` was emptied."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self.read: list[int] = []
        monkeypatch.setattr(census, "read_stat", self._read_stat)
        self.scan = Scan(str(root))

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
        scan = Scan()

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
