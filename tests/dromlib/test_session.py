from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import dromlib
from dromlib import layout
from dromlib.testing import FakeAgent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dromlib import Grant

SECONDS = 60
FUTEX_PRIVATE_FLAG = 128
RETIRED = layout.EPOCH_RETIRED


class Recorder:
    """An adapter that remembers the grants it was given; it says it can use `most` threads."""

    def __init__(self, most: int | None = None, *, loaded: bool = True) -> None:
        self.most = most
        self.loaded = loaded
        self.asked = 0
        self.seen: list[int] = []

    def available(self) -> bool:
        """As the test says."""
        self.asked += 1
        return self.loaded

    def limit(self) -> int | None:
        """As the test says."""
        return self.most

    def apply(self, grant: Grant) -> None:
        """Remember."""
        self.seen.append(grant.ncpus)


@pytest.fixture
def fake() -> Iterator[FakeAgent]:
    """Open a fake agent that has granted CPUs 0-3."""
    with FakeAgent("0-3") as agent:
        yield agent


@pytest.fixture
def no_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no agent anywhere."""
    monkeypatch.setenv("DROM_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("DROM_TASK", raising=False)


def asleep(thread: threading.Thread) -> bool:
    """Say whether a thread of this process sleeps in a futex that it shares with others: not for Python's own lock."""
    with suppress(OSError, ValueError):
        number, _, operation, *_ = Path(f"/proc/self/task/{thread.native_id}/syscall").read_text("utf-8").split()
        return number == "202" and not int(operation, 16) & FUTEX_PRIVATE_FLAG
    return False


def close_mailbox(fake: FakeAgent) -> None:
    """Close the descriptor of this process's mailbox, as a program does that closes all it does not know."""
    boxes = mailboxes(fake)
    deadline = time.monotonic() + SECONDS
    while len(boxes) > 1 and time.monotonic() < deadline:  # until the fake agent, a thread, has closed what it has sent
        time.sleep(0.001)
        boxes = mailboxes(fake)
    assert len(boxes) == 1
    os.close(boxes[0])


def mailboxes(fake: FakeAgent) -> list[int]:
    """Return the descriptors of this process that are those of mailboxes of the agent."""
    return [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink() and is_mailbox(fd, fake)]


def is_mailbox(fd: Path, fake: FakeAgent) -> bool:
    """Say whether a descriptor of this process is that of a mailbox of the agent."""
    with suppress(OSError):
        return fd.readlink().parent == fake.folder and fd.readlink().name.startswith("mail")
    return False


def until(condition: Callable[[], bool]) -> None:
    """Look until the condition holds."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def run(code: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a program in Python to its end."""
    words = [sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **extra})


