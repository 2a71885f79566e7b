# SPDX-License-Identifier: Apache-2.0
"""How this process gives memory back to the kernel. Only with the GNU C library; others are left as they are."""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3
LARGE = 1 << 15
"""Bytes from which on a block of memory is one of its own, which the kernel gets back as soon as it is freed."""


def return_large_blocks() -> None:
    """Have the memory of large blocks given back when they are freed.

    By default the C library raises the bound with the largest block that it has seen (mallopt(3), M_MMAP_THRESHOLD).
    Buffers for the messages of many connections then lie between small blocks, and what they took stays taken.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE)
