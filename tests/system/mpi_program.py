# SPDX-License-Identifier: Apache-2.0
"""mpi_program.py FILE: the program of mpi.c in Python, with nothing loaded but mpi4py."""

import sys
from array import array
from pathlib import Path

from mpi4py import MPI

stop = Path(sys.argv[1])
world = MPI.COMM_WORLD
step, stopped = 0, False
while not stopped:
    step += 1
    total = array("i", [0])
    world.Allreduce(array("i", [step + world.rank]), total)
    right = world.size * step + world.size * (world.size - 1) // 2
    if total[0] != right or world.allgather(step) != [step] * world.size:
        world.Abort(1)
    stopped = world.bcast(stop.exists())
if world.rank == 0:
    print(f"right after {step} steps", flush=True)
