# SPDX-License-Identifier: Apache-2.0
"""Set the name and command line that `ps` and `pgrep` show for this process instead of those of Python.

The kernel's files suffice: setproctitle would be a further compiled package.
"""

from __future__ import annotations

import os
from contextlib import suppress

SELF = "/proc/self"


def set_title(name: str, *words: str) -> None:
    """Show this process as `name`, of at most 15 bytes, with `words` as arguments, as far as the kernel allows it.

    The command line overwrites the one that the process was started with, and is cut to its length. If that cannot be
    found, as in a sandbox with a /proc of its own, nothing is written.
    """
    with suppress(OSError):
        _write(f"{SELF}/comm", 0, name.encode())
    with suppress(OSError, ValueError, IndexError):
        given = _read(f"{SELF}/cmdline")
        # proc(5), fields 48 and 49: where the arguments begin and end in memory. The first field after the name is 3.
        fields = _read(f"{SELF}/stat").rpartition(b")")[2].split()
        begin, end = int(fields[45]), int(fields[46])
        shown = b"\0".join([name.encode(), *map(os.fsencode, words)])[: end - begin - 1]
        if _read(f"{SELF}/mem", begin, end - begin) == given:
            _write(f"{SELF}/mem", begin, shown.ljust(end - begin, b"\0"))


def _read(path: str, at: int = 0, size: int = 1 << 20) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(file, size, at)
    finally:
        os.close(file)


def _write(path: str, at: int, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        if at:
            os.lseek(file, at, os.SEEK_SET)
        os.write(file, data)
    finally:
        os.close(file)
