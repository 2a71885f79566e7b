# SPDX-License-Identifier: Apache-2.0
"""Particles that drift around a ring of cells, which are objects of the ranks that run.

    mpirun -n 4 --bind-to none drom run -- python -m mpi4py mpi4py_particles.py [--particles N] [--steps K]

Most work is where most particles are, and a balancer moves cells between ranks. All begin in an eighth of the ring and
keep their velocities, so that their places are known at any time. Exit 0: right. 1: wrong. 2: wrong usage.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    sys.exit(f"mpi4py_particles: mpi4py cannot be loaded ({error}): install it and an MPI library.")
from dromlib.mpi import AdaptiveJob, Outcome  # malleable

CELLS, WIDTH, REACH, BALANCE = 64, 1 << 16, 16, 20
RING = CELLS * WIDTH
PARTICLE = np.dtype([("number", int), ("place", int)])


def velocity(numbers: np.ndarray) -> np.ndarray:
    """Return how far particles move in a step."""
    return 500 + numbers % 7


def particles_at(step: int, numbers: np.ndarray) -> np.ndarray:
    """Return particles where they must be at a step."""
    particles = np.empty(len(numbers), PARTICLE)
    particles["number"] = numbers
    particles["place"] = (numbers * 7919 % (RING // 8) + step * velocity(numbers)) % RING
    return particles


def inside(cell: int, particles: np.ndarray) -> np.ndarray:
    """Return those of the particles that are in a cell."""
    return particles[particles["place"] // WIDTH == cell]


def count_close(places: np.ndarray) -> int:
    """Return how many pairs of particles are close, comparing each with each."""
    return int(np.count_nonzero(abs(places[:, np.newaxis] - places) < REACH) - len(places)) // 2


def main() -> int:
    """Compute, compare with the places that must come out, and return the exit code."""
    world = MPI.COMM_WORLD
    parser = argparse.ArgumentParser(prog="mpi4py_particles")
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: {message}\n" if world.rank == 0 else "")
    parser.add_argument("--particles", type=int, metavar="N", default=8000)
    parser.add_argument("--steps", type=int, metavar="K", default=1000)
    asked = parser.parse_args()
    if not 1 <= asked.particles <= 1 << 16 or asked.steps < 1:
        parser.error("--particles takes a number from 1 to 65536, --steps one from 1.")

    right, every = True, particles_at(0, np.arange(asked.particles))
    with AdaptiveJob(world) as job:  # malleable
        t, close = job.value(np.zeros(1, int)), job.value(np.zeros(1, int))  # malleable
        outcome, cells = Outcome.SAME, job.objects(CELLS, lambda cell: inside(cell, every))  # malleable
        while t[0] < asked.steps and (outcome := job.point()) != Outcome.OVER:  # malleable
            if t[0] % BALANCE == 0:
                cells.balance()  # malleable
            pairs, left = 0, [every[:0]]
            for cell in cells.measured():  # malleable
                now = cells[cell]
                pairs += count_close(now["place"])
                now["place"] = (now["place"] + velocity(now["number"])) % RING
                cells[cell] = inside(cell, now)
                left.append(now[now["place"] // WIDTH != cell])
            close += job.comm.allreduce(pairs)  # malleable
            arrivals = np.concatenate(job.comm.allgather(np.concatenate(left)))  # malleable
            for cell in cells:
                cells[cell] = np.concatenate([cells[cell], inside(cell, arrivals)])
            t += 1
        if outcome != Outcome.OVER:  # malleable
            found = np.concatenate([every[:0], *cells.values()])
            mine = bool((found == particles_at(asked.steps, found["number"])).all())
            total = job.comm.allreduce(len(found))  # malleable
            right = job.comm.allreduce(mine, MPI.LAND) and total == asked.particles  # malleable
            if job.comm.rank == 0:  # malleable
                verdict = "ok" if right else "WRONG"
                print(f"mpi4py_particles: {total} particles, {asked.steps} steps, {close[0]} close {verdict}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
