# SPDX-License-Identifier: Apache-2.0
"""What killed programs leave on the machine, and whoever has killed them takes away."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def no_registrations() -> Iterator[None]:
    """Remove what LLVM's OpenMP has noted in /dev/shm in this block for processes that are no more."""
    begin = time.time()
    try:
        yield
    finally:
        for note in Path("/dev/shm").glob(f"__KMP_REGISTERED_LIB_*_{os.getuid()}"):
            with contextlib.suppress(FileNotFoundError):
                if note.stat().st_mtime >= begin and not Path(f"/proc/{note.name.split('_')[-2]}").exists():
                    note.unlink()
