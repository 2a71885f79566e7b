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

import ctypes
import functools
import math
import sys
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from mpi4py import MPI

from dromlib import native
from dromlib.errors import DromError
from dromlib.programs import BuildError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    import numpy.typing as npt
    from typing_extensions import Self

    Buffer = TypeVar("Buffer", bound=Any)

_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_long, ctypes.c_void_p
_BOUND = ctypes.CFUNCTYPE(_LONG, _POINTER, _INT, _INT)


class Axis(ctypes.Structure):
    """How the indices of an axis are split among ranks; `whole`, `block`, `cyclic` and `given` make it."""

    _fields_ = (
        ("size", _LONG),
        ("split", _INT),
        ("block", _LONG),
        ("halo", _LONG),
        ("bound", _BOUND),
        ("context", _POINTER),
    )


_SIGNATURES: dict[str, list[Any]] = {
    "drom_mpi_init_f": [_POINTER, _INT, _INT],
    "drom_mpi_comm_f": [_INT, _POINTER],
    "drom_mpi_add_array_f": [_POINTER, _POINTER, _INT, Axis, Axis],
    "drom_mpi_add_value_f": [_INT, _POINTER, _POINTER, _INT, _INT],
    "drom_mpi_point": [_INT, _POINTER],
    "drom_mpi_memory": [_POINTER, _POINTER],
    "drom_mpi_count": [_LONG, _POINTER, _INT],
    "drom_mpi_index": [_LONG, _POINTER, _INT, _LONG],
    "drom_mpi_finalize": [None, _POINTER],
}
"""The functions of drom_mpi.h that are called: the type of the result, and those of the parameters."""


class AdaptiveError(DromError):
    """Raised on all ranks when they cannot become an adaptive job, or describe data that cannot move."""


class Outcome(IntEnum):
    """What a malleability point has done."""

    SAME = 0
    """Nothing."""
    CHANGED = 1
    """Other ranks run: the communicator, the arrays and their places are new."""
    OVER = 2
    """This rank rested until the others have finished: it goes to the end of the job."""


def whole(size: int, halo: int = 0) -> Axis:
    """Return an axis whose `size` indices each part has all; of which `halo` more are on both sides of the own ones."""
    return Axis(_fit(size), 0, 0, _fit(halo))


def block(size: int, halo: int = 0) -> Axis:
    """Return an axis of which each part has equally many consecutive indices."""
    return Axis(_fit(size), 1, 0, _fit(halo))


def cyclic(size: int, block: int, halo: int = 0) -> Axis:
    """Return an axis of which blocks of `block` indices are dealt out in turn."""
    return Axis(_fit(size), 2, _fit(block), _fit(halo))


def given(size: int, bound: Callable[[int, int], int], halo: int = 0) -> Axis:
    """Return an axis of which part p of P has the indices from bound(p, P) to bound(p + 1, P) - 1.

    `bound` is the same function of its arguments on all ranks: 0 for part 0, `size` for part P, and not decreasing.
    """
    return Axis(_fit(size), 3, 0, _fit(halo), _BOUND(lambda _, part, parts: bound(part, parts)))


def _fit(number: int, bits: int = 63) -> int:
    """Return a number as C can have it, with a wrong one still wrong: all ranks refuse it together."""
    return max(-(1 << bits), min(int(number), (1 << bits) - 1))


