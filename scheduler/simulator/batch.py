# SPDX-License-Identifier: Apache-2.0
"""Many simulations, several at a time, each a process of `drom simulate` with a folder of results."""

from __future__ import annotations

import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, NamedTuple

from drom.agent.system import python_command
from drom.scheduler.engine.compiler import announcement, compile_program, load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.simulator.worker_pool import at_most

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path


class Run(NamedTuple):
    """A simulation: the arguments of `drom simulate`, and its folder of results."""

    log: Path
    nodes: int
    cores: int
    options: tuple[str, ...]
    folder: Path

    def command(self) -> list[str]:
        """Return the command, for this interpreter."""
        machine = ["--nodes", str(self.nodes), "--cores", str(self.cores)]
        words = ["simulate", str(self.log), *machine, *self.options, "--out", str(self.folder)]
        return python_command.drom(*words)


def compile_before(policies: Iterable[str], say: Callable[[str], None]) -> None:
    """Compile policies before parallel simulations, and report it by `say`; else each would compile them unreported."""
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
    message of the run.
    """
    crew = _Workers()
    with ThreadPoolExecutor(at_most(at_once)) as pool:
        futures = {pool.submit(crew.make, run): run for run in runs}
        try:
            for done, future in enumerate(as_completed(futures), 1):
                if isinstance(error := future.exception(), SchedulerError):
                    failed(futures[future], error)
                else:
                    future.result()
                show(done / len(runs))
        except BaseException:
            for future in futures:
                future.cancel()
            crew.stop()
            raise


class _Workers:
    """The running processes. Each has its own session, so that Ctrl-C reaches it only once."""

    def __init__(self) -> None:
        self._at_work: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def make(self, run: Run) -> None:
        with self._lock:
            if self._stopped:
                return
            process = subprocess.Popen(
                run.command(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
            self._at_work.add(process)
        with process:
            told = process.communicate()[1].strip()
        with self._lock:
            self._at_work.remove(process)
            if process.returncode and not self._stopped:
                raise SchedulerError(told.splitlines()[-1].removeprefix("drom: ") if told else f"{run.folder}: killed.")

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._at_work:
                process.send_signal(signal.SIGINT)
