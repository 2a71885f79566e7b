"""The BLAS loop of `drom bench resize-cost`, until SIGTERM.

It is started as python -m drom.agent.bench.blas_program SIZE FILE [MS CPUS...].
It multiplies matrices with NumPy, passes a malleability point before each product, and writes at its end for each
step the words that dromlib/native/bench/resize.c describes. With lists of CPUs it does without an agent: every MS
milliseconds it moves onto the next one, the last one first.
"""

from __future__ import annotations

import array
import itertools
import signal
import sys
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING

import dromlib
from dromlib._handle import bind_threads
from dromlib.cpulist import cpus, parse_cpulist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def main(size: int, path: Path, changes: Callable[[], int]) -> None:
    """Multiply until SIGTERM, then write the steps; `changes` applies a due change and returns its CPUs (0: none)."""
    import numpy as np

    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    signal.alarm(600)
    left, right = np.ones((size, size)), np.ones((size, size))
    product = np.empty((size, size))
    steps = array.array("Q")
    ncpus = 0
    while not stopped:
        begin = monotonic_ns()
        changed = changes()
        ncpus = changed or ncpus
        region = monotonic_ns()
        np.matmul(left, right, out=product)
        steps.extend((begin, region, monotonic_ns(), ncpus, int(changed > 0)))
    path.write_bytes(steps.tobytes())


def follow(session: dromlib.Session) -> int:
    """Apply a new grant of the agent; return its number of CPUs, 0 if there is none."""
    grant = session.poll()
    if not grant:
        return 0
    session.apply(grant)
    return grant.ncpus


def by_clock(pause_ms: int, masks: Sequence[int]) -> Iterator[int]:
    """Move all threads onto the masks in turn, one every `pause_ms` milliseconds; yield what `follow` returns."""
    from threadpoolctl import threadpool_limits

    due = 0
    for mask in itertools.cycle([masks[-1], *masks[:-1]]):
        while monotonic_ns() < due:
            yield 0
        bind_threads(cpus(mask))
        threadpool_limits(mask.bit_count())
        due = monotonic_ns() + pause_ms * 1_000_000
        yield mask.bit_count()


if __name__ == "__main__":
    if sys.argv[3:]:
        clock = by_clock(int(sys.argv[3]), [parse_cpulist(text) for text in sys.argv[4:]])
        main(int(sys.argv[1]), Path(sys.argv[2]), lambda: next(clock))
    else:
        with dromlib.attach() as session:
            main(int(sys.argv[1]), Path(sys.argv[2]), lambda: follow(session))