class AdaptiveJob:
    """All ranks of a communicator, of which at least `min_ranks` always run; collective.

    At the end of its block it ends for all ranks; an exception leaves it as it is. Raises `AdaptiveError` on all ranks
    if `min_ranks` is not from 1 to their number, and `BuildError` if drom_mpi.c cannot be compiled for mpi4py's MPI.
    """

    comm: MPI.Comm
    """The communicator of the running ranks. It lasts until the next change. MPI.COMM_NULL after `Outcome.OVER`."""

    def __init__(self, comm: MPI.Intracomm, min_ranks: int = 1) -> None:
        auto = sys.modules.get("dromlib.auto")
        if auto:
            auto.stop()  # a program that attaches decides for itself
        self._functions = _load(comm)
        self._handle = self._functions["drom_mpi_init_f"](comm.py2f(), _fit(min_ranks, 31))
        self._kept: list[object] = []  # what C has the address of
        _check(self._handle)
        self._find_comm()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finalize()

    def array(self, *axes: Axis | int, dtype: npt.DTypeLike = float) -> Array:
        """Describe an array of one or two axes and return it, filled with zeros; collective, before the first change.

        A number is an axis of which each part has all indices. If both axes are split, the ranks form a grid as
        ``MPI.Compute_dims`` makes it. Raises `AdaptiveError` on all ranks if no split can be as described.
        """
        kind = np.dtype(dtype)
        if kind.hasobject or not 1 <= len(axes) <= 2:
            raise ValueError(f"An array of {len(axes)} axes of type {kind} cannot move: give one or two, of numbers.")
        described = [axis if isinstance(axis, Axis) else whole(axis) for axis in axes]
        self._kept.extend(described)
        element = MPI.BYTE.Create_contiguous(kind.itemsize)
        rows, columns = [*[whole(1)] * (2 - len(axes)), *described]
        address = self._call("drom_mpi_add_array_f", self._handle, element.py2f(), rows, columns)
        element.Free()
        _check(address)
        return Array(self._call, address, kind, described)

    def value(self, buffer: Buffer) -> Buffer:
        """Describe a writable buffer, such as a NumPy array, that is the same on all running ranks, and return it.

        Ranks that return receive its content. Before the first change, in the same order on all ranks.
        """
        place = ctypes.c_char.from_buffer(buffer)
        self._kept.append(place)
        size = memoryview(buffer).nbytes
        code = self._call("drom_mpi_add_value_f", self._handle, ctypes.addressof(place), size, MPI.BYTE.py2f())
        _check(code == 0)
        return buffer

    def point(self) -> Outcome:
        """Pass a malleability point, collective over the running ranks, which have nothing under way.

        A rank that has lost its last core rests in this call. After a change ask for `comm` and the arrays' elements
        anew: NumPy arrays from before are of memory that may be gone.
        """
        outcome = Outcome(self._call("drom_mpi_point", self._handle))
        if outcome:
            self._find_comm()
        return outcome

    def finalize(self) -> None:
        """End the job for all ranks, also those that rest, and free its arrays and its communicator; collective."""
        self._call("drom_mpi_finalize", self._handle)
        self._handle = None

    def _find_comm(self) -> None:
        self.comm = MPI.Comm.f2py(self._call("drom_mpi_comm_f", self._handle))

    def _call(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - as the function in C
        """Call a function of drom_mpi.h, which has the job's memory."""
        if self._handle is None:
            raise ValueError("This adaptive job is finalized: use it and its arrays before.")
        return self._functions[name](*arguments)


class Array:
    """This rank's part of an array, returned by `AdaptiveJob.array`; without elements after `Outcome.OVER`."""

    def __init__(self, call: Callable[..., Any], address: int, dtype: np.dtype[Any], axes: list[Axis]) -> None:
        self._call = call
        self._address = address
        self._dtype = dtype
        self._axes = axes

    @property
    def own(self) -> npt.NDArray[Any]:
        """The own elements, in place. They last until the next change."""
        inner = [slice(axis.halo, axis.halo + self._count(k)) for k, axis in enumerate(self._axes)]
        return self.with_halo[tuple(inner)]

    @property
    def with_halo(self) -> npt.NDArray[Any]:
        """The own elements with the halo on both sides of each axis, in place. They last until the next change."""
        memory = self._call("drom_mpi_memory", self._address)
        shape = [self._count(k) + 2 * axis.halo if memory else 0 for k, axis in enumerate(self._axes)]
        size = math.prod(shape) * self._dtype.itemsize
        place = memoryview((ctypes.c_char * size).from_address(memory or 0))
        elements: npt.NDArray[Any] = np.ndarray(shape, self._dtype, place)
        return elements

    def indices(self, axis: int = 0) -> npt.NDArray[np.int64]:
        """Return which indices of an axis are this rank's, ascending."""
        places = range(self._count(axis))
        return np.fromiter((self._on("drom_mpi_index", axis, k) for k in places), np.int64, len(places))

    def _count(self, axis: int) -> int:
        return int(self._on("drom_mpi_count", axis))

    def _on(self, name: str, axis: int, *arguments: int) -> int:
        """Call a function on an axis, of which an array of one has the second in C."""
        return int(self._call(name, self._address, axis + 2 - len(self._axes), *arguments))


def _check(result: object) -> None:
    """Raise an error on all ranks if C has refused something: the first rank has printed why."""
    if not result:
        raise AdaptiveError("The adaptive job refuses this: the first rank says why on stderr.")


def _load(comm: MPI.Intracomm) -> dict[str, Any]:
    """Return the functions of drom_mpi.h, compiled by the first rank, then by those that do not find its work.

    Raises `BuildError` on all ranks if one of them cannot have them, or has them for another MPI library.
    """
    functions: dict[str, Any] = {}
    for compiles in (comm.rank == 0, comm.rank > 0):
        failure = ""
        if compiles:
            try:
                functions = _functions()
            except BuildError as error:
                failure = str(error)
        failure = max(comm.allgather(failure))
        if failure:
            raise BuildError(failure)
    return functions


@functools.cache
def _functions() -> dict[str, Any]:
    """Return the functions of drom_mpi.h for the MPI library of this process."""
    library = ctypes.CDLL(str(native.mpi_path()))
    is_running = _INT()
    library.MPI_Initialized(ctypes.byref(is_running))
    if not is_running.value:
        runs = MPI.Get_library_version().splitlines()[0]
        raise BuildError(f"MPICC is the compiler of another MPI library than mpi4py's ({runs}): set it to that one's.")
    functions = {name: library[name] for name in _SIGNATURES}
    for name, function in functions.items():
        function.restype, *function.argtypes = _SIGNATURES[name]
    return functions
