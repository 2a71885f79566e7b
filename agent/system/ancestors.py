# SPDX-License-Identifier: Apache-2.0
"""Checks the folders above a path: write permission on one of them is enough to replace what the path leads to."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from drom.agent.system.proc import is_unknown_user


def fault_above(path: Path, uid: int) -> str:
    """Return which folder above `path` lets users other than `uid` and root replace what is below it; empty if none.

    The result is a sentence without its end. Folders that do not exist are left out; `path` itself is not checked.
    Folders and links of other users are faults, and so are folders in which others may write, unless these are sticky,
    as /tmp is. Raises OSError for a relative path if the current folder was deleted.
    """
    absolute = path.absolute()
    resolved = Path(os.path.realpath(absolute))  # pathlib's raises RuntimeError for a link to itself
    for folder in dict.fromkeys((*reversed(absolute.parents), *reversed(resolved.parents))):
        try:
            about = folder.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        if about.st_uid not in (0, uid) and not is_unknown_user(about.st_uid):
            return f"{folder} belongs to another user"
        if stat.S_ISDIR(about.st_mode) and about.st_mode & 0o022 and not about.st_mode & stat.S_ISVTX:
            return f"others may write in {folder} (mode {stat.S_IMODE(about.st_mode):04o})"
    return ""
