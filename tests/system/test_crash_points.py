"""kill -9 at systematic points: of the agent in every transition, and of a program from its launch on.

State accumulates: each point goes on in the directory that the kills before it have left. After each the registry is
checked, a new agent adopts what there is, a fresh job gets its cores, and a program from the beginning follows orders.

Points are the system calls of the agent's main thread that change something others see (strace kills at their
entry), and the stores into the mapped registry, which are no system calls.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zmq
from drom.agent.config.options import Options
from drom.agent.config.sources import Sources
from drom.agent.control.messages import endpoint

from dromlib.layout import HEADER
from tests.support import checker
from tests.support.agents import Agent, Program, Programs, affinity, assert_clean, lives, programs, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerProcess
    from types import FrameType

pytestmark = [
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace"),
    pytest.mark.timeout(3600),
]
Point = tuple[str, int]
"""The n-th call of this name, or the n-th "store"."""
OBSERVERS = (
    "pread64,getdents64,lseek,fstat,newfstatat,statx,readlink,ioctl,sched_getaffinity,getpid,gettid,getuid,geteuid,"
    "clock_gettime,mmap,munmap,mprotect,brk,madvise,getsockopt,getsockname,rt_sigaction,rt_sigprocmask,getrandom,uname,"
    "sysinfo,restart_syscall"
)
"""Calls that change nothing others can see: what is true at their entry is true at the entry of the next other call."""
ON_FILES = ("openat", "read", "close")
"""Calls that are points only where they concern the runtime directory or a socket; `strace -y` names the files."""
LOOPS = ("poll", "epoll_wait")
MOST = 60

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "drom.agent.daemon.startup",
        "drom.agent.daemon.daemon",
        "drom.agent.placement.kernel.background",
        "drom.agent.placement.kernel.search",
        "drom.agent.topology.sysfs",
        "drom.agent.topology.synthetic",
        "zmq",
        "numpy",
    ]
)


def _stores() -> set[tuple[str, int]]:
    """Return file and number of the lines that store into the mapped registry."""
    from drom.agent.ipc import registry

    from dromlib import layout

    patterns = {
        registry.__file__: r"self\.memory\[.*\] = |self\._publish\(",
        layout.__file__: r"buffer\[.*\] = struct\.pack\(",
    }
    found = set()
    for file, pattern in patterns.items():
        lines = Path(file).read_text(encoding="utf-8").splitlines()
        found |= {(file, number) for number, line in enumerate(lines, 1) if re.search(pattern, line)}
    assert len(found) >= 4
    return found


def _kill_at_store(number: int, armed: Path) -> None:
    """Kill this process before the `number`-th store into the registry once the file `armed` exists.

    The heartbeat, which depends on time, is not counted.
    """
    stores = _stores()
    files = {file for file, _ in stores}
    left = number

    def line(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal left
        if event == "line" and (frame.f_code.co_filename, frame.f_lineno) in stores and armed.exists():
            caller = frame.f_back
            left -= caller is None or caller.f_code.co_name != "beat"
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return line

    def call(frame: FrameType, _event: str, _argument: object) -> Any:
        return line if frame.f_code.co_filename in files else None

    sys.settrace(call)


def _move_first_thread(file: Path) -> None:
    """Have the agent once move the first thread of a task that it watches if the file exists; then remove the file.

    Otherwise it moves a thread if the kernel has put it beside another one, by chance.
    """
    from drom.agent.enforcement import spread

    plan = spread.planned_migrations
    is_moved = False

    def planned(crowded: Any, now: Any, granted: Any) -> dict[int, int]:
        nonlocal is_moved
        if not file.exists():
            return plan(crowded, now, granted)
        if is_moved:
            file.unlink()
        is_moved = not is_moved
        return {min(now): min(granted)} if is_moved else {}

    spread.planned_migrations = planned


def _agent_main(go: Connection, runtime_dir: Path, log_file: Path, store: int) -> None:
    """Be an agent of two cores in this forked process, as what `drom agent` becomes once it has read its options."""
    from drom.agent.daemon import startup

    os.environ["NUMBA_DISABLE_JIT"] = "1"
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    go.recv()
    go.close()
    if store:
        _kill_at_store(store, runtime_dir.with_name("armed"))
    _move_first_thread(runtime_dir.with_name("crowded"))
    options = Options(runtime_dir=str(runtime_dir), topology="pack:2 core:1", grace=0.5, ignore_slurm=True)
    startup.main(str(startup.describe(options, Sources())))


@dataclass
class Forked:
    """A forked process with the methods of `subprocess.Popen`."""

    process: ForkServerProcess

    @property
    def pid(self) -> int:
        """The pid."""
        assert self.process.pid
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or None while it runs."""
        return self.process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("agent", timeout or 0)
        return self.process.exitcode

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()


