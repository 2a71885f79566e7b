# SPDX-License-Identifier: Apache-2.0
"""Removal of folders in which others, such as a CRIU that was killed, have left mounts."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

from drom.agent.system.cgroups import unescape

_MNT_DETACH = 2


def below(folder: Path) -> list[Path]:
    """Return the mount points below a folder, the innermost first."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    points = (Path(unescape(line.split(" ")[4])) for line in lines)
    real = folder.resolve()
    return sorted((point for point in points if real in point.parents), reverse=True)


def detach_below(folder: Path) -> None:
    """Detach all that is mounted below a folder, as far as the rights of this process allow."""
    umount2 = ctypes.CDLL(None, use_errno=True).umount2
    for point in below(folder):
        umount2(os.fsencode(point), _MNT_DETACH)


def remove_folder(folder: Path) -> None:
    """Remove a folder with its files and its empty folders, and nothing else.

    This never descends: a file system, or a folder of the machine, that is mounted below would be emptied through its
    mount. What is mounted below is detached; as long as something stays mounted, nothing is removed.
    """
    try:
        detach_below(folder)
        if below(folder):
            return
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        folder.rmdir()
    except OSError:
        return
