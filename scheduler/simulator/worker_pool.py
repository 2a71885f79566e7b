# SPDX-License-Identifier: Apache-2.0
"""Simulations in separate processes, several at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from drom.agent.system.blas_threads import forgo_blas_threads
from drom.scheduler.errors import SchedulerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Result = TypeVar("Result")


def at_most(asked: int | None) -> int:
    """Return how many processes run at a time: as many as asked for, or one for each CPU of this process."""
    return asked or len(os.sched_getaffinity(0))


def run_each(
    function: Callable[..., Result],
    tasks: Sequence[tuple[Any, ...]],
    at_once: int | None,
    take: Callable[[int, Result], None],
) -> None:
    """Call a function of a module with each of these tuples; `take` gets each one's number and result as it ends.

    `at_once` of them run at a time, as `at_most` says.
    On Ctrl-C all stop at once. Raises SchedulerError if one of the processes is killed.
    """
    running: dict[Future[Result], int] = {}
    left = deque(enumerate(tasks))
    most = min(at_most(at_once), len(tasks))
    with ProcessPoolExecutor(most, multiprocessing.get_context("spawn"), _begin) as pool:
        try:
            while left or running:
                # No more calls are submitted than run: waiting ones would have to be cancelled at the end, and in some
                # versions of Python that fails for a pool whose processes end at that moment.
                while left and len(running) < most:
                    number, task = left.popleft()
                    with _without_main():
                        running[pool.submit(function, *task)] = number
                for ended in wait(running, return_when=FIRST_COMPLETED).done:
                    take(running.pop(ended), ended.result())
        except BrokenProcessPool as error:
            raise SchedulerError("A simulation was killed: run fewer at once with --jobs.") from error
        except BaseException:
            for child in multiprocessing.active_children():
                child.terminate()
            raise


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main module from processes that start: they would execute it, and so a script without a guard again."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _begin() -> None:
    """End at Ctrl-C without a message, as the waiting process prints one, and use one thread."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    forgo_blas_threads()
