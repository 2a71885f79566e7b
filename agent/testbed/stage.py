# SPDX-License-Identifier: Apache-2.0
"""The setting of the demonstration: an agent in a directory of its own, programs under it, one place to wait for all.

Nothing here waits for a fixed time; each wait is for a condition, with a deadline that only a broken machine reaches.
All that was started is ended and removed in any case.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import zmq
from drom.agent import errors
from drom.agent.control import client, messages
from drom.agent.testbed.agent_process import AgentProcess, clean_environment, command_of, end

from dromlib import native, signals
from dromlib.errors import DromError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 120.0
"""Seconds a step may take beyond its own time, on a busy machine."""
START_PATIENCE = 900.0
"""Seconds the agent may take to start and, the first time on a machine, to compile the distribution kernel."""
LOOK = 0.05
"""Seconds between two checks of a condition that nothing signals."""
GRACE = "10"
"""Seconds until the agent binds a program itself: on a busy machine it may not get to run within the usual 1."""
LEFT_BY_AGENTS = {"events", "lock", "registry"}
"""Files that a stopped agent leaves in its runtime directory for the next one."""


def _descendants() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


class DemoError(DromError):
    """Raised when the demonstration cannot continue; the message is a sentence."""


@dataclass(slots=True)
class Program:
    """A program that was started; `launched` and `ended` are times as of `time.time`."""

    name: str
    process: subprocess.Popen[str]
    launched: float
    pidfd: int
    ended: float | None = None


class Stage:
    """A runtime directory with an agent and the programs started there; `hear` is called with each event."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="drom-demo-"))
        self.runtime_dir = self.folder / "run"
        self.port = 0
        self.programs: dict[str, Program] = {}
        self.hear: Callable[[dict[str, Any]], None] = lambda _event: None
        self._before = _descendants()
        self._agent: AgentProcess | None = None
        self._context = zmq.Context()
        self._signals: zmq.Socket[bytes] = self._context.socket(zmq.SUB)
        self._poller = zmq.Poller()

    # --- the agent ---

    def start_agent(self, words: str | None, patient: Callable[[float], None]) -> None:
        """Start an agent with the topology `words` (None: the real one); wait until it is ready. Raises `DemoError`."""
        options = ["--runtime-dir", os.fspath(self.runtime_dir), "--metrics", "127.0.0.1:0", "--grace", GRACE]
        options += ["--topology", words] if words else []
        self._agent = agent = AgentProcess(command_of("agent", *options), self.folder / "log", clean_environment())

        def show(seconds: float) -> None:
            if agent.compiles():
                patient(seconds)

        if not agent.await_ready(START_PATIENCE, show, compiled=True):
            if agent.ended():
                raise self._agent_failed()
            raise DemoError(f"the agent was not ready after {START_PATIENCE:.0f} s: is this machine very busy?")
        self.port = agent.metrics_port()
        self._listen()

    def _listen(self) -> None:
        self._signals.setsockopt(zmq.SUBSCRIBE, b"")
        self._signals.connect(messages.endpoint(self.runtime_dir, "signals"))
        self._rehearse()
        self._poller.register(self._signals, zmq.POLLIN)

    def _rehearse(self) -> None:
        """Run ``true`` until a signal about it arrives: a subscription does not report when it is in effect."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            nothing = subprocess.run(
                [*self._launcher("rehearsal"), "true"], check=False, capture_output=True, text=True
            )
            if nothing.returncode:
                raise DemoError(f"drom run -- true failed: {nothing.stderr.strip().removeprefix('drom: ')}")
            if self._signals.poll(int(1000 * LOOK)):
                self.wait_until(lambda: not self.tasks(), "the rehearsal to end")
                return
        raise DemoError(f"no signal of the agent was heard for {PATIENCE:.0f} s; {self._last_seen()}")

    def _launcher(self, job: str) -> list[str]:
        launcher, folder = os.fspath(native.run_path()), os.fspath(self.runtime_dir)
        return [launcher, "--runtime-dir", folder, "--require", "--job", job, "--"]

    def _agent_failed(self) -> DemoError:
        return DemoError(f"the agent ended too early: {self._last_words()}")

    def _last_words(self) -> str:
        return self._agent.last_words() if self._agent else "nothing"

    def stop_agent(self) -> list[str]:
        """Stop the agent; return sentences on what it or the programs left behind."""
        status = self._agent.stop(PATIENCE) if self._agent else 0
        problems = [f"the agent ended with status {status}: {self._last_words()}"] if status else []
        if status is None:
            problems.append(f"the agent did not stop within {PATIENCE:.0f} s.")
        if files := {entry.name for entry in self.runtime_dir.iterdir()} - LEFT_BY_AGENTS:
            problems.append(f"the agent left {', '.join(sorted(files))} in its runtime directory.")
        if left := _descendants() - self._before:
            problems.append(f"processes are left: {', '.join(map(str, sorted(left)))}.")
        return problems

    def tasks(self) -> dict[str, dict[str, Any]]:
        """Return the rows of `drom ps` by job."""
        return {row["job"]: row for row in client.order(self.runtime_dir, "ps")["tasks"]}

    def scrape(self) -> list[str]:
        """Return the lines that Prometheus would read now."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode().splitlines()
        finally:
            connection.close()

    # --- the programs ---

    def launch(self, name: str, *arguments: str) -> Program:
        """Start an example through ``drom run``."""
        launched = time.time()
        process = subprocess.Popen(
            [*self._launcher(name), os.fspath(native.example_path(name)), *arguments],
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        program = self.programs[name] = Program(name, process, launched, os.pidfd_open(process.pid))
        self._poller.register(program.pidfd, zmq.POLLIN)
        return program

    def said(self, name: str) -> tuple[str, int]:
        """Return the first own line of a program that has ended (all its output if it has none) and its exit status."""
        process = self.programs[name].process
        lines = process.communicate(timeout=PATIENCE)[0].splitlines()
        own = [line for line in lines if line.startswith(f"{name}: ")]
        return own[0] if own else " ".join(lines) or f"{name} said nothing", process.returncode

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = 0.0) -> None:
        """Handle events until `condition` holds, for at most `seconds` plus `PATIENCE`. Raises `DemoError`."""
        deadline = time.monotonic() + seconds + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise DemoError(f"gave up waiting for {what}; {self._last_seen()}")
            ready = {entry for entry, _ in self._poller.poll(int(1000 * LOOK))}
            self._deal_with(ready)

    def _deal_with(self, ready: set[Any]) -> None:
        for program in self.programs.values():
            if program.pidfd in ready and program.ended is None:
                program.ended = time.time()
                self._poller.unregister(program.pidfd)
        while self._signals.poll(0):
            event = signals.event(self._signals.recv())
            if event["job"] in self.programs:  # not of the rehearsal
                self.hear(event)
        if self._agent and self._agent.ended():
            raise self._agent_failed()

    def _last_seen(self) -> str:
        try:
            rows = [f"{job} {row['state']} on {row['granted'] or 'nothing'}" for job, row in self.tasks().items()]
        except errors.ControlError as error:
            rows = [str(error)]
        return f"last seen: {', '.join(rows) or 'no task'}; the agent's last words: {self._last_words()}"

    def close(self) -> None:
        """End the programs and the agent, and remove the folder."""
        for program in self.programs.values():
            end(program.process)
            os.close(program.pidfd)
        if self._agent:
            self._agent.close()
        self._context.destroy(linger=0)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def opened() -> Iterator[Stage]:
    """Yield a stage and remove it in any case; SIGTERM ends the demonstration as Ctrl-C does."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    old = signal.signal(signal.SIGTERM, leave)
    stage = Stage()
    try:
        yield stage
    finally:
        # A second Ctrl-C must not interrupt the removal.
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        stage.close()
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, old)
