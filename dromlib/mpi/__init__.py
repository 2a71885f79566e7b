# SPDX-License-Identifier: Apache-2.0
"""Adaptive MPI programs with mpi4py: ranks rest while the job has too few cores for all, and return later.

    from dromlib.mpi import AdaptiveJob, Outcome, block

    with AdaptiveJob(MPI.COMM_WORLD, min_ranks=2) as job:  # at least two ranks always run
        u = job.array(block(4096, halo=1), 4096)  # 4096 rows of 4096 numbers, whose rows are split among the ranks
        step = job.value(numpy.zeros(1, int))  # the same on all ranks
        while step[0] < steps and job.point() != Outcome.OVER:
            compute(job.comm, u.with_halo)
            step += 1

This is drom_mpi.h for Python: the MPI compiler (MPICC, otherwise mpicc) compiles drom_mpi.c on first use, for the MPI
library that mpi4py runs. Without an agent all ranks always run. One thread uses a job. An error in a program that
other ranks wait for ends the job if it is started by `python -m mpi4py`.
"""

from __future__ import annotations

from dromlib.mpi.arrays import Array, block, cyclic, given, whole
from dromlib.mpi.job import AdaptiveJob, Outcome
from dromlib.mpi.library import AdaptiveError, Axis
from dromlib.mpi.objects import Objects, greedy, refine

__all__ = [
    "AdaptiveError",
    "AdaptiveJob",
    "Array",
    "Axis",
    "Objects",
    "Outcome",
    "block",
    "cyclic",
    "given",
    "greedy",
    "refine",
    "whole",
]
