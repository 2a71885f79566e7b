# SPDX-License-Identifier: Apache-2.0
"""drom_mpi.c as a library for the MPI library that mpi4py runs: its types, functions and errors."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from mpi4py import MPI

from dromlib import native
from dromlib.errors import DromError
from dromlib.programs import BuildError

INT, LONG, POINTER = ctypes.c_int, ctypes.c_long, ctypes.c_void_p
BOUND = ctypes.CFUNCTYPE(LONG, POINTER, INT, INT)
PACK = ctypes.CFUNCTYPE(LONG, POINTER, LONG, POINTER)
UNPACK = ctypes.CFUNCTYPE(None, POINTER, LONG, POINTER, LONG)
STRATEGY = ctypes.CFUNCTYPE(None, LONG, POINTER, INT, POINTER, POINTER)


class Axis(ctypes.Structure):
    """How the indices of an axis are split among ranks; `whole`, `block`, `cyclic` and `given` make it."""

    _fields_ = (
        ("size", LONG),
        ("split", INT),
        ("block", LONG),
        ("halo", LONG),
        ("bound", BOUND),
        ("context", POINTER),
    )


class Kind(ctypes.Structure):
    """drom_mpi_kind of drom_mpi.h."""

    _fields_ = (
        ("count", LONG),
        ("pack", PACK),
        ("unpack", UNPACK),
        ("context", POINTER),
        ("strategy", STRATEGY),
        ("speed", ctypes.c_double),
        ("locate", POINTER),
        ("make", POINTER),
        ("drop", POINTER),
    )


SIGNATURES: dict[str, list[Any]] = {
    "drom_mpi_init_f": [POINTER, INT, INT],
    "drom_mpi_comm_f": [INT, POINTER],
    "drom_mpi_add_array_f": [POINTER, POINTER, INT, Axis, Axis],
    "drom_mpi_add_constant_f": [POINTER, POINTER, INT, Axis, Axis],
    "drom_mpi_add_value_f": [INT, POINTER, POINTER, INT, INT],
    "drom_mpi_add_objects": [POINTER, POINTER, Kind],
    "drom_mpi_next": [LONG, POINTER, LONG],
    "drom_mpi_owner": [INT, POINTER, LONG],
    "drom_mpi_balance": [LONG, POINTER],
    "drom_mpi_greedy": [None, LONG, POINTER, INT, POINTER, POINTER],
    "drom_mpi_refine": [None, LONG, POINTER, INT, POINTER, POINTER],
    "drom_mpi_point": [INT, POINTER],
    "drom_mpi_want": [INT, POINTER, INT, INT],
    "drom_mpi_memory": [POINTER, POINTER],
    "drom_mpi_count": [LONG, POINTER, INT],
    "drom_mpi_index": [LONG, POINTER, INT, LONG],
    "drom_mpi_finalize": [None, POINTER],
    "drom_mpi_abort_f": [None, INT],
}
"""The functions of drom_mpi.h that are called: the type of the result, and those of the parameters."""


class AdaptiveError(DromError):
    """Raised on all ranks when they cannot become an adaptive job, or describe data that cannot move."""


def fit(number: int, bits: int = 63) -> int:
    """Return a number as C can have it, with a wrong one still wrong: all ranks refuse it together."""
    return max(-(1 << bits), min(int(number), (1 << bits) - 1))


def check(result: object) -> None:
    """Raise an error on all ranks if C has refused something: the first rank has printed why."""
    if not result:
        raise AdaptiveError("The adaptive job refuses this: the first rank says why on stderr.")


def load(comm: MPI.Intracomm) -> dict[str, Any]:
    """Return the functions of drom_mpi.h, compiled by the first rank, then by those that do not find its work.

    Raises `BuildError` on all ranks if one of them cannot have them, or has them for another MPI library.
    """
    found: dict[str, Any] = {}
    for compiles in (comm.rank == 0, comm.rank > 0):
        failure = ""
        if compiles:
            try:
                found = functions()
            except BuildError as error:
                failure = str(error)
        failure = max(comm.allgather(failure))
        if failure:
            raise BuildError(failure)
    return found


@functools.cache
def functions() -> dict[str, Any]:
    """Return the functions of drom_mpi.h for the MPI library of this process."""
    library = ctypes.CDLL(str(native.mpi_path()))
    is_running = INT()
    library.MPI_Initialized(ctypes.byref(is_running))
    if not is_running.value:
        runs = MPI.Get_library_version().splitlines()[0]
        raise BuildError(f"MPICC is the compiler of another MPI library than mpi4py's ({runs}): set it to that one's.")
    found = {name: library[name] for name in SIGNATURES}
    for name, function in found.items():
        function.restype, *function.argtypes = SIGNATURES[name]
    return found
