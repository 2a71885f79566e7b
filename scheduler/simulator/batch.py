# SPDX-License-Identifier: Apache-2.0
"""Many simulations, several at a time, each a process of `drom simulate` with a folder of results.

The processes are forks of a command, which has imported most of what they need: that takes several times as long as to
simulate a small log.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
from collections import deque
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import connection
from typing import IO, TYPE_CHECKING, NamedTuple

from drom.scheduler.engine.compiler import announcement, compile_program, load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.simulator.worker_pool import at_most

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from multiprocessing.context import ForkProcess
    from pathlib import Path


class Run(NamedTuple):
    """A simulation: the arguments of `drom simulate`, and its folder of results."""

    log: Path
    nodes: int
    cores: int
    options: tuple[str, ...]
    folder: Path

    def words(self) -> list[str]:
        """Return the words of the command line."""
        machine = ["--nodes", str(self.nodes), "--cores", str(self.cores)]
        return ["drom", "simulate", str(self.log), *machine, *self.options, "--out", str(self.folder)]


def compile_before(policies: Iterable[str], say: Callable[[str], None]) -> None:
    """Compile or load policies before parallel simulations, each of which would do so; `say` gets what is compiled."""
    for name in policies:
        policy = load_policy(name)
        if announced := announcement(policy, ordered=True):
            say(announced)
        compile_program(policy, ordered=True)


def stop_all(_run: Run, error: SchedulerError) -> None:
    """Raise the error of a failed run, which stops the others."""
    raise error


def run_all(
    runs: Sequence[Run],
    at_once: int | None,
    show: Callable[[float], None],
    failed: Callable[[Run, SchedulerError], None] = stop_all,
) -> None:
    """Make all these runs, `at_once` at a time; `show` gets the fraction that is done, `failed` a run that fails.

    `at_once` is as in `at_most`. On Ctrl-C all stop, as `drom simulate` does: results are partial and marked as such,
    or missing. An exception raised by `failed` stops the others; by default it raises the SchedulerError with the
    message of the run. The process may have no other threads, which a fork would cut short.
    """
    left, at_work = deque(runs), list[_Simulation]()
    try:
        while left or at_work:
            while left and len(at_work) < at_most(at_once):
                at_work.append(_Simulation(left.popleft()))
            ready = connection.wait([one.process.sentinel for one in at_work])
            for ended in [one for one in at_work if one.process.sentinel in ready]:
                at_work.remove(ended)
                if error := ended.fault():
                    failed(ended.run, error)
                show(1 - (len(left) + len(at_work)) / len(runs))
    except BaseException:
        for one in at_work:
            one.stop()
        for one in at_work:
            one.fault()  # waits
        raise


class _Simulation:
    """A run in a fork of this process. It has its own session, so that Ctrl-C reaches it only once."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - until it has ended
        self.process: ForkProcess = multiprocessing.get_context("fork").Process(
            target=_simulate, args=(run.words(), self._said)
        )
        with _without_interrupts():
            self.process.start()

    def stop(self) -> None:
        """Interrupt the process: it writes the results that it has, and ends."""
        if self.process.pid and self.process.exitcode is None:
            os.kill(self.process.pid, signal.SIGINT)

    def fault(self) -> SchedulerError | None:
        """Wait for its end, and return why it failed; None if it did not."""
        self.process.join()
        with self._said:
            self._said.seek(0)
            said = self._said.read().decode(errors="replace").strip()
        if not self.process.exitcode:
            return None
        return SchedulerError(said.splitlines()[-1].removeprefix("drom: ") if said else f"{self.run.folder}: killed.")


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back during a block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _simulate(words: list[str], said: IO[bytes]) -> None:
    """Become a `drom` command in a new session, which writes its errors to a file."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end
    sys.stderr = open(said.fileno(), "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - likewise
    sys.argv = words
    import_module("drom.__main__").main()
