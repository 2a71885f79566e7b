# SPDX-License-Identifier: Apache-2.0
"""Removal of folders in which others, such as a CRIU that was killed, have left mounts."""

from __future__ import annotations

import ctypes
import os
import shutil
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
    """Remove a folder with its files, and none of a file system that is mounted below it; then it stays."""
    detach_below(folder)
    if not below(folder):
        shutil.rmtree(folder, ignore_errors=True)
