# SPDX-License-Identifier: Apache-2.0
"""Room on the disk of the queue that is kept for what must be written when there is no other."""

from __future__ import annotations

import os
from contextlib import suppress

from drom.scheduler.live.server.state_folder import RESERVE, open_file

SIZE = 8 << 20
"""Bytes that are kept."""
PART = 256 << 10
"""Bytes that are given up, or taken, at a time: an order of an operator needs less."""


class Reserve:
    """A file in a folder, whose room is given up a part at a time. Raises OSError where it cannot be opened."""

    def __init__(self, folder: int) -> None:
        self._file = open_file(RESERVE, folder)

    def fill(self) -> None:
        """Take as much room as is there and not yet taken."""
        with suppress(OSError):  # the disk is full: what is there already is kept
            while (size := os.fstat(self._file).st_size) < SIZE:
                os.posix_fallocate(self._file, size, min(PART, SIZE - size))

    def give(self) -> bool:
        """Give up a part, and return whether there was one."""
        size = os.fstat(self._file).st_size
        os.ftruncate(self._file, max(0, size - PART))
        return size > 0

    def close(self) -> None:
        """Close the file, which stays."""
        os.close(self._file)