class TestPoll:
    """Attach, poll, apply, acknowledge."""

    def test_attach_applies_the_first_grant(self, fake: FakeAgent) -> None:
        """The first grant is in force and acknowledged before the program goes on."""
        pool = Recorder()
        with dromlib.attach([pool]) as session:
            assert session.mode == "responder"
            assert pool.seen == [4]
            assert fake.applied == 1
            assert session.grant
            assert (session.grant.cpus, session.grant.reason, session.grant.epoch) == ((0, 1, 2, 3), "arrival", 1)

    def test_nothing_before_the_first_grant(self) -> None:
        """An agent that has not granted anything yet leaves the program as it is, and hears its wishes."""
        with FakeAgent() as fake, dromlib.attach([], 1, 8) as session:
            assert (session.mode, session.grant, session.poll(), fake.applied) == ("responder", None, None, 0)
            assert fake.wanted == (1, 8)

    def test_poll_gives_each_grant_once(self, fake: FakeAgent) -> None:
        """A grant is returned by one poll; polls are counted, and the newest of several grants is taken."""
        with dromlib.attach([]) as session:
            assert session.poll() is None
            fake.grant("0")
            fake.grant("64,900-901", reason="order")
            grant = session.poll()
            assert grant
            assert (grant.cpus, grant.ncpus, grant.reason, grant.epoch) == ((64, 900, 901), 3, "order", 3)
            assert grant is session.grant
            assert session.poll() is None
            assert fake.polls == 3

    def test_apply_sizes_and_acknowledges(self, fake: FakeAgent) -> None:
        """Adapters in their order get the grant, then the agent is told."""
        first, second = Recorder(), Recorder()
        with dromlib.attach([first, second]) as session:
            epoch = fake.grant("0-1")
            grant = session.poll()
            assert grant
            assert fake.applied < epoch
            assert session.apply(grant)
            fake.wait_applied(epoch)
            assert first.seen == second.seen == [4, 2]

    def test_acknowledge_is_for_programs_that_apply_themselves(self, fake: FakeAgent) -> None:
        """Acknowledging tells the agent and touches no adapter."""
        pool = Recorder()
        with dromlib.attach([pool]) as session:
            epoch = fake.grant("5")
            grant = session.poll()
            assert grant
            assert session.acknowledge(grant)
            assert (fake.applied, pool.seen) == (epoch, [4])

    def test_an_adapter_counts_from_when_it_is_loaded(self, fake: FakeAgent) -> None:
        """What is loaded is looked up at each grant."""
        pool = Recorder(loaded=False)
        with dromlib.attach([pool]) as session:
            pool.loaded = True
            fake.grant("0-1")
            grant = session.poll()
            assert grant
            session.apply(grant)
            assert pool.seen == [2]

    def test_progress_is_told(self, fake: FakeAgent) -> None:
        """The program's own count of work reaches the mailbox; what is no count is a TypeError or OverflowError."""
        with dromlib.attach([]) as session:
            session.progress(12)
            assert fake.progress == 12
            session.progress(np.int64(13))
            assert fake.progress == 13
            with pytest.raises(TypeError):
                session.progress("12")  # type: ignore[arg-type]
            with pytest.raises(OverflowError):
                session.progress(-1)
            assert fake.progress == 13

    @pytest.mark.parametrize("bound", [-1, 1.5, "3", 40_000])
    def test_a_bound_that_is_no_number_of_cpus_is_refused(self, bound: Any) -> None:
        """With and without an agent, so that a program that runs alone does not fail under one."""
        for agent in (nullcontext(), FakeAgent("0")):
            for name in ("min_cpus", "max_cpus"):
                with agent, pytest.raises(ValueError, match=rf"^{name}={bound!r} is not a number of CPUs: give one"):
                    dromlib.attach([], **{name: bound})

    def test_bounds_that_contradict_each_other_are_refused(self) -> None:
        """Before any agent is asked."""
        with pytest.raises(ValueError, match=r"^min_cpus=4 is above max_cpus=2: give at most as many"):
            dromlib.attach([], min_cpus=4, max_cpus=2)

    def test_a_closed_session_has_no_responder(self, fake: FakeAgent) -> None:
        """After the block the agent knows; polls answer None, and closing again does nothing."""
        with dromlib.attach([]) as session:
            pass
        fake.wait_left()
        fake.grant("0")
        session.close()
        session.progress(3)
        assert (session.mode, session.poll(), session.wait()) == ("unmanaged", None, None)
        assert fake.progress == 0

    def test_an_exception_closes_the_session_and_is_raised(self, fake: FakeAgent) -> None:
        """What is raised in the block comes out of it, and the agent knows that the program has left."""
        with pytest.raises(KeyError, match="mine"), dromlib.attach([]):
            raise KeyError("mine")
        fake.wait_left()

    def test_an_attach_that_fails_leaves_nothing_behind(self, fake: FakeAgent) -> None:
        """An adapter that raises during the first grant leaves no responder and no bounds behind."""

        class Bad(Recorder):
            def apply(self, grant: Grant) -> None:
                raise LookupError(grant.ncpus)

        with pytest.raises(LookupError) as kept:
            dromlib.attach([Bad()], max_cpus=3)
        fake.wait_left()
        with dromlib.attach([], max_cpus=2):
            assert fake.wanted == (0, 2)
        assert kept.value.args == (4,)

    def test_a_session_without_references_has_no_responder(self, fake: FakeAgent) -> None:
        """The last reference closes it."""
        session = dromlib.attach([])
        del session
        fake.wait_left()

    def test_a_program_may_end_without_closing(self, fake: FakeAgent) -> None:
        """An interpreter that ends with a session open ends as always; the agent sees it leave or die."""
        done = run("import dromlib; session = dromlib.attach([]); print(session.mode)")

        assert (done.stdout, done.stderr, done.returncode) == ("responder\n", "", 0)
        assert fake.applied in {1, RETIRED}
        with dromlib.attach([]) as session:
            assert session.mode == "responder"

    def test_sessions_of_one_process_share_its_responder(self, fake: FakeAgent) -> None:
        """Each session gets every grant and may acknowledge it; with the last one the responder leaves."""
        with dromlib.attach([]) as outer:
            with dromlib.attach([]) as inner:
                assert (outer.mode, inner.mode) == ("responder", "responder")
                epoch = fake.grant("0")
                grant = inner.poll()
                assert grant
                assert inner.apply(grant)
                assert fake.applied == epoch
            assert fake.applied == epoch
            assert outer.poll()
        fake.wait_left()

    def test_another_process_of_the_task_follows(self, fake: FakeAgent) -> None:
        """A second process takes the grants and never acknowledges."""
        with dromlib.attach([]):
            epoch = fake.grant("0")
            done = run("import dromlib; s = dromlib.attach([]); print(s.mode, s.grant.ncpus); s.close()")
            assert (done.stdout, done.stderr) == ("follower 1\n", "")
            assert fake.applied < epoch

    @pytest.mark.usefixtures("fake")
    def test_references_are_counted_right(self) -> None:
        """Many polls, takes, binds and waits keep nothing alive and free nothing too early."""
        code = """
import array, dromlib, gc, mmap, os, sys
from dromlib import layout, native
from dromlib._handle import bind_threads
with open(os.environ["DROM_RUNTIME_DIR"] + "/registry", "r+b") as file:
    view = memoryview(mmap.mmap(file.fileno(), 0))
slot = native.address(view, layout.HEADER_SIZE)
words = layout.HEADER.read(view, "mask_bits") // 64
counts = array.array("q", [0] * 9)
with dromlib.attach([]) as session:
    def turn(at):
        for _ in range(2000):
            native.publish(slot, 3 | 1 << 900, words, 1)  # no agent's thread runs in this process
            session.poll(); session.poll(); session.wait(0); session.progress(7)
            session.mode; session._place; session.acknowledge(session.grant)
            bind_threads(sorted(os.sched_getaffinity(0)))
            session._want(1, 2)
        gc.collect()
        counts[at] = sys.getrefcount(None)
        counts[at + 1] = sys.getrefcount(True)
        counts[at + 2] = sys.getallocatedblocks()
    for at in (0, 3, 6):
        turn(at)
    assert session.grant.ncpus == 3
print(*counts[3:])
"""
        done = run(code)
        assert not done.stderr
        counts = list(map(int, done.stdout.split()))

        # One reference lost in each round would be 2000; what Python itself keeps or frees is some tens.
        assert all(abs(after - before) < 200 for before, after in zip(counts[:3], counts[3:], strict=True)), counts


