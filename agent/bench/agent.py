"""Measure a real agent: its start, its memory, its CPU time when idle, and its cost for programs."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import signal
import statistics
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import psutil
from drom.agent.errors import ControlError
from drom.agent.system.paths import default_runtime_dir
from drom.agent.testbed.agent_process import AgentProcess, clean_environment, command_of

from dromlib import layout, native
from dromlib.layout import HEADER, SLOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

START_SECONDS = 300.0
"""Seconds that an agent's start may take, which may compile the placement kernel."""
PATIENCE = 20.0
"""Seconds that anything else may take."""
SLOTS = 8
"""Number of slots that are read: an agent uses the lowest free one."""
IDLE_SECONDS = 10.0
PAIRS = 50
DEATHS = 15
POLLS = (11, 1_000_000)
"""Repetitions in a run, and calls in each."""


class Agent:
    """A running agent in a directory of its own; `started_in` is the seconds from its launch to readiness."""

    def __init__(self, folder: Path, pid: int, started_in: float) -> None:
        self.folder = folder
        self.pid = pid
        self.started_in = started_in
        self.environment = {"PATH": os.environ.get("PATH", os.defpath), "DROM_RUNTIME_DIR": str(folder)}
        with (folder / "registry").open("rb") as file:
            self._memory = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        self._first = HEADER.read(self._memory, "header_size")
        self._size = HEADER.read(self._memory, "slot_size")

    def memory_mb(self) -> float:
        """Return the agent's anonymous resident memory, in millions of bytes."""
        memory = psutil.Process(self.pid).memory_info()
        return (memory.rss - memory.shared) / 1e6

    def busy_ns(self) -> int:
        """Return the CPU time of all the agent's threads, also of those that ended, in nanoseconds.

        psutil has clock ticks alone. The clock is that of clock_getcpuclockid(3), which Python has only for itself.
        """
        return time.clock_gettime_ns(~self.pid << 3 | 2)

    @contextlib.contextmanager
    def launch(self, *command: str | Path) -> Iterator[subprocess.Popen[str]]:
        """Run a command under `drom-run` for the length of a block."""
        words = [native.run_path(), "--require", "--", *command]
        with subprocess.Popen(words, env=self.environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def read(self, slot: int, field: str) -> int:
        """Return a field of a slot."""
        return SLOT.read(self._memory, field, self._first + slot * self._size)

    def epoch_word(self, pid: int) -> memoryview:
        """Return the epoch in the slot of the task with the first process `pid`, as a sequence of one number."""
        slot = next((slot for slot, first in self.pids().items() if first == pid), None)
        if slot is None:
            raise ControlError("a program of the benchmark has ended by itself: run it again.")
        return self.epoch_of(slot)

    def epoch_of(self, slot: int) -> memoryview:
        """Return the epoch of a slot, as a sequence of one number that changes with it."""
        at = self._first + slot * self._size + SLOT.fields["epoch"].offset
        return self._memory[at : at + 8].cast("Q")

    def grant(self, slot: int) -> tuple[int, int]:
        """Return the epoch and the CPUs (mask) of the newest grant in a slot."""
        epoch = self.read(slot, "epoch")
        return epoch, self._mask(slot, f"grant{epoch % 2}")

    def is_idle(self) -> bool:
        """Return whether no task is left."""
        return not self.pids()

    def has_settled(self, *pids: int) -> bool:
        """Return whether these are all the tasks, and each has applied its target."""
        return sorted(self.pids().values()) == sorted(pids) and all(map(self._has_applied, self.pids()))

    def pids(self) -> dict[int, int]:
        """Return the pid of each task by slot."""
        return {slot: self.read(slot, "pid") for slot in range(SLOTS) if self.read(slot, "in_use")}

    def _has_applied(self, slot: int) -> bool:
        epoch = self.read(slot, "epoch")
        masks = {self._mask(slot, name) for name in (f"grant{epoch % 2}", "applied", "held", "target")}
        responds = self.read(slot, "responder_pid") == self.read(slot, "pid")
        return responds and self.read(slot, "applied_epoch") == epoch and len(masks) == 1 and masks != {0}

    def _mask(self, slot: int, name: str) -> int:
        bits = HEADER.read(self._memory, "mask_bits")
        at = self._first + slot * self._size + layout.mask_offset(name, bits)
        return int.from_bytes(self._memory[at : at + bits // 8], "little")


@contextlib.contextmanager
def running_agent(*options: str) -> Iterator[Agent]:
    """Run an agent for the length of a block. Raises `ControlError` if it does not become ready."""
    with TemporaryDirectory(prefix="drom-bench-", dir=_usual_place()) as folder, agent_in(Path(folder), *options) as it:
        yield it


@contextlib.contextmanager
def agent_in(folder: Path, *options: str) -> Iterator[Agent]:
    """Run an agent, the first or a later one, with its runtime directory below a folder. Raises `ControlError`."""
    with contextlib.ExitStack() as stack:
        command, environment = command_of("agent", "--runtime-dir", str(folder / "run"), *options), clean_environment()
        begin = time.monotonic()
        process = AgentProcess(command, folder / "log", environment, folder=folder)
        stack.callback(process.close)
        if not process.await_ready(START_SECONDS):
            raise ControlError(f"the benchmark's agent does not become ready: {process.last_words()}")
        yield Agent(folder / "run", process.pid, time.monotonic() - begin)


def _usual_place() -> Path | None:
    """Return the usual folder of runtime directories, if it can be written: the file system affects the figures."""
    place = default_runtime_dir({**os.environ, "DROM_RUNTIME_DIR": ""}).parent
    return place if os.access(place, os.W_OK) else None


def await_condition(condition: Callable[[], bool], what: str) -> None:
    """Wait until the condition holds. Raises `ControlError` if it does not within `PATIENCE`."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise ControlError(f"the benchmark has waited {PATIENCE:g} seconds in vain until {what}.")
        time.sleep(0.0005)


def poll_ns(agent: Agent, repetitions: int = POLLS[0], calls: int = POLLS[1]) -> tuple[float, float]:
    """Return the nanoseconds of a `drom_poll` that finds nothing new, without and with the loop around it.

    A processor does the loop's own work in parallel to the poll's, so the true cost lies between the two.
    """
    with agent.launch(native.bench_path(), "poll", str(repetitions), str(calls)) as program:
        said, _ = program.communicate(timeout=PATIENCE)
    if program.returncode:
        raise ControlError("the polling program of the benchmark has failed: its words stand above.")
    net, gross = zip(*([float(word) for word in line.split()] for line in said.splitlines()), strict=True)
    return statistics.median(net), statistics.median(gross)


def idle_percent(agent: Agent, seconds: float = IDLE_SECONDS) -> float:
    """Return the part of one core that the agent uses when nothing happens, in per cent."""
    begin, busy = time.monotonic(), agent.busy_ns()
    time.sleep(seconds)
    return (agent.busy_ns() - busy) / (time.monotonic() - begin) / 1e7


def extra_launch_ms(agent: Agent, pairs: int = PAIRS) -> float:
    """Return the median of the extra time of `drom-run true` over `true` right before it, in milliseconds."""
    true = shutil.which("true") or "/bin/true"
    launcher = str(native.run_path())
    extra = []
    for _ in range(pairs):
        plain = _wall([true], agent.environment)
        extra.append(_wall([launcher, "--require", true], agent.environment) - plain)
        await_condition(agent.is_idle, "the agent has noticed the end of a program")
    return statistics.median(extra) * 1e3


def _wall(command: list[str], environment: dict[str, str]) -> float:
    """Return the seconds from before a command's start to after its end."""
    begin = time.monotonic()
    subprocess.run(command, env=environment, check=True)
    return time.monotonic() - begin


def regrant_ms(agent: Agent, deaths: int = DEATHS) -> float:
    """Return the median time from the kill of a program to the grant of its CPUs to another one, in milliseconds.

    The clock starts before the kill, so the kernel's work on the end of the program is included.
    """
    with agent.launch(native.bench_path(), "follow") as first:
        took = [_time_regrant(agent, first.pid) for _ in range(deaths)]
    await_condition(agent.is_idle, "the agent has noticed the end of a program")
    return statistics.median(took) * 1e3


def _time_regrant(agent: Agent, survivor: int) -> float:
    """Start a program that gets CPUs of the survivor, kill it; return the seconds until the survivor's next grant."""
    await_condition(lambda: agent.has_settled(survivor), "a program has all CPUs")
    with agent.launch(native.bench_path(), "follow") as victim:
        await_condition(lambda: agent.has_settled(survivor, victim.pid), "two programs share the CPUs")
        epoch = agent.epoch_word(survivor)
        before = epoch[0]
        begin = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        # It may need this very CPU to end: no spinning until then.
        os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)
        while epoch[0] == before:
            if time.monotonic() - begin > PATIENCE:
                raise ControlError("the benchmark's agent has not granted the CPUs of a killed program again.")
        return time.monotonic() - begin
