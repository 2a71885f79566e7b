# SPDX-License-Identifier: Apache-2.0
"""kill -9 of an agent before any line of its part in a cluster: no job is lost, and none is started twice.

Agents are killed before the n-th line of agent/execution that they execute, counted from their birth, so that the
points are in taking up what the last one left as well as in starting, resizing, ending and forgetting jobs. Jobs go on
over as many agents as it takes. The scheduler is a stand-in that says again whatever has had no answer, as a real one
does.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent import execution
from drom.agent.config.options import Options
from drom.agent.config.sources import Sources
from drom.agent.execution.protocol import Ended, Forget, Hello, Refused, Resize, Resized, Signal, Started

from tests.support.agents import SECONDS, lives
from tests.support.fake_scheduler import FakeScheduler, start, start_scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.context import ForkServerProcess
    from types import FrameType

pytestmark = pytest.mark.system
LINES = 700
"""More than an agent executes from its birth until it has done with a job."""
SCRIPT = 'echo "$DROM_JOB_ID" >> ran; until test -e "go$DROM_JOB_ID"; do sleep 0.01; done'

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "drom.agent.daemon.startup",
        "drom.agent.daemon.daemon",
        "drom.agent.placement.kernel.background",
        "drom.agent.execution.executor",
        "zmq",
    ]
)


def _be_agent(options: Options, log_file: Path, line: int) -> None:
    """Be an agent that is killed before it executes the n-th line of agent/execution."""
    from drom.agent.daemon import startup

    os.environ["NUMBA_DISABLE_JIT"] = "1"
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    folder, left = str(Path(str(execution.__file__)).parent), line

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        nonlocal left
        if event == "call":
            return trace if frame.f_code.co_filename.startswith(folder) else None
        left -= event == "line"
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    startup.main(str(startup.describe(options, Sources())))


class Stage:
    """A node whose agents die, and a scheduler that gives it jobs, one after the other."""

    def __init__(self, folder: Path, scheduler: FakeScheduler) -> None:
        self.folder = folder
        self.scheduler = scheduler
        self.agent: ForkServerProcess | None = None
        self.known: dict[int, str] = {}
        self.job = 0
        self.step = ""

    def next_agent(self, line: int) -> None:
        """Let the next agent begin."""
        run, machine = str(self.folder / "run"), "pack:1 core:4"
        options = Options(runtime_dir=run, scheduler=self.scheduler.address, node="n1", emulate=machine)
        self.agent = _context.Process(target=_be_agent, args=(options, self.folder / "log", line), daemon=True)
        self.agent.start()

    def submit(self) -> None:
        """Give the node another job."""
        self.job += 1
        self.step = "start"
        self.say()

    def say(self) -> None:
        """Order what is next for the job."""
        if "n1" not in self.scheduler.names or not self.job:
            return
        orders: dict[str, Any] = {
            "start": start(self.job, "sh", "-c", SCRIPT, cwd=str(self.folder), output="out%j", most=4),
            "resize": Resize(self.job, 1, 3, 3600.0),
            "forget": Forget(self.job, 1),
        }
        if self.step in orders:
            self.scheduler.say("n1", orders[self.step])

    def hear(self, message: object) -> None:
        """Go on to what comes after a message."""
        if isinstance(message, Hello):
            self.known = {one.job: one.state for one in message.jobs}
            assert set(self.known) <= {self.job}, "a forgotten job comes back"
            if self.step in ("resize", "go"):
                assert self.job in self.known, "a job that runs is lost"
            if self.step == "forget" and self.job not in self.known:
                self.step = "over"
            self.say()
        elif isinstance(message, Started) and self.step == "start":
            self.step = "resize"
            self.say()
        elif isinstance(message, Resized) and self.step == "resize":
            assert message.cores == 3
            self.step = "go"
            (self.folder / f"go{self.job}").touch()
        elif isinstance(message, Ended):
            assert (message.status, message.note) == (0, ""), message
            assert self.step in ("go", "forget")
            self.step = "forget"
            self.say()
        assert not isinstance(message, Refused), message

    def play(self) -> bool:
        """Go on until the job is over or the agent is dead; say whether the agent lives."""
        assert self.agent
        while self.step != "over":
            if not self.scheduler.serve(0.02) and self.agent.exitcode is not None:
                assert self.agent.exitcode == -signal.SIGKILL, (self.folder / "log").read_text()
                return False
            heard, self.scheduler.heard = self.scheduler.heard, []
            for message in heard:
                self.hear(message)
            folder = self.folder / "run" / "steward" / f"{self.job}.1"
            if self.step == "forget" and not folder.exists() and self.agent.exitcode is None:
                self.step = "over"
        return True


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Return a stage; nothing of it is left at the end."""
    with start_scheduler(tmp_path) as scheduler:
        found = Stage(tmp_path, scheduler)
        yield found
        assert found.agent
        found.agent.terminate()
        found.agent.join(SECONDS)
        assert found.agent.exitcode == 0
        left = {path.name for path in (tmp_path / "run").iterdir()}
        assert "lock" in left <= {"lock", "events", "events.1"}, left
        log = (tmp_path / "log").read_text(encoding="utf-8")
        assert "Traceback" not in log, log


def kill_at(stage: Stage, lines: range) -> None:
    """Kill agents before each of these lines, and then let one live; every job runs once."""
    for line in lines:
        if stage.step in ("", "over"):
            stage.submit()
        stage.next_agent(line)
        if stage.play():
            assert stage.agent
            stage.agent.kill()
            stage.agent.join()
    stage.next_agent(0)
    assert stage.play()
    ran = (stage.folder / "ran").read_text(encoding="utf-8").split()
    assert ran == [str(job) for job in range(1, stage.job + 1)]


def test_some_kills_of_agents_lose_no_job(stage: Stage) -> None:
    """At a dozen points, every job runs once and is known to have ended."""
    kill_at(stage, range(40, LINES, LINES // 12))


@pytest.mark.crash
@pytest.mark.timeout(3600)
def test_no_kill_of_an_agent_loses_a_job(stage: Stage) -> None:
    """At every point, every job runs once and is known to have ended."""
    kill_at(stage, range(1, LINES))


def test_the_kill_of_a_drom_step_ends_its_job(stage: Stage) -> None:
    """What it has started is killed, daemons too; that nobody knows how the job ended is told."""
    stage.next_agent(0)
    scheduler, folder = stage.scheduler, stage.folder
    scheduler.hear(Hello)
    script = "setsid sleep inf & echo $! > pid; wait"
    scheduler.say("n1", start(9, "sh", "-c", script, cwd=str(folder), cores=4, most=4))
    program = scheduler.hear(Started).pid
    while not (folder / "pid").exists() or not (folder / "pid").read_text():
        scheduler.serve(0.01)
    os.kill(int((folder / "run" / "steward" / "9.1" / "pid").read_text().split()[0]), signal.SIGKILL)

    ended = scheduler.hear(Ended, job=9)

    assert (ended.status, ended.note.startswith("its supervisor on the node was killed")) == (-9, True)
    assert not lives(program)
    assert not lives(int((folder / "pid").read_text()))
    scheduler.say("n1", start(10, "true", cores=4, most=4))
    assert scheduler.hear(Ended, job=10).status == 0
    scheduler.say("n1", Signal(10, 1, 9))
    for job in (9, 10):
        scheduler.say("n1", Forget(job, 1))
    while list((folder / "run" / "steward").iterdir()):
        scheduler.serve(0.01)
