# SPDX-License-Identifier: Apache-2.0
"""The memory of a process with a loop: large blocks are returned to the kernel, garbage is collected between turns."""

from __future__ import annotations

import ctypes
import gc
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
LARGE = 1 << 16
"""Least bytes of a block of memory that is mapped by itself and returned to the kernel as soon as it is freed."""
SPARE = 1 << 22
"""Free bytes at the end of its memory that a process keeps."""
YOUNG = 10_000
"""Number of new objects at which garbage among them is collected: some milliseconds of work."""
OLD_SECONDS = 60.0
"""Seconds between two collections, while idle, of all objects created since the previous one."""
ALL_SECONDS = 3600.0
"""Seconds between two collections of all objects, while idle."""


def return_large_blocks() -> None:
    """Make the GNU C library return the memory of large blocks to the kernel when they are freed.

    By default it raises the threshold to the largest block that it has seen (mallopt(3), M_MMAP_THRESHOLD). Buffers
    for the messages of many connections then lie between small blocks, and their memory is never returned. With another
    C library nothing is done.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE)
        mallopt(_M_TRIM_THRESHOLD, SPARE)


def return_free_pages() -> None:
    """Return what the GNU C library keeps of freed memory to the kernel: after a start that is several megabytes."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


class Garbage:
    """Collects garbage between the turns of a loop: new objects if there are many, older ones while it is idle.

    Automatic collection is off meanwhile, as it examines all objects whenever their number has grown by a quarter, even
    in the middle of a request: 0.1 s for 20,000 jobs.
    """

    def __enter__(self) -> Self:
        gc.collect()
        gc.freeze()
        return_free_pages()
        gc.disable()
        self._old_at = self._all_at = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        gc.unfreeze()
        gc.enable()

    def look(self, *, idle: bool) -> None:
        """Collect garbage after a turn of the loop; `idle`: whether no work is pending now."""
        if gc.get_count()[0] >= YOUNG:
            gc.collect(1)
        now = time.monotonic()
        if idle and now >= self._old_at + OLD_SECONDS:
            self._old_at = now
            if now >= self._all_at + ALL_SECONDS:
                self._all_at = now
                gc.unfreeze()
            gc.collect()
            gc.freeze()
