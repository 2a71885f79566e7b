# SPDX-License-Identifier: Apache-2.0
"""A wave on a ring, mpi4py between the ranks and numba within each: malleable in every rank between two steps.

    mpirun -n 2 --bind-to none drom run -- python mpi4py_numba.py [--size N] [--steps K]

u(t+1, i) = u(t, i-1) + u(t, i+1) - u(t-1, i), the wave equation with a Courant number of 1, has whole numbers
throughout. From u = f(i - t) at two times the form f only moves on, so every point is known at any time. Exit 0: right.
1: wrong, or no mpi4py. 2: wrong usage.
"""

from __future__ import annotations

import argparse
import sys

import numba
import numpy as np

import dromlib  # malleable

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    sys.exit(f"mpi4py_numba: mpi4py cannot be loaded ({error}): install it and an MPI library.")


@numba.njit("void(int32[::1], int32[::1])", parallel=True)
def step(before: np.ndarray, now: np.ndarray) -> None:
    """Compute the points of the next time in place of those before; the first and last are the neighbours'."""
    for i in numba.prange(1, len(now) - 1):
        before[i] = now[i - 1] + now[i + 1] - before[i]


@numba.njit("void(int32[::1], int64, int64)", parallel=True)
def fill(u: np.ndarray, first: int, size: int) -> None:
    """Write the form f at `first` and on; in parallel, so that the threads touch the pages that they will use."""
    for i in numba.prange(len(u)):
        u[i] = (first + i) % size * 2654435761 % 4294967296 >> 22


def exchange(u: np.ndarray, comm: MPI.Comm) -> None:
    """Fill the points beside the own ones with those of the neighbours."""
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    comm.Sendrecv(u[-2:-1], right, 0, u[:1], left, 0)
    comm.Sendrecv(u[1:2], left, 1, u[-1:], right, 1)


def main() -> int:
    """Compute, compare with the wave that must come out, and return the exit code."""
    comm = MPI.COMM_WORLD
    parser = argparse.ArgumentParser(prog="mpi4py_numba")
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: {message}\n" if comm.rank == 0 else "")
    parser.add_argument("--size", type=int, metavar="N", default=8_000_000)
    parser.add_argument("--steps", type=int, metavar="K", default=1000)
    asked = parser.parse_args()
    size = asked.size
    if size < comm.size or asked.steps < 1:
        parser.error("--size takes a number from that of the ranks, --steps one from 1.")

    first, end = size * comm.rank // comm.size, size * (comm.rank + 1) // comm.size
    now, before = np.empty((2, end - first + 2), dtype=np.int32)
    fill(now, first + size, size)
    fill(before, first + size + 1, size)
    for _ in dromlib.malleable(range(asked.steps)):  # malleable
        exchange(now, comm)
        step(before, now)
        now, before = before, now
    expected = np.empty_like(now)
    fill(expected, first + size - asked.steps % size, size)
    right = comm.allreduce(bool((now == expected)[1:-1].all()), MPI.LAND)
    if comm.rank == 0:
        print(f"mpi4py_numba: {comm.size} ranks, {size} points, {asked.steps} steps {'ok' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MemoryError:
        sys.exit("mpi4py_numba: not enough memory; choose a smaller --size.")