class TestWishes:
    """What a program tells the agent about its needs."""

    def test_minimum_and_maximum_are_told(self, fake: FakeAgent) -> None:
        """The mailbox says between how many and how many CPUs the program can use."""
        with dromlib.attach([], min_cpus=2, max_cpus=6):
            assert fake.wanted == (2, 6)

    @pytest.mark.parametrize(
        ("limits", "max_cpus", "expected"),
        [([8, 3], 0, 8), ([8, 3], 6, 6), ([3], 6, 3), ([3, None], 0, 0), ([None], 5, 5), ([], 0, 0)],
    )
    def test_limits_of_pools_are_told(
        self, fake: FakeAgent, limits: list[int | None], max_cpus: int, expected: int
    ) -> None:
        """The pool that can use most bounds what is wanted, a pool without a limit does not."""
        with dromlib.attach([Recorder(limit) for limit in limits], max_cpus=max_cpus):
            assert fake.wanted == (0, expected)

    @pytest.mark.parametrize(
        ("outer", "inner", "together"),
        [((2, 6), (3, 4), (3, 6)), ((2, 6), (0, 0), (2, 0)), ((0, 0), (0, 2), (0, 0)), ((1, 2), (0, 8), (1, 8))],
    )
    def test_sessions_of_one_process_tell_what_suits_all(
        self, fake: FakeAgent, outer: tuple[int, int], inner: tuple[int, int], together: tuple[int, int]
    ) -> None:
        """The largest minimum and the largest maximum, none where one says none; who has left has no wish any more."""
        with dromlib.attach([], *outer):
            with dromlib.attach([], *inner):
                assert fake.wanted == together
            assert fake.wanted == outer

    def test_bounds_that_change_are_told_together(self, fake: FakeAgent) -> None:
        """A pool that is loaded later changes what its own session says alone."""
        pool = Recorder(most=3, loaded=False)
        with dromlib.attach([], max_cpus=4), dromlib.attach([pool], max_cpus=5) as inner:
            assert fake.wanted == (0, 5)
            pool.loaded = True
            inner.apply(inner.grant)
            assert fake.wanted == (0, 4)

    def test_a_grant_below_the_minimum_is_one_sentence(self, fake: FakeAgent) -> None:
        """The program is warned, at its own line, and runs on with what there is."""
        pool = Recorder()
        with dromlib.attach([pool], min_cpus=3) as session:
            fake.grant("7")
            grant = session.poll()
            assert grant
            with pytest.warns(RuntimeWarning, match="has granted 1 of the 3 CPUs") as warned:
                assert session.apply(grant)
            assert len(warned) == 1
            assert warned[0].filename == __file__
            assert pool.seen == [4, 1]


