# SPDX-License-Identifier: Apache-2.0
"""Space reserved on the disk of the queue, for changes that must be stored when the disk is full."""

from __future__ import annotations

import os
from contextlib import suppress

from drom.scheduler.live.server.state_folder import RESERVE, open_file

SIZE = 8 << 20
"""Bytes that are reserved."""
PART = 256 << 10
"""Bytes that are released or reserved at a time; an order of an operator needs less."""


class Reserve:
    """A file in a folder that reserves disk space, released a part at a time. Raises OSError if it cannot be opened."""

    def __init__(self, folder: int) -> None:
        self._file = open_file(RESERVE, folder)

    def fill(self) -> None:
        """Reserve the missing space, as far as the disk has it."""
        with suppress(OSError):  # the disk is full: the space reserved so far is kept
            while (size := os.fstat(self._file).st_size) < SIZE:
                os.posix_fallocate(self._file, size, min(PART, SIZE - size))

    def give(self) -> bool:
        """Release a part of the space, and return whether there was one."""
        size = os.fstat(self._file).st_size
        os.ftruncate(self._file, max(0, size - PART))
        return size > 0

    def close(self) -> None:
        """Close the file without deleting it."""
        os.close(self._file)