@dataclass
class Stage:
    """A runtime directory, its present agent, and a program `old` that was there from the beginning."""

    dir: Path
    program: Path
    started: Programs
    forked: Agent | None = None
    old: Program | None = None
    points: int = 0
    straces: list[subprocess.Popen[str]] = field(default_factory=list)

    # --- the agent

    def fork_agent(self, store: int = 0) -> Callable[[], None]:
        """Make the process of the next agent; return what lets it go."""
        ours, theirs = _context.Pipe()
        log_file = self.dir.with_name("log")
        process = _context.Process(target=_agent_main, args=(theirs, self.dir, log_file, store), daemon=True)
        process.start()
        theirs.close()
        log_file.touch()
        self.forked = Agent(self.dir, log_file, Forked(process))

        def go() -> None:
            ours.send("go")
            ours.close()

        return go

    def start_agent(self, store: int = 0) -> None:
        """Start an agent and wait until it is ready."""
        self.fork_agent(store)()
        self.agent.await_log("event=ready")

    @property
    def agent(self) -> Agent:
        """The present agent, or the last one."""
        assert self.forked
        return self.forked

    @property
    def dead(self) -> bool:
        """Whether the agent has ended."""
        return self.forked is None or self.forked.process.poll() is not None

    def strace(self, pid: int, point: Point | None) -> None:
        """Kill the thread's process at the entry of a call, or list its calls; return once that is set."""
        command = ["strace", "-y", "-p", str(pid), "-o", str(self.dir.with_name("calls"))]
        if point:
            command += ["-e", f"trace={point[0]}", "-e", f"inject={point[0]}:signal=KILL:when={point[1]}"]
        else:
            command += ["-e", f"trace=!{OBSERVERS}"]
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.straces.append(tracer)
        assert tracer.stderr
        line = tracer.stderr.readline()
        if "attached" not in line:
            tracer.wait()
            pytest.skip(f"strace may not attach here: {line.strip()}")

    def end_straces(self) -> None:
        """End the tracers; what they traced runs on."""
        for tracer in self.straces:
            tracer.terminate()
            tracer.communicate()
        self.straces.clear()

    def disarm(self) -> bool:
        """Take the danger away; say whether the agent has been killed. One that was not lives through another turn."""
        self.end_straces()
        self.dir.with_name("armed").unlink(missing_ok=True)
        before = self._heartbeat()
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
            door.connect(str(self.dir / "door"))
        wait_until(lambda: self.dead or self._heartbeat() != before, lambda: "the agent neither turns nor ends")
        return self.agent.process.poll() == -signal.SIGKILL

    def _heartbeat(self) -> int:
        try:
            with (self.dir / "registry").open("rb") as file:
                return HEADER.read(file.read(HEADER.size), "heartbeat_ns")
        except FileNotFoundError:
            return 0

    # --- looking, with the registry alone

    def slots(self) -> dict[str, checker.Slot]:
        """Return the used slots by job."""
        reading = checker.read(self.dir)
        return {slot.job: slot for slot in reading.slots} if reading else {}

    def jobs_are(self, **wanted: int) -> bool:
        """Say whether exactly these jobs hold so many CPUs each, settled, without anything pending."""
        slots = self.slots()
        if slots.keys() != wanted.keys():
            return False
        return all(slots[job].settled and slots[job].held.bit_count() == n for job, n in wanted.items())

    def await_jobs(self, **wanted: int) -> None:
        """Wait for `jobs_are`."""

        def there() -> bool:
            assert not self.dead, self.agent.log
            return self.jobs_are(**wanted)

        wait_until(there, lambda: f"wanted {wanted}, last seen {self.slots()}\n{self.agent.log}")

    # --- acting

    def order(self, **fields: Any) -> None:
        """Send an order, and wait for the answer unless the agent dies of it: it heeds nobody who has hung up."""
        with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
            sock.setsockopt(zmq.LINGER, 0)
            sock.connect(endpoint(self.dir, "control"))
            sock.send(json.dumps({"protocol": 1, **fields}).encode())
            wait_until(lambda: sock.poll(10) or self.dead, lambda: self.agent.log)

    def launch(self, job: str, *options: str) -> Program:
        """Launch the program under test as a job."""
        from dromlib import native

        return self.started.start(
            native.run_path(), "--runtime-dir", self.dir, "--job", job, "--", self.program, *options
        )

    def launch_outside(self) -> Program:
        """Start the program under test without a launcher; it knows of no agent."""
        guest = self.started.start(self.program, "--outside")
        guest.await_out("^runs")
        return guest

    def settle(self) -> None:
        """Have an agent that runs, and `old` alone and with both cores."""
        if self.dead:
            self.start_agent()
        for program in self.started.started:
            if program is not self.old:
                program.kill()
        self.started.started = [self.old] if self.old else []
        wait_until(lambda: self.slots().keys() <= {"old"}, self.slots)
        if "old" not in self.slots():
            # A stop that went through has let it go.
            if self.old:
                assert self.old.process.poll() is None, self.old.show()
                self.old.kill()
            self.started.started.clear()
            self.old = self.launch("old")
            self.old.await_out("^applied")
        self.order(order="resize", job="old", cpus=None)
        self.await_jobs(old=2)

    def verify(self) -> None:
        """Check what the kill has left, have a new agent adopt it, and see that work goes on."""
        assert self.old
        os.kill(self.old.pid, signal.SIGCONT)
        found = checker.check(self.dir, proc=False)
        assert not found, "\n".join(found)
        if self.dead:
            assert "Traceback" not in self.agent.log, self.agent.log
            self.start_agent()
            assert_clean(self.dir)
            self.assert_restored()
        self.settle()
        fresh = self.launch("fresh")
        fresh.await_out("^applied")
        self.await_jobs(old=1, fresh=1)
        assert_clean(self.dir)
        applied = len(self.old.applied())
        assert fresh.quit() == 0
        self.await_jobs(old=2)
        wait_until(lambda: len(self.old.applied()) > applied if self.old else False, self.old.show)
        self.order(order="resize", job="old", cpus=1)
        self.await_jobs(old=1)
        assert self.old.process.poll() is None, self.old.show()
        assert_clean(self.dir)

    def assert_restored(self) -> None:
        """Wait until what no agent manages runs where it did before."""

        def astray() -> list[int]:
            managed = {slot.who[0] for slot in self.slots().values()}
            mine = affinity(os.getpid())
            pids = [program.pid for program in self.started.started if lives(program.pid)]
            return [pid for pid in pids if pid not in managed and affinity(pid) != mine]

        wait_until(lambda: not astray(), lambda: f"{astray()} were not restored; {self.slots()}\n{self.agent.log}")