class TestAffinity:
    """Threads on the CPUs granted."""

    def test_every_thread_is_bound_before_pools_are_sized(self) -> None:
        """All threads are on the grant's CPUs when adapters hear of it, and the agent after that."""
        code = """
import os, threading, dromlib
hold = threading.Event()
threads = [threading.Thread(target=hold.wait) for _ in range(5)]
for thread in threads: thread.start()
class Pool:
    def available(self): return True
    def limit(self): return None
    def apply(self, grant):
        print(sorted({tuple(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")}), grant.cpus)
session = dromlib.attach([Pool()])
hold.set()
"""
        cpu = min(os.sched_getaffinity(0))
        with FakeAgent(str(cpu), binds=True) as fake:
            done = run(code)
            fake.wait_left()

        assert (done.stdout, done.stderr) == (f"[({cpu},)] ({cpu},)\n", "")

    def test_synthetic_cpus_bind_nothing(self, fake: FakeAgent) -> None:
        """Under an emulated machine the affinity stays."""
        before = os.sched_getaffinity(0)
        with dromlib.attach([]) as session:
            fake.grant("900")
            grant = session.poll()
            assert grant
            assert session.apply(grant)
        assert os.sched_getaffinity(0) == before

    def test_cpus_that_are_not_there_are_one_sentence(self) -> None:
        """Where threads cannot be bound the agent is not told, the pools are sized, and the program runs on."""
        before, pool = os.sched_getaffinity(0), Recorder()
        with FakeAgent(binds=True) as fake, dromlib.attach([pool]) as session:
            fake.grant("1000-1001")
            grant = session.poll()
            assert grant
            with pytest.warns(RuntimeWarning, match="cannot bind itself to CPUs"):
                assert not session.apply(grant)
            assert (fake.applied, pool.seen) == (0, [2])
        assert os.sched_getaffinity(0) == before


