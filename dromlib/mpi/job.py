# SPDX-License-Identifier: Apache-2.0
"""An adaptive MPI job: the ranks that run, the data that moves with them, and the points at which they change."""

from __future__ import annotations

import ctypes
import pickle
import sys
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from mpi4py import MPI

from dromlib.mpi.arrays import Array, whole
from dromlib.mpi.library import Axis, check, fit, load
from dromlib.mpi.objects import Objects

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    import numpy.typing as npt
    from typing_extensions import Self

    from dromlib.mpi.objects import Strategy

    Buffer = TypeVar("Buffer", bound=Any)


class Outcome(IntEnum):
    """What a malleability point has done."""

    SAME = 0
    """Nothing."""
    CHANGED = 1
    """Other ranks run: the communicator, the arrays and their places are new."""
    OVER = 2
    """This rank rested until the others have finished: it goes to the end of the job."""


class AdaptiveJob:
    """All ranks of a communicator, of which at least `min_ranks` always run; collective.

    At the end of its block it ends for all ranks; an exception leaves it as it is. Raises `AdaptiveError` on all ranks
    if `min_ranks` is not from 1 to their number, and `BuildError` if drom_mpi.c cannot be compiled for mpi4py's MPI.
    """

    comm: MPI.Comm
    """The communicator of the running ranks. MPI.COMM_NULL after `Outcome.OVER`.

    It lasts until the next change; that of all ranks is the same each time that all run, until some are spawned or
    released.
    """

    def __init__(self, comm: MPI.Intracomm, min_ranks: int = 1) -> None:
        auto = sys.modules.get("dromlib.auto")
        if auto:
            auto.stop()  # a program that attaches decides for itself
        self._functions = load(comm)
        self._handle = self._functions["drom_mpi_init_f"](comm.py2f(), fit(min_ranks, 31))
        self._kept: list[object] = []  # what C has the address of
        check(self._handle)
        self._find_comm()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finalize()

    def array(self, *axes: Axis | int, dtype: npt.DTypeLike = float, constant: bool = False) -> Array:
        """Describe an array of one or two axes and return it, filled with zeros; collective, before the first change.

        A number is an axis of which each part has all indices. If both axes are split, the ranks form a grid as
        ``MPI.Compute_dims`` makes it. The elements of a `constant` array stay as they are after the first point: when
        ranks change, it moves while the program goes on, and they change once it is there. Raises `AdaptiveError` on
        all ranks if no split can be as described.
        """
        kind = np.dtype(dtype)
        if kind.hasobject or not 1 <= len(axes) <= 2:
            raise ValueError(f"An array of {len(axes)} axes of type {kind} cannot move: give one or two, of numbers.")
        described = [axis if isinstance(axis, Axis) else whole(axis) for axis in axes]
        self._kept.extend(described)
        element = MPI.BYTE.Create_contiguous(kind.itemsize)
        rows, columns = [*[whole(1)] * (2 - len(axes)), *described]
        name = "drom_mpi_add_constant_f" if constant else "drom_mpi_add_array_f"
        address = self._call(name, self._handle, element.py2f(), rows, columns)
        element.Free()
        check(address)
        return Array(self._call, address, kind, described)

    def value(self, buffer: Buffer) -> Buffer:
        """Describe a writable buffer, such as a NumPy array, that is the same on all running ranks, and return it.

        Ranks that return receive its content. Before the first change, in the same order on all ranks.
        """
        place = ctypes.c_char.from_buffer(buffer)
        self._kept.append(place)
        size = memoryview(buffer).nbytes
        code = self._call("drom_mpi_add_value_f", self._handle, ctypes.addressof(place), size, MPI.BYTE.py2f())
        check(code == 0)
        return buffer

    def objects(
        self,
        count: int,
        make: Callable[[int], Any],
        *,
        pack: Callable[[Any], bytes] = pickle.dumps,
        unpack: Callable[[bytes], Any] = pickle.loads,
        strategy: Strategy | None = None,
        speed: float = 0,
    ) -> Objects:
        """Describe `count` objects of all ranks, and return this rank's, each made from its number.

        They are pieces of the program's data and work, more of them than ranks. When ranks change, and in
        `Objects.balance`, a strategy decides which rank has each: `refine` unless another is given. `pack` makes the
        bytes of an object, and `unpack` an object of these. `speed` is that of this rank's cores beside the others',
        for the same work; 0 stands for 1. Collective, before the first change. Raises `AdaptiveError` on all ranks if
        `count` is not from 1 to 2^20, or the speed is negative.
        """
        mine = Objects(self._call, pack, unpack)
        kind = mine.kind(fit(count), strategy, speed)
        self._kept.append(kind)
        address = self._call("drom_mpi_add_objects", self._handle, kind)
        check(address)
        mine.begin(address, make, self.comm.rank)
        return mine

    def point(self) -> Outcome:
        """Pass a malleability point, collective over the running ranks, which have nothing under way.

        A rank that has lost its last core rests in this call. After a change ask for `comm` and the arrays' elements
        anew: NumPy arrays from before are of memory that may be gone.
        """
        outcome = Outcome(self._call("drom_mpi_point", self._handle))
        if outcome:
            self._find_comm()
        return outcome

    def want(self, min_ranks: int, max_ranks: int) -> None:
        """Report how many ranks the program can use from now on; collective over the running ranks.

        A scheduler, or the agent of the node, gives it as many. The last report counts, once a second. Raises
        `AdaptiveError` if the numbers are not from 1 to that of all ranks, or the first one is the larger.
        """
        check(self._call("drom_mpi_want", self._handle, fit(min_ranks, 31), fit(max_ranks, 31)) == 0)

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