Act = tuple["Callable[[Stage], None]", "Callable[[Stage], bool]"]


def _arrive(_stage: Stage) -> Act:
    return (lambda s: void(s.launch("guest"))), (lambda s: s.jobs_are(old=1, guest=1) and has_responder(s, "guest"))


def _responder(stage: Stage) -> Act:
    guest = stage.launch("guest", "--outside")
    guest.await_out("^runs")
    stage.await_jobs(old=1, guest=1)
    return (lambda _: guest.tell("a")), (lambda s: has_responder(s, "guest"))


def _responder_leaves(stage: Stage) -> Act:
    guest = stage.launch("guest")
    wait_until(lambda: has_responder(stage, "guest"), stage.slots)
    stage.await_jobs(old=1, guest=1)
    return (lambda _: guest.tell("d")), (lambda s: not has_responder(s, "guest"))


def _grant(_stage: Stage) -> Act:
    return (lambda s: s.order(order="resize", job="old", cpus=1)), (lambda s: s.jobs_are(old=1))


def _apply(stage: Stage) -> Act:
    assert stage.old
    old = stage.old
    os.kill(old.pid, signal.SIGSTOP)
    stage.order(order="resize", job="old", cpus=1)
    wait_until(lambda: stage.slots()["old"].grant.bit_count() == 1, stage.slots)
    return (lambda _: os.kill(old.pid, signal.SIGCONT)), (lambda s: s.jobs_are(old=1))


def _enforce(stage: Stage) -> Act:
    assert stage.old
    os.kill(stage.old.pid, signal.SIGSTOP)
    return (lambda s: s.order(order="resize", job="old", cpus=1)), (lambda s: s.jobs_are(old=1))


def _die(stage: Stage) -> Act:
    guest = stage.launch("guest")
    guest.await_out("^applied")
    stage.await_jobs(old=1, guest=1)
    return (lambda _: guest.kill()), (lambda s: s.jobs_are(old=2))


def _wait_and_start(stage: Stage) -> Act:
    stage.order(order="resize", job="old", cpus=2)
    guest = stage.launch("guest", "--outside")
    guest.await_err("waiting")
    return (lambda s: s.order(order="resize", job="old", cpus=1)), (lambda s: s.jobs_are(old=1, guest=1))


