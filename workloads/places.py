# SPDX-License-Identifier: Apache-2.0
"""Whether a file can be written, asked before the work whose result it is for."""

from __future__ import annotations

import errno
import os
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def check_writable(path: Path) -> None:
    """Raise OSError where a file could not be written, or take the place of the one that is there."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.is_file() or not path.exists():
        with tempfile.TemporaryFile(dir=path.parent):
            pass
