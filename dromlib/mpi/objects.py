# SPDX-License-Identifier: Apache-2.0
"""Objects of an adaptive MPI job, and the strategies that decide which rank has which."""

from __future__ import annotations

import ctypes
import sys
import traceback
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from dromlib.mpi.library import PACK, STRATEGY, UNPACK, Kind, functions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    Numbers = npt.NDArray[np.double]
    Places = npt.NDArray[np.intc]
    Strategy = Callable[[Numbers, Numbers, Places], Places]


class Objects(dict[int, Any]):
    """This rank's objects by number, returned by `AdaptiveJob.objects`: they come and go when ranks change."""

    def __init__(self, call: Callable[..., Any], pack: Callable[[Any], bytes], unpack: Callable[[bytes], Any]) -> None:
        super().__init__()
        self._call = call
        self._dump, self._load = pack, unpack
        self._packed: dict[int, bytes] = {}
        self._address = self._count = 0

    def measured(self) -> Iterator[int]:
        """Yield the numbers of this rank's objects; what is done before the next one is measured as work of each."""
        number = -1
        while (number := self._call("drom_mpi_next", self._address, number)) >= 0:
            yield number

    def owner(self, number: int) -> int:
        """Return the rank in the job's `comm` that has an object. Raises IndexError if there is no such object."""
        return int(self._call("drom_mpi_owner", self._address, range(self._count)[number]))

    def balance(self) -> int:
        """Move objects so that the running ranks need about the same time for theirs; return how many have moved.

        Collective over the running ranks. Call it now and then where the work of objects changes.
        """
        return int(self._call("drom_mpi_balance", self._address))

    def kind(self, count: int, strategy: Strategy | None, speed: float) -> Kind:
        """Return the description for C, which lasts as long as the job."""
        self._count = count
        decides = _for_c(strategy) if strategy else STRATEGY()
        return Kind(count, PACK(_or_abort(self._pack)), UNPACK(_or_abort(self._unpack)), None, decides, speed)

    def begin(self, address: int, make: Callable[[int], Any], rank: int) -> None:
        """Make the objects that are this rank's at the start."""
        self._address = address
        self.update((number, make(number)) for number in range(self._count) if self.owner(number) == rank)

    def _pack(self, _: object, number: int, place: int | None) -> int:
        """Pack an object, which C asks for in two steps: the sizes of all that leave first, then the bytes of each."""
        if place is None:
            self._packed[number] = self._dump(self.pop(number))
            return len(self._packed[number])
        packed = self._packed.pop(number)
        ctypes.memmove(place, packed, len(packed))
        return len(packed)

    def _unpack(self, _: object, number: int, place: int, length: int) -> None:
        self[number] = self._load(ctypes.string_at(place, length))


def greedy(work: Numbers, speed: Numbers, place: Places) -> Places:
    """Place all objects anew, those with most work first, each where it is done first.

    `work` is that of each object, and `speed` the work that each rank does in a second; both are above 0. `place` is
    the rank of each object, -1 if that one leaves. Returns the rank that gets each. This is a strategy, as is every
    function with these arguments and this result.
    """
    return _by_c("drom_mpi_greedy", work, speed, place)


def refine(work: Numbers, speed: Numbers, place: Places) -> Places:
    """Place the objects of ranks that leave; then move objects away from ranks that need over 5 % above the mean.

    Arguments and result are those of `greedy`.
    """
    return _by_c("drom_mpi_refine", work, speed, place)


def _by_c(name: str, work: Numbers, speed: Numbers, place: Places) -> Places:
    """Call a strategy of drom_mpi_balance.h."""
    placed: Places = np.array(place, np.intc)
    work, speed = np.ascontiguousarray(work, np.double), np.ascontiguousarray(speed, np.double)
    if len(work) != len(placed) or not len(speed):
        raise ValueError(
            f"{len(work)} objects, {len(placed)} places and {len(speed)} ranks: give a place of each object."
        )
    functions()[name](len(work), work.ctypes.data, len(speed), speed.ctypes.data, placed.ctypes.data)
    return placed


def _for_c(strategy: Strategy) -> Any:  # noqa: ANN401 - a function of ctypes
    """Return a strategy as C calls it. If it fails, its traceback is printed, and C decides."""

    def decide(objects: int, work: int, ranks: int, speed: int, place: int) -> None:
        places = _array(place, ctypes.c_int, objects)
        before = places.copy()
        places[:] = -1
        try:
            places[:] = strategy(_array(work, ctypes.c_double, objects), _array(speed, ctypes.c_double, ranks), before)
        except Exception:  # noqa: BLE001 - of a plug-in
            traceback.print_exc()

    return STRATEGY(decide)


def _array(place: int, kind: Any, count: int) -> npt.NDArray[Any]:  # noqa: ANN401 - a type of ctypes
    """Return an array of C."""
    return np.ctypeslib.as_array((kind * count).from_address(place))


def _or_abort(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that ends all ranks if it fails: C cannot go on, and they would wait for this one."""

    def call(*arguments: object) -> Any:  # noqa: ANN401 - as the function
        try:
            return function(*arguments)
        except BaseException:  # noqa: BLE001 - the job ends
            sys.stderr.write(traceback.format_exc())
            functions()["drom_mpi_abort_f"](MPI.COMM_WORLD.py2f())

    return call