def _attach(stage: Stage) -> Act:
    guest = stage.launch_outside()
    return (lambda s: s.order(order="attach", pid=guest.pid, job="guest")), (lambda s: s.jobs_are(old=1, guest=1))


def _release(stage: Stage) -> Act:
    guest = stage.launch_outside()
    stage.order(order="attach", pid=guest.pid, job="guest")
    stage.await_jobs(old=1, guest=1)
    return (lambda s: s.order(order="release", job="guest")), (lambda s: s.jobs_are(old=2))


def _expire(stage: Stage) -> Act:
    epoch = stage.slots()["old"].epoch
    return (
        lambda s: s.order(order="resize", job="old", cpus=1, **{"for": 0.05}),
        lambda s: s.jobs_are(old=2) and s.slots()["old"].epoch >= epoch + 2,
    )


def _spread(stage: Stage) -> Act:
    stage.order(order="resize", job="old", cpus=1)
    stage.await_jobs(old=1)
    crowded = stage.dir.with_name("crowded")
    crowded.touch()
    return (lambda s: s.order(order="resize", job="old", cpus=None)), (
        lambda s: s.jobs_are(old=2) and not crowded.exists()
    )


def _stop(stage: Stage) -> Act:
    guest = stage.launch("guest", "--outside")
    guest.await_out("^runs")
    stage.await_jobs(old=1, guest=1)
    pid = stage.agent.pid
    return (lambda _: os.kill(pid, signal.SIGTERM)), (lambda s: s.dead)


SAMPLE: dict[str, Point] = {
    "arrive": ("store", 24),
    "responder": ("sendmsg", 1),
    "responder-leaves": ("write", 1),
    "grant": ("futex", 1),
    "apply": ("store", 1),
    "enforce": ("sched_setaffinity", 1),
    "die": ("unlink", 1),
    "wait": ("store", 9),
    "attach": ("sched_setaffinity", 1),
    "release": ("sched_setaffinity", 1),
    "expire": ("futex", 1),
    "spread": ("sched_setaffinity", 2),
    "stop": ("sched_setaffinity", 1),
}


def void(_: object) -> None:
    """Do nothing with a value."""


def has_responder(stage: Stage, job: str) -> bool:
    """Return whether a job has a responder."""
    slot = stage.slots().get(job)
    return bool(slot and slot.responder[0])


TRANSITIONS: dict[str, Callable[[Stage], Act]] = {
    "arrive": _arrive,
    "responder": _responder,
    "responder-leaves": _responder_leaves,
    "grant": _grant,
    "apply": _apply,
    "enforce": _enforce,
    "die": _die,
    "wait": _wait_and_start,
    "attach": _attach,
    "release": _release,
    "expire": _expire,
    "spread": _spread,
    "stop": _stop,
}


def kill_agent_in(stage: Stage, transition: str, point: Point | None) -> bool:
    """Kill the agent at one point of a transition and verify what follows; False when it was over before that point."""
    stage.settle()
    stores = point is not None and point[0] == "store"
    if point and stores:
        stage.agent.kill()
        stage.start_agent(store=point[1])
        stage.settle()
    act, over = TRANSITIONS[transition](stage)
    if stores:
        stage.dir.with_name("armed").touch()
    else:
        stage.strace(stage.agent.pid, point)
    act(stage)
    agent = stage.agent
    wait_until(lambda: stage.dead or over(stage), lambda: f"{stage.slots()}\n{agent.log}")
    killed = stage.disarm()
    stage.points += 1
    try:
        stage.verify()
    except BaseException:
        print(f"{transition}, point {point}")
        print(stage.dir.with_name("log").read_text(encoding="utf-8")[-6000:])
        raise
    return killed


def kill_agent_at_start(stage: Stage, point: Point | None) -> bool:
    """Kill an agent while it starts and adopts a living and a dead task; False when it was ready before."""
    stage.settle()
    guest = stage.launch("guest")
    guest.await_out("^applied")
    stage.await_jobs(old=1, guest=1)
    stage.agent.kill()
    if point is None or point[1] % 2:
        guest.kill()
    go = stage.fork_agent(store=point[1] if point and point[0] == "store" else 0)
    if point and point[0] == "store":
        stage.dir.with_name("armed").touch()
    else:
        stage.strace(stage.agent.pid, point)
    go()
    agent = stage.agent
    wait_until(lambda: stage.dead or "event=ready" in agent.log, lambda: agent.log)
    killed = stage.disarm()
    stage.points += 1
    try:
        stage.verify()
    except BaseException:
        print(f"start, point {point}")
        print(stage.dir.with_name("log").read_text(encoding="utf-8")[-6000:])
        raise
    return killed


