# SPDX-License-Identifier: Apache-2.0
"""Heat that spreads in a square plate, whose rows are split among the ranks that run; the others rest.

    mpirun -n 4 --bind-to none drom run -- python -m mpi4py mpi4py_heat.py [--size N] [--steps K]

A plate that starts as a half wave in both directions keeps that form and cools by the same factor in each step, so that
all temperatures are known at any time. Exit 0: right. 1: wrong, or no mpi4py. 2: wrong usage.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    sys.exit(f"mpi4py_heat: mpi4py cannot be loaded ({error}): install it and an MPI library.")
from dromlib.mpi import AdaptiveJob, Outcome, block  # malleable


def exchange(u: np.ndarray, comm: MPI.Comm) -> None:
    """Fill the rows above and below the own ones with those of the neighbours."""
    up = comm.rank - 1 if comm.rank else MPI.PROC_NULL
    down = comm.rank + 1 if comm.rank < comm.size - 1 else MPI.PROC_NULL
    comm.Sendrecv(u[1], up, 0, u[-1], down, 0)
    comm.Sendrecv(u[-2], down, 1, u[0], up, 1)


def step(u: np.ndarray, following: np.ndarray, comm: MPI.Comm) -> None:
    """Compute the next time; the edges of the plate stay cold."""
    at = u[1:-1, 1:-1]
    following[1:-1, 1:-1] = at + 0.2 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * at)
    if comm.rank == 0:
        following[1] = 0
    if comm.rank == comm.size - 1:
        following[-2] = 0


def form(rows: np.ndarray, size: int) -> np.ndarray:
    """Return these rows of the plate at the start."""
    return np.outer(np.sin(np.pi * rows / (size - 1)), np.sin(np.pi * np.arange(size) / (size - 1)))


def main() -> int:
    """Compute, compare with the plate that must come out, and return the exit code."""
    world = MPI.COMM_WORLD
    parser = argparse.ArgumentParser(prog="mpi4py_heat")
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: {message}\n" if world.rank == 0 else "")
    parser.add_argument("--size", type=int, metavar="N", default=1000)
    parser.add_argument("--steps", type=int, metavar="K", default=1000)
    asked = parser.parse_args()
    size = asked.size
    if size < max(3, world.size) or asked.steps < 1:
        parser.error("--size takes a number from 3 and from that of the ranks, --steps one from 1.")

    right = True
    with AdaptiveJob(world) as job:  # malleable
        plates = [job.array(block(size, halo=1), size) for _ in range(2)]  # malleable: at even and at odd times
        t, outcome = job.value(np.zeros(1, int)), Outcome.SAME  # malleable
        plates[0].own[:] = form(plates[0].indices(), size)  # malleable
        while t[0] < asked.steps and (outcome := job.point()) != Outcome.OVER:  # malleable
            now, following = (plates[(t[0] + k) % 2].with_halo for k in range(2))  # malleable
            exchange(now, job.comm)  # malleable
            step(now, following, job.comm)  # malleable
            t += 1
        if outcome != Outcome.OVER:  # malleable
            factor = (1 - 0.8 * (1 - np.cos(np.pi / (size - 1)))) ** asked.steps
            plate = plates[asked.steps % 2]  # malleable
            right = bool(np.allclose(plate.own, factor * form(plate.indices(), size), 0, 1e-9))  # malleable
            right = job.comm.allreduce(right, MPI.LAND)  # malleable
            if job.comm.rank == 0:  # malleable
                print(f"mpi4py_heat: {size} x {size}, {asked.steps} steps {'ok' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
