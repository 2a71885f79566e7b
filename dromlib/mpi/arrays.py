# SPDX-License-Identifier: Apache-2.0
"""Arrays of an adaptive MPI job: how their axes are split, and this rank's part as a NumPy array."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dromlib.mpi.library import BOUND, Axis, fit

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt


def whole(size: int, halo: int = 0) -> Axis:
    """Return an axis that is not split: each part has all `size` indices, and `halo` more on both sides of them."""
    return Axis(fit(size), 0, 0, fit(halo))


def block(size: int, halo: int = 0) -> Axis:
    """Return an axis that is split into equally long blocks of consecutive indices, one for each part."""
    return Axis(fit(size), 1, 0, fit(halo))


def cyclic(size: int, block: int, halo: int = 0) -> Axis:
    """Return an axis that is split into blocks of `block` indices, dealt out to the parts in turn."""
    return Axis(fit(size), 2, fit(block), fit(halo))


def given(size: int, bound: Callable[[int, int], int], halo: int = 0) -> Axis:
    """Return an axis of which part p of P has the indices from bound(p, P) to bound(p + 1, P) - 1.

    `bound` is the same function of its arguments on all ranks: 0 for part 0, `size` for part P, and not decreasing.
    """
    return Axis(fit(size), 3, 0, fit(halo), BOUND(lambda _, part, parts: bound(part, parts)))


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
        """The own elements with the halo on both sides of each axis, in place. They last until the next change.

        On a rank that does not run, also before it joins, the first axis has no index.
        """
        memory = self._call("drom_mpi_memory", self._address)
        shape = [self._count(k) + 2 * axis.halo for k, axis in enumerate(self._axes)]
        if not memory:
            shape[0] = 0
        size = math.prod(shape) * self._dtype.itemsize
        place = memoryview((ctypes.c_char * size).from_address(memory or 0))
        elements: npt.NDArray[Any] = np.ndarray(shape, self._dtype, place)
        return elements

    def indices(self, axis: int = 0) -> npt.NDArray[np.int64]:
        """Return which indices of an axis are this rank's, ascending."""
        places = range(self._count(axis))
        return np.fromiter((self._on("drom_mpi_index", axis, k) for k in places), np.int64, len(places))

    def _count(self, axis: int) -> int:
        """Return how many indices of an axis are this rank's; without a part it has none of the first axis."""
        one = self._axes[axis]
        return int(one.size) if axis and not one.split else int(self._on("drom_mpi_count", axis))

    def _on(self, name: str, axis: int, *arguments: int) -> int:
        """Call a function on an axis, of which an array of one has the second in C."""
        return int(self._call(name, self._address, axis + 2 - len(self._axes), *arguments))
