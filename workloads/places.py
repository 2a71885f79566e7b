# SPDX-License-Identifier: Apache-2.0
"""A check that a file can be written, made before its contents are computed."""

from __future__ import annotations

import errno
import os
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def check_writable(path: Path) -> None:
    """Raise OSError if a file could not be written, or could not replace the existing one."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.is_file() or not path.exists():
        with tempfile.TemporaryFile(dir=path.parent):
            pass
