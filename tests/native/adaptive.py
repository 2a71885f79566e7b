# SPDX-License-Identifier: Apache-2.0
"""adaptive.py MIN_RANKS STOP: the program of adaptive.c with mpi4py."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

from dromlib.mpi import AdaptiveError, AdaptiveJob, Array, Outcome, block, cyclic, given

if TYPE_CHECKING:
    import numpy.typing as npt


def numbers(array: Array) -> npt.NDArray[np.int64]:
    """Return what the own elements of an array are at the start."""
    columns = array.indices(array.own.ndim - 1)
    return columns if array.own.ndim == 1 else array.indices()[:, np.newaxis] * 1000 + columns


def run(job: AdaptiveJob, stop: Path) -> int:
    """Add 1 to each element in each step, but not in a constant array; return how many elements were wrong."""
    arrays = [
        job.array(cyclic(500, 7)),
        job.array(block(40, halo=2), cyclic(500, 7)),
        job.array(given(61, lambda part, parts: 61 * part * part // (parts * parts)), block(40, halo=2)),
    ]
    constant = job.array(block(700), 3, dtype="i4", constant=True)
    step, wrong, stops, outcome = job.value(np.zeros(1, int)), 0, False, Outcome.SAME
    for array in [*arrays, constant]:
        array.own[:] = numbers(array)
    while not stops and (outcome := job.point()) != Outcome.OVER:
        for array in arrays:
            wrong += int(np.count_nonzero(array.own != numbers(array) + step[0]))
            array.own[:] += 1
        wrong += int(np.count_nonzero(constant.own != numbers(constant)))
        if outcome == Outcome.CHANGED and job.comm.rank == 0:
            print("changed", job.comm.size, flush=True)
        stops = job.comm.bcast(stop.exists())
        step += 1
        if job.comm.size == 1:
            time.sleep(0.0001)  # the step of one rank alone would be a loop over exists()
    if outcome != Outcome.OVER:
        wrong = job.comm.allreduce(wrong)
        if job.comm.rank == 0:
            print(f"{wrong} wrong")
    return wrong


def main() -> int:
    """Run until there is a file STOP; return 0 if all was right, 3 if the description is refused."""
    try:
        with AdaptiveJob(MPI.COMM_WORLD, int(sys.argv[1])) as job:
            wrong = run(job, Path(sys.argv[2]))
    except AdaptiveError:
        return 3
    return int(wrong != 0)


if __name__ == "__main__":
    sys.exit(main())