class TestWait:
    """The futex, for threads."""

    def test_a_grant_wakes(self, fake: FakeAgent) -> None:
        """A thread that waits gets the grant, while the others run."""
        got: list[Any] = []
        with dromlib.attach([]) as session:
            thread = threading.Thread(target=lambda: got.append(session.wait()))
            thread.start()
            until(lambda: asleep(thread))
            fake.grant("1-2")
            thread.join(SECONDS)
        assert [grant.cpus for grant in got] == [(1, 2)]

    def test_time_runs_out(self, fake: FakeAgent) -> None:
        """None after the time-out, or the grant that is there already."""
        with dromlib.attach([]) as session:
            assert session.wait(0.01) is None
            assert session.wait(0) is None
            fake.grant("0")
            grant = session.wait(0)
            assert grant
            assert grant.cpus == (0,)
            with pytest.raises(TypeError):
                session.wait("soon")  # type: ignore[arg-type]

    def test_polls_meanwhile_leave_the_grant_to_who_waits(self, fake: FakeAgent) -> None:
        """Another thread may poll and tell progress; one alone waits."""
        got: list[Any] = []
        with dromlib.attach([]) as session:
            thread = threading.Thread(target=lambda: got.append(session.wait()))
            thread.start()
            until(lambda: asleep(thread))
            with pytest.raises(RuntimeError, match="attach one session for each thread that waits"):
                session.wait(1)
            assert session.poll() is None
            session.progress(3)
            fake.grant("1-2")
            thread.join(SECONDS)
            assert session.poll() is None
        assert got[0].cpus == (1, 2)
        assert (fake.polls, fake.progress) == (2, 3)

    def test_closing_wakes(self, fake: FakeAgent) -> None:
        """A thread that waits for ever returns None when another closes the session."""
        got: list[Any] = []
        session = dromlib.attach([])
        thread = threading.Thread(target=lambda: got.append(session.wait()))
        thread.start()
        until(lambda: asleep(thread))
        session.close()
        thread.join(SECONDS)
        assert got == [None]
        fake.wait_left()

    def test_an_interrupt_comes_through(self, fake: FakeAgent) -> None:
        """Ctrl-C ends a wait with KeyboardInterrupt; the session goes on."""
        with dromlib.attach([]) as session:
            main = threading.main_thread()

            def interrupt() -> None:
                until(lambda: asleep(main))
                os.kill(os.getpid(), signal.SIGINT)

            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                session.wait()
            thread.join()
            fake.grant("0")
            assert session.wait()

    def test_retirement_ends_it(self, fake: FakeAgent) -> None:
        """When the agent stops, who waits gets None, at once from then on."""
        got: list[Any] = []
        with dromlib.attach([]) as session:
            thread = threading.Thread(target=lambda: got.append((session.wait(), session.wait())))
            thread.start()
            until(lambda: asleep(thread))
            fake.retire()
            thread.join(SECONDS)
            assert got == [(None, None)]
            assert session.mode == "unmanaged"

    @pytest.mark.parametrize("timeout", [None, SECONDS])
    def test_the_next_agent_is_given_time_to_grant(self, fake: FakeAgent, timeout: float | None) -> None:
        """Who waits sits down with it and gets its first grant; None only when the time is up."""
        got: list[Any] = []
        with dromlib.attach([]) as session, FakeAgent() as second, FakeAgent() as third:
            fake.retire()
            assert session.wait(0.01) is None
            third.retire()
            os.environ["DROM_RUNTIME_DIR"] = str(second.folder)
            thread = threading.Thread(target=lambda: got.append(session.wait(timeout)))
            thread.start()
            second.wait_attached()
            until(lambda: asleep(thread) or not thread.is_alive())
            second.grant("5")
            thread.join(SECONDS)
        assert [grant and grant.cpus for grant in got] == [(5,)]

    def test_a_lost_mailbox_stops_no_other_thread(self, fake: FakeAgent) -> None:
        """A program that has closed descriptors that are not its own asks for others while its threads run on."""
        with dromlib.attach([]) as session:
            close_mailbox(fake)
            epoch = fake.grant("5")  # answered by a thread of this interpreter
            grant = session.poll()
            assert grant
            session.apply(grant)
            assert (session.mode, grant.cpus, fake.applied) == ("responder", (5,), epoch)

    def test_a_lost_mailbox_stops_no_loop(self, fake: FakeAgent) -> None:
        """A loop runs on while the agent is asked for another mailbox."""

        async def drive() -> None:
            with dromlib.attach([]) as session:
                close_mailbox(fake)
                fake._close_door()
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
                    door.bind(str(fake.folder / "door"))
                    door.listen()
                    fake.grant("5")
                    waits = asyncio.create_task(session.changed())
                    accepted, _ = await asyncio.get_running_loop().run_in_executor(None, door.accept)
                    assert not waits.done()
                    accepted.close()
                    assert await asyncio.wait_for(waits, SECONDS) is None

        asyncio.run(drive())

    def test_threads_may_do_all_at_once(self, fake: FakeAgent) -> None:
        """Threads that wait, poll, apply and close while grants rain never crash the program."""
        with dromlib.attach([]) as session:
            stop = threading.Event()

            def work() -> None:
                while not stop.is_set():
                    grant = session.poll()
                    if grant:
                        session.apply(grant)
                    with suppress(RuntimeError):
                        session.wait(0.001)

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for number in range(300):
                epoch = fake.grant(str(number))
            until(lambda: session.grant is not None and session.grant.epoch == epoch)
            fake.retire()
            until(lambda: session.mode == "unmanaged")
            stop.set()
            for thread in threads:
                thread.join(SECONDS)


class TestFork:
    """Children of a program."""

    def test_a_child_is_unmanaged(self, fake: FakeAgent) -> None:
        """After fork the child polls None for ever, cannot speak for its parent, and the parent goes on."""
        with dromlib.attach([]) as session:
            fake.grant("0-1")
            child = os.fork()
            if child == 0:
                quiet = (session.poll(), session.mode, session.wait(), asyncio.run(session.changed()))
                session.progress(9)
                session.close()
                os._exit(quiet != (None, "unmanaged", None, None))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert (fake.applied, fake.progress) == (1, 0)
            grant = session.poll()
            assert grant
            assert session.apply(grant)

    def test_a_child_of_a_waiting_program_is_unmanaged(self, fake: FakeAgent) -> None:
        """A child forked while another thread waits does not inherit the waiting."""
        with dromlib.attach([]) as session:
            thread = threading.Thread(target=session.wait)
            thread.start()
            until(lambda: asleep(thread))
            child = os.fork()
            if child == 0:
                os._exit((session.poll(), session.wait()) != (None, None))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            fake.grant("0")
            thread.join(SECONDS)