def kill_program(stage: Stage, point: Point | None) -> bool:
    """Kill a program at one system call between its launch and its second grant; False when it got there."""
    from dromlib import native

    stage.settle()
    command = ["strace", "-o", str(stage.dir.with_name("calls"))]
    if point:
        command += ["-e", f"trace={point[0]}", "-e", f"inject={point[0]}:signal=KILL:when={point[1]}"]
    launch: list[str | Path] = [native.run_path(), "--runtime-dir", stage.dir, "--job", "guest", "--", stage.program]
    guest = stage.started.start(*command, "--", *launch)
    ordered = False

    def over() -> bool:
        nonlocal ordered
        if not ordered and guest.applied() and stage.jobs_are(old=1, guest=1):
            stage.order(order="set", job="guest", cpus=guest.applied()[0])
            ordered = True
        return guest.process.poll() is not None or (ordered and len(guest.applied()) > 0)

    wait_until(over, lambda: f"{guest.show()}\n{stage.slots()}")
    survived = guest.process.poll() is None
    stage.points += 1
    guest.kill()
    stage.await_jobs(old=2)
    assert_clean(stage.dir)
    assert stage.old
    assert stage.old.process.poll() is None
    return not survived


@pytest.fixture
def stage(tmp_path: Path, program: Path) -> Iterator[Stage]:
    """A stage with an agent and `old`; all of it is gone afterwards."""
    with programs(tmp_path / "programs") as started:
        stage = Stage(tmp_path / "run", program, started)
        try:
            stage.settle()
            yield stage
            stage.settle()
            stage.agent.stop()
        finally:
            stage.end_straces()
            if stage.forked:
                stage.forked.discard()
            print(f"{stage.points} points")


def rehearse(stage: Stage, transition: str) -> list[Point]:
    """Go through a transition without a kill; return the calls of the agent's main thread, or of the program, in it.

    Of calls that come again and again, as in a loop, the first `MOST` are returned.
    """
    if transition == "program":
        kill_program(stage, None)
    elif transition == "start":
        kill_agent_at_start(stage, None)
    else:
        kill_agent_in(stage, transition, None)
    count: Counter[str] = Counter()
    points = []
    for line in stage.dir.with_name("calls").read_text(encoding="utf-8").splitlines():
        if call := re.match(r"([a-z0-9_]+)\(", line):
            count[call[1]] += 1
            elsewhere = call[1] in ON_FILES and str(stage.dir) not in line and "<socket:" not in line
            seen = transition == "program" or not (elsewhere or call[1] in LOOPS)
            if seen and count[call[1]] <= MOST:
                points.append((call[1], count[call[1]]))
    return points


@pytest.mark.crash
@pytest.mark.parametrize("transition", [*TRANSITIONS, "start"])
def test_killing_the_agent_at_every_call(stage: Stage, transition: str) -> None:
    """At whichever visible step of a transition the agent dies, nothing is held twice and the next one carries on."""
    points = rehearse(stage, transition)
    kill = kill_agent_at_start if transition == "start" else partial(_kill_in, transition)
    killed = [kill(stage, point) for point in points]
    print(f"{sum(killed)} killed at", *(f"{name}:{number}" for name, number in points))
    assert sum(killed) > len(points) // 2


def _kill_in(transition: str, stage: Stage, point: Point) -> bool:
    return kill_agent_in(stage, transition, point)


@pytest.mark.crash
@pytest.mark.parametrize("transition", [*TRANSITIONS, "start"])
def test_killing_the_agent_at_every_store(stage: Stage, transition: str) -> None:
    """Before whichever store into the registry the agent dies, nothing is held twice and the next one carries on."""
    kill = kill_agent_at_start if transition == "start" else partial(_kill_in, transition)
    missed = number = 0
    while missed < 2:
        number += 1
        missed = 0 if kill(stage, ("store", number)) else missed + 1
    assert number > 2


@pytest.mark.crash
def test_killing_a_program_at_every_call(stage: Stage) -> None:
    """At whichever system call a program dies, from drom-run's first to its second grant, its cores are free again."""
    points = rehearse(stage, "program")
    killed = [kill_program(stage, point) for point in points]
    assert sum(killed) > 100


@pytest.mark.system
def test_a_sample_of_crash_points(stage: Stage) -> None:
    """A few points of each kind, spread over the transitions."""
    for transition, point in SAMPLE.items():
        kill_agent_in(stage, transition, point)
    kill_agent_at_start(stage, ("futex", 2))
    for name in ("connect", "recvmsg", "pwrite64"):
        kill_program(stage, (name, 1))
    assert stage.points == len(SAMPLE) + 4
