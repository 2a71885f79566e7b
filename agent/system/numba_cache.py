# SPDX-License-Identifier: Apache-2.0
"""Where numba keeps what it compiled. Imports nothing slow."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def cache_folder(name: str, files: Sequence[Path]) -> Path | None:
    """Return a cache folder for these very files: numba notices a changed one, but not a change in what it calls.

    It keeps what it compiles by path and time of change, so these count as well as the text. The folder lies in
    NUMBA_CACHE_DIR, else in the first of CACHE_DIRECTORY (systemd's), XDG_CACHE_HOME and ~/.cache that can be written;
    None where none can.
    """
    files = [file.resolve() for file in files]
    sources = b"".join(f"{file} {file.stat().st_mtime_ns} ".encode() + file.read_bytes() for file in files)
    digest = hashlib.sha256(sources).hexdigest()[:16]
    given = os.environ.get("NUMBA_CACHE_DIR")
    bases = [os.environ.get("CACHE_DIRECTORY", "").split(":")[0], os.environ.get("XDG_CACHE_HOME"), "~/.cache"]
    places = [Path(given)] if given else [Path(base).expanduser() / "drom" / "numba" for base in bases if base]
    for place in places:
        folder = place / f"{name}-{digest}"
        with contextlib.suppress(OSError, RuntimeError):  # not writable, no home
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    return None