class TestWithoutAgent:
    """Every call is harmless."""

    @pytest.mark.usefixtures("no_agent")
    def test_nothing_ever_happens(self) -> None:
        """Polls answer None, waits return at once, loops run through, and no adapter is asked for anything."""
        pool = Recorder()
        with dromlib.attach([pool]) as session:
            assert (session.mode, session.grant, session.poll(), session.wait()) == ("unmanaged", None, None, None)
            assert asyncio.run(session.changed()) is None
            session.progress(4)
            assert session.apply(session.grant)
        assert list(dromlib.malleable(range(3), [pool])) == [0, 1, 2]
        assert (pool.seen, pool.asked) == ([], 0)

    @pytest.mark.usefixtures("no_agent")
    def test_a_program_says_nothing_of_it(self) -> None:
        """Nothing is printed, unless DROM_LOG is set or the program logs: then it is one line."""
        plain = "import dromlib; dromlib.attach()"
        logs = "import logging; logging.basicConfig(level=logging.INFO); import dromlib; dromlib.attach()"

        assert [(done.stdout, done.stderr) for done in (run(plain),)] == [("", "")]
        assert run(plain, DROM_LOG="1").stderr.count("\n") == 1
        assert run(logs).stderr == "INFO:dromlib:No agent answers: this program runs unmanaged.\n"

    def test_a_stopped_agent_leaves_the_program_running(self, fake: FakeAgent) -> None:
        """After the agent has stopped the program keeps what it has and is unmanaged."""
        with dromlib.attach([]) as session:
            fake.retire()
            assert (session.poll(), session.mode, session.poll()) == (None, "unmanaged", None)
            assert session.grant
            assert session.grant.ncpus == 4


class TestMalleable:
    """The loop that does it all."""

    def test_items_come_through_and_grants_are_applied(self, fake: FakeAgent) -> None:
        """Each item is yielded once; a grant is applied before the next; progress counts the items done."""
        pool, seen = Recorder(), []
        for step in dromlib.malleable(range(5), [pool]):
            seen.append((step, pool.seen[-1]))
            if step == 1:
                fake.grant("0")
        assert seen == [(0, 4), (1, 4), (2, 1), (3, 1), (4, 1)]
        assert fake.progress == 5
        fake.wait_left()

    def test_the_outermost_loop_tells_its_progress(self, fake: FakeAgent) -> None:
        """One inside it tells none, until it is alone."""
        for step in dromlib.malleable(range(2), []):
            for _ in dromlib.malleable(range(5), []):
                assert fake.progress == step
        assert fake.progress == 2
        fake.wait_left()
        assert sum(dromlib.malleable(range(3), [])) == 3
        assert fake.progress == 3

    def test_leaving_the_loop_leaves_the_agent(self, fake: FakeAgent) -> None:
        """A break closes the session; the item it is in is not done."""
        for item in dromlib.malleable([1, 2, 3], []):
            if item == 2:
                break
        fake.wait_left()
        assert fake.progress == 1

    def test_an_iterator_with_a_name_is_closed(self, fake: FakeAgent) -> None:
        """After a break it has not left the agent, for it could go on."""
        items = dromlib.malleable([1, 2, 3], [])
        for _ in items:
            break
        assert fake.applied == 1
        items.close()
        fake.wait_left()


