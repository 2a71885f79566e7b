# SPDX-License-Identifier: Apache-2.0
"""Read plain files, so that no other file in their place blocks the reader or never ends."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path


def open_plain(path: Path) -> BinaryIO:
    """Open a plain file for reading. Raises OSError, also if it is not a plain file; its text is for users."""
    _check(path.stat().st_mode)
    file = open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb")  # noqa: SIM115
    try:
        _check(os.fstat(file.fileno()).st_mode)
    except OSError:
        file.close()
        raise
    return file


def read_plain(path: Path, limit: int) -> bytes:
    """Return the bytes of a plain file of at most `limit` bytes. Raises OSError, also if it is not plain or longer."""
    with open_plain(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it is longer than {limit} bytes")
    return data


def _check(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a plain file")
