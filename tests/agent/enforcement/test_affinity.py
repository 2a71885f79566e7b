# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from drom.agent.enforcement import affinity
from drom.agent.enforcement.affinity import Result
from drom.agent.system import proc

from dromlib.cpulist import MAX_CPUS, cpus
from tests.support.child_processes import NOW, ONE, UID, Child, needs_two_cpus, our_masks, running, task_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

OTHER = NOW & ~ONE


@pytest.fixture(autouse=True)
def _own_mask_stays() -> Iterator[None]:
    """Assert that no test leaves this process with another mask."""
    before = our_masks()
    yield
    assert before == our_masks()


def task(child: Child) -> Callable[[], set[int]]:
    """Return what finds the processes of a child's task."""
    return lambda: task_processes(child.identity, UID)


@needs_two_cpus
class TestBind:
    """Setting the masks of all threads."""

    def test_every_thread_and_back(self, child: Child) -> None:
        """All threads take the mask, and take the old one back."""
        for _ in range(3):
            child.ask("thread")
        before = proc.thread_masks([child.pid])

        result = affinity.bind(lambda: [child.pid], ONE)

        assert result == Result(changed=4, kept=0, denied=0, invalid=0, passes=2, settled=True)
        assert set(proc.thread_masks([child.pid]).values()) == {ONE}
        again = affinity.bind(lambda: [child.pid], ONE)
        assert again == Result(changed=0, kept=4, denied=0, invalid=0, passes=1, settled=True)
        assert affinity.bind(lambda: [child.pid], NOW).changed == 4
        assert before == proc.thread_masks([child.pid])

    @pytest.mark.parametrize("word", ["fork", "orphan"])
    def test_children_forked_meanwhile(self, child: Child, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
        """A process that was forked with the old mask after the scan is caught by the next walk."""
        _before_first_set(monkeypatch, lambda: child.ask(word))

        result = affinity.bind(task(child), ONE)

        assert result == Result(changed=2, kept=0, denied=0, invalid=0, passes=3, settled=True)
        assert child.masks() == {ONE}

    def test_threads_started_meanwhile(self, child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
        """A thread that was started with the old mask after the walk began is caught by the next one."""
        _before_first_set(monkeypatch, lambda: child.ask("thread"))

        result = affinity.bind(lambda: [child.pid], ONE)

        assert (result.changed, result.passes, result.settled) == (2, 3, True)
        assert child.masks() == {ONE}

    def test_a_program_that_fights_is_given_up(self, child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
        """A mask that is undone at once is set 64 times and then reported as not settled."""
        _undo(monkeypatch, child.pid)

        result = affinity.bind(lambda: [child.pid], ONE)

        assert result == Result(changed=1, kept=0, denied=0, invalid=0, passes=64, settled=False)

    @pytest.mark.parametrize("how", ["few", "slow"])
    def test_a_program_that_fights_is_given_up_earlier(
        self, child: Child, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        """After 3 passes where another look comes soon, or where passes take long."""
        _undo(monkeypatch, child.pid)
        if how == "slow":
            monkeypatch.setattr(affinity, "PATIENCE", 0.0)
        most = affinity.FEW_PASSES if how == "few" else affinity.MAX_PASSES

        result = affinity.apply_rules({0: affinity.to(ONE)}, lambda _: {0: [child.pid]}, most=most)

        assert (result[0].passes, result[0].settled) == (3, False)

    def test_only_threads_that_move_are_looked_at_again(self, child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
        """One that fights costs no looks at the others."""
        for _ in range(3):
            child.ask("thread")
        _undo(monkeypatch, child.pid)
        looks: list[int] = []
        get_mask = os.sched_getaffinity

        def look(tid: int) -> set[int]:
            looks.append(tid)
            return get_mask(tid)

        monkeypatch.setattr(os, "sched_getaffinity", look)

        affinity.confine(lambda: [child.pid], ONE)

        others = [tid for tid in looks if tid != child.pid]
        assert len(looks) - len(others) == affinity.MAX_PASSES
        assert sorted(others) == sorted(2 * list(set(others)))

    def test_masks_the_kernel_narrows(self, child: Child) -> None:
        """CPUs that do not exist are dropped by the kernel: what is left settles and does not count as a change."""
        wide = ONE | 1 << (MAX_CPUS - 1)

        assert affinity.bind(lambda: [child.pid], wide).passes == 2
        result = affinity.bind(lambda: [child.pid], wide)

        assert result == Result(changed=0, kept=1, denied=0, invalid=0, passes=1, settled=True)
        assert child.masks() == {ONE}

    def test_masks_without_a_usable_cpu(self, child: Child) -> None:
        """A mask of no CPU, or of none that exists, is counted as invalid and changes nothing."""
        for mask in (0, 1 << (MAX_CPUS - 1)):
            result = affinity.bind(lambda: [child.pid], mask)

            assert result == Result(changed=0, kept=0, denied=0, invalid=1, passes=1, settled=True)
        assert child.masks() == {NOW}

    def test_ended_processes_and_threads(self, child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
        """What ends before or during the walk is passed over, and a task that is over binds nothing."""
        child.popen.communicate()

        gone = affinity.bind(lambda: [child.pid], ONE)
        over = affinity.bind(task(child), ONE)
        monkeypatch.setattr(affinity, "threads", lambda pid, _proc: [pid])
        meanwhile = affinity.bind(lambda: [child.pid], ONE)

        expected = Result(changed=0, kept=0, denied=0, invalid=0, passes=1, settled=True)
        assert gone == expected
        assert meanwhile == expected
        assert over == Result(changed=0, kept=0, denied=0, invalid=0, passes=1, settled=True)

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
    def test_other_users_are_denied(self, child: Child) -> None:
        """Without the right to bind other users' threads they are counted as denied and keep their masks."""
        os.seteuid(65534)
        try:
            result = affinity.bind(lambda: [child.pid], ONE)
        finally:
            os.seteuid(0)

        assert result == Result(changed=0, kept=0, denied=1, invalid=0, passes=1, settled=True)
        assert child.masks() == {NOW}

    def test_stopped_processes(self, child: Child) -> None:
        """A stopped process takes the mask and stays stopped."""
        child.popen.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)

        assert affinity.bind(task(child), ONE).settled
        stat = proc.read_stat(child.pid)
        assert stat is not None
        assert stat.state == "T"
        assert child.masks() == {ONE}

    def test_python_threads(self) -> None:
        """The threads of a Python program are bound as any other's."""
        script = "import threading as t; e = t.Event(); [t.Thread(target=e.wait).start() for _ in 'abc']; "
        script += "print(flush=True); input(); e.set()"
        with running(sys.executable, "-c", script) as child:
            assert child.popen.stdout is not None
            child.popen.stdout.readline()
            result = affinity.bind(task(child), ONE)

            assert result.changed == 4
            assert child.masks() == {ONE}
            child.popen.communicate("\n")


def _undo(monkeypatch: pytest.MonkeyPatch, fighter: int) -> None:
    """Have one thread undo at once what mask it is given."""
    bind_thread = os.sched_setaffinity

    def undone(tid: int, mask: set[int]) -> None:
        bind_thread(tid, mask)
        if tid == fighter:
            bind_thread(tid, cpus(NOW))

    monkeypatch.setattr(os, "sched_setaffinity", undone)


def _before_first_set(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have `act` done when the first thread is about to be bound."""
    bind_thread, todo = os.sched_setaffinity, [act]

    def late(tid: int, mask: set[int]) -> None:
        if todo:
            todo.pop()()
        bind_thread(tid, mask)

    monkeypatch.setattr(os, "sched_setaffinity", late)


@needs_two_cpus
class TestConfine:
    """Taking threads off CPUs that are no longer theirs."""

    def test_threads_outside_are_brought_in(self, child: Child) -> None:
        """A thread that may run outside the mask gets the mask."""
        child.ask("thread")

        result = affinity.confine(task(child), ONE)

        assert result == Result(changed=2, kept=0, denied=0, invalid=0, passes=2, settled=True)
        assert child.masks() == {ONE}

    def test_a_thread_partly_outside_is_brought_in(self, child: Child) -> None:
        """One CPU outside is enough: the thread gets just the mask."""
        affinity.confine(task(child), OTHER)

        assert child.masks() == {OTHER}

    def test_threads_bound_to_a_part_are_left_alone(self, child: Child) -> None:
        """A program that places its own threads inside its grant keeps its placement."""
        affinity.bind(task(child), ONE)

        result = affinity.confine(task(child), NOW)

        assert result == Result(changed=0, kept=1, denied=0, invalid=0, passes=1, settled=True)
        assert child.masks() == {ONE}

    def test_threads_started_meanwhile(self, child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
        """A thread started outside the mask after the walk began is brought in by the next one."""
        _before_first_set(monkeypatch, lambda: child.ask("thread"))

        assert affinity.confine(task(child), ONE).changed == 2
        assert child.masks() == {ONE}


@needs_two_cpus
class TestRestore:
    """Giving back the affinity from before."""

    def test_our_mask_is_given_back(self, child: Child) -> None:
        """A thread that has what we set gets what it had before."""
        affinity.bind(task(child), ONE)

        result = affinity.restore(task(child), ONE, NOW)

        assert (result.changed, result.settled) == (1, True)
        assert child.masks() == {NOW}

    def test_somebody_elses_masks_are_left_alone(self, child: Child) -> None:
        """A mask that reaches outside what we ever set is somebody else's."""
        result = affinity.restore(task(child), ONE, OTHER)

        assert result == Result(changed=0, kept=1, denied=0, invalid=0, passes=1, settled=True)
        assert child.masks() == {NOW}

    def test_a_part_of_ours_counts_as_ours(self, child: Child) -> None:
        """A thread that placed itself inside our mask gets the old one back too."""
        affinity.bind(task(child), ONE)

        assert affinity.restore(task(child), NOW, NOW).changed == 1
        assert child.masks() == {NOW}

    def test_disjoint_old_and_new_masks_settle(self, child: Child) -> None:
        """Restoring to CPUs outside ours is done once."""
        affinity.bind(task(child), ONE)

        assert affinity.restore(task(child), ONE, OTHER) == Result(1, 0, 0, 0, 2, settled=True)
        assert child.masks() == {OTHER}


@needs_two_cpus
class TestSeveral:
    """Several tasks in shared walks."""

    def test_each_by_its_rule_until_nothing_moves(self, child: Child) -> None:
        """Tasks that have settled are not looked for again; the others are, together."""
        asked: list[list[str]] = []

        def find(keys: Collection[str]) -> dict[str, list[int]]:
            asked.append(sorted(keys))
            return {key: [child.pid] if key == "moves" else [] for key in keys}

        results = affinity.apply_rules({"moves": affinity.to(ONE), "empty": affinity.to(ONE)}, find)

        assert asked == [["empty", "moves"], ["moves"]]
        assert (results["moves"].changed, results["moves"].passes, results["empty"].passes) == (1, 2, 1)
        assert all(result.settled for result in results.values())

    def test_only_threads_with_just_the_old_mask_are_widened(self, child: Child) -> None:
        """A thread that somebody has bound otherwise stays where it is."""
        assert not affinity.apply_rules({0: affinity.instead_of({ONE}, NOW)}, lambda _: {0: [child.pid]})[0].changed
        affinity.bind(lambda: [child.pid], ONE)
        assert affinity.apply_rules({0: affinity.instead_of({ONE}, NOW)}, lambda _: {0: [child.pid]})[0].changed == 1
        assert set(proc.thread_masks([child.pid]).values()) == {NOW}