class TestAsyncio:
    """Event loops, through the agent's signals."""

    def test_a_grant_wakes_the_loop(self, fake: FakeAgent) -> None:
        """Grants come out of `async for`, while other tasks run, until the agent stops."""

        async def serve() -> list[tuple[int, ...]]:
            seen = []
            with dromlib.attach([]) as session:
                async for grant in session:
                    session.apply(grant)
                    seen.append(grant.cpus)
            return seen

        async def drive() -> list[tuple[int, ...]]:
            task = asyncio.create_task(serve())
            for cpus in ("0", "1-2", "5"):
                await asyncio.to_thread(fake.wait_attached)
                epoch = fake.grant(cpus)
                await asyncio.to_thread(fake.wait_applied, epoch)
            fake.retire()
            return await asyncio.wait_for(task, SECONDS)

        assert asyncio.run(drive())[-3:] == [(0,), (1, 2), (5,)]

    @pytest.mark.parametrize("relative", [False, True])
    def test_a_loop_hears_an_agent_behind_a_link_to_a_long_path(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, relative: bool
    ) -> None:
        """By its short name; where there is none, by looking from time to time."""
        folder = tmp_path / ("x" * 120)
        folder.mkdir()
        monkeypatch.chdir(folder)

        async def drive() -> Grant | None:
            with FakeAgent() as fake:
                if relative:
                    os.environ["DROM_RUNTIME_DIR"] = fake.folder.name
                with dromlib.attach([]) as session:
                    waiting = asyncio.create_task(session.changed())
                    await asyncio.sleep(0)
                    assert relative or session._place == (str(fake.folder), 0)
                    fake.grant("2")
                    return await asyncio.wait_for(waiting, SECONDS)

        with tempfile.TemporaryDirectory() as short:
            Path(short, "l").symlink_to(folder)
            monkeypatch.setattr(tempfile, "tempdir", str(Path(short, "l")))
            grant = asyncio.run(drive())
        assert grant
        assert grant.cpus == (2,)

    def test_a_signal_is_enough(self, fake: FakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
        """Once subscribed, the loop does not look by itself to hear of a grant."""
        from dromlib import events
        from dromlib.subscription import Subscription

        heard: list[bytes] = []
        receive = Subscription.receive

        def listen(subscription: Subscription) -> bytes | None:
            if message := receive(subscription):
                heard.append(message)
            return message

        async def drive() -> None:
            with dromlib.attach([]) as session:
                waiting = asyncio.create_task(session.changed())
                await asyncio.sleep(0)
                assert session._listener
                while not heard:  # by whoever reads
                    fake._signal("nothing")
                    await asyncio.sleep(0.001)
                session._listener._look = 1e6
                session._listener._wake()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                fake.grant("3")
                grant = await asyncio.wait_for(waiting, SECONDS)
                assert grant
                assert grant.cpus == (3,)

        monkeypatch.setattr(events, "LAST_LOOK", 1e6)
        monkeypatch.setattr(Subscription, "receive", listen)
        asyncio.run(drive())

    def test_a_lost_signal_is_made_up_for(self, fake: FakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without any signal the slot is read again after a while."""
        monkeypatch.setattr(FakeAgent, "_signal", lambda *_, **__: None)

        async def drive() -> None:
            with dromlib.attach([]) as session:
                waiting = asyncio.create_task(session.changed())
                await asyncio.sleep(0)
                fake.grant("3")
                assert await asyncio.wait_for(waiting, SECONDS)

        asyncio.run(drive())

    def test_closing_ends_the_waiting(self, fake: FakeAgent) -> None:
        """A task that waits gets None when another closes the session."""

        async def drive() -> None:
            session = dromlib.attach([])
            waiting = asyncio.create_task(session.changed())
            await asyncio.sleep(0.01)
            session.close()
            assert await asyncio.wait_for(waiting, SECONDS) is None

        asyncio.run(drive())
        fake.wait_left()

    def test_a_loop_may_be_closed_before_the_session(self, fake: FakeAgent) -> None:
        """A task that nobody cancelled does not stand in the way of `close`, which ends the subscription."""
        loop = asyncio.new_event_loop()
        session = dromlib.attach([])
        waiting = loop.create_task(session.changed())
        loop.run_until_complete(asyncio.sleep(0.01))
        listener = session._listener
        assert listener
        loop.close()
        session.close()
        fake.wait_left()

        assert (session._listener, listener._subscription) == (None, None)
        waiting._log_destroy_pending = False  # type: ignore[attr-defined]

    def test_another_loop_goes_on_where_one_was_closed(self, fake: FakeAgent) -> None:
        """A task that a closed loop has left behind keeps no other one from waiting, nor undoes it when it ends."""
        with dromlib.attach([]) as session:
            left = session.changed()
            loop = asyncio.new_event_loop()
            waiting = loop.create_task(left)
            loop.run_until_complete(asyncio.sleep(0.01))
            loop.close()

            async def drive() -> None:
                again = asyncio.create_task(session.changed())
                await asyncio.sleep(0.01)
                left.close()
                epoch = fake.grant("0")
                grant = await asyncio.wait_for(again, SECONDS)
                assert grant
                assert grant.epoch == epoch

            asyncio.run(drive())
        waiting._log_destroy_pending = False  # type: ignore[attr-defined]

    def test_the_loop_goes_on_while_an_agent_lets_the_program_wait(self, fake: FakeAgent) -> None:
        """A knock at the next agent is waited for in another thread, by one task after the other."""

        async def drive() -> None:
            with dromlib.attach([]) as session:
                fake.retire()
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
                    door.bind(str(fake.folder / "door"))
                    door.listen()
                    with pytest.raises(asyncio.TimeoutError):
                        await asyncio.wait_for(session.changed(), 0.1)
                    again = asyncio.create_task(session.changed())
                    await asyncio.sleep(0.01)
                    assert not again.done()
                    door.accept()[0].close()
                    assert await asyncio.wait_for(again, SECONDS) is None

        started = time.monotonic()
        asyncio.run(drive())
        assert time.monotonic() - started < 20

    def test_a_loop_that_ends_leaves_the_next_agent_to_another(self, fake: FakeAgent) -> None:
        """A knock that no loop has seen answered does not stand in the way of the next one, nor hold up an end."""
        session = dromlib.attach([])
        fake.retire()

        async def wait() -> None:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(session.changed(), 0.05)

        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
            door.bind(str(fake.folder / "door"))
            door.listen()
            started = time.monotonic()
            asyncio.run(wait())
            asyncio.run(wait())
            assert time.monotonic() - started < 20
            door.accept()[0].close()
        assert asyncio.run(asyncio.wait_for(session.changed(), SECONDS)) is None

    def test_one_task_waits(self, fake: FakeAgent) -> None:
        """A second task is told so; a cancelled one leaves the place to the next."""

        async def drive() -> None:
            with dromlib.attach([]) as session:
                first = asyncio.create_task(session.changed())
                await asyncio.sleep(0.01)
                with pytest.raises(RuntimeError, match="Another task waits"):
                    await session.changed()
                first.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await first
                fake.grant("1")
                assert await asyncio.wait_for(session.changed(), SECONDS)

        asyncio.run(drive())


class TestImport:
    """What `import dromlib` costs."""

    @pytest.mark.parametrize("code", ["import dromlib", "import dromlib; dromlib.attach; dromlib.malleable"])
    def test_the_import_loads_nothing_heavy(self, code: str) -> None:
        """Neither numpy nor zmq, nor anything of the standard library that is slow to import."""
        heavy = ("numpy", "zmq", "psutil", "threadpoolctl", "asyncio", "typing", "dataclasses", "ctypes", "logging")
        done = run(f"import sys; before = set(sys.modules); {code}; print({{*{heavy}}} & ({{*sys.modules}} - before))")
        assert (done.stdout, done.stderr) == ("set()\n", "")

    def test_names_are_found(self) -> None:
        """Every public name is there and listed; another is an AttributeError."""
        assert {*dromlib.__all__} <= {*dir(dromlib)}
        assert all(getattr(dromlib, name) for name in dromlib.__all__)
        with pytest.raises(AttributeError, match="module 'dromlib' has no attribute 'nosuch'"):
            _ = dromlib.nosuch


def test_a_grant_taken_before_the_end_changes_nothing_after_it() -> None:
    """`apply` of a closed session binds nothing."""
    code = """
import dromlib, os
before = os.sched_getaffinity(0)
session = dromlib.attach([])
granted = os.sched_getaffinity(0)
session.close()
os.sched_setaffinity(0, before)
print(session.apply(session.grant), len(granted), os.sched_getaffinity(0) == before)
"""
    with FakeAgent(str(min(os.sched_getaffinity(0))), binds=True):
        done = run(code)

    assert (done.stdout, done.stderr) == ("True 1 True\n", "")


def test_a_grant_of_an_agent_that_has_stopped_changes_nothing() -> None:
    """The agent has given the threads back: what was its grant binds and sizes nothing any more."""
    code = """
import dromlib, os
from dromlib.testing import FakeAgent
class Pool:
    def available(self): return True
    def limit(self): return None
    def apply(self, grant): print("sized")
before = os.sched_getaffinity(0)
with FakeAgent(str(min(before)), binds=True) as fake:
    session = dromlib.attach([Pool()])
    fake.retire()
    session.poll()
    os.sched_setaffinity(0, before)
    print(session.apply(session.grant), session.mode, os.sched_getaffinity(0) == before)
"""
    done = run(code)

    assert (done.stdout, done.stderr) == ("sized\nTrue unmanaged True\n", "")
