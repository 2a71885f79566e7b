# SPDX-License-Identifier: Apache-2.0
"""Open SQLite files in a folder that only this user may change."""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING

from drom.agent.errors import SlurmError
from drom.agent.system.ancestors import fault_above

if TYPE_CHECKING:
    from pathlib import Path


def open_database(path: Path, *schema: str, is_exclusive: bool = False) -> sqlite3.Connection:
    """Open a file, which is created with its folder, and carry out the statements of `schema`.

    If it `is_exclusive`, no other process has it open: a lock is held on it until it is closed. Raises SlurmError for a
    folder that others may change, a file that is no such database, and one that is in use.
    """
    if fault := fault_above(path, os.geteuid()):
        raise SlurmError(f"{fault}, and so may replace {path}: choose another folder with --state.")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        file = sqlite3.connect(path, isolation_level=None, timeout=0 if is_exclusive else 5)
        if is_exclusive:
            file.execute("PRAGMA locking_mode = EXCLUSIVE")
        file.execute("PRAGMA synchronous = FULL")
        file.execute("BEGIN EXCLUSIVE")  # in exclusive mode the lock then stays
        for statement in schema:
            file.execute(statement)
        file.execute("COMMIT")
    except OSError as error:
        msg = f"{error.filename or path.parent}: {error.strerror}: choose another folder with --state."
        raise SlurmError(msg) from error
    except sqlite3.Error as error:
        raise SlurmError(sentence_of(path, error)) from error
    return file


def sentence_of(path: Path, error: sqlite3.Error) -> str:
    """Return what to tell people of an error of SQLite with a file."""
    if "locked" in str(error):
        return f"another drom slurm uses {path}: stop that one, or choose another folder with --state."
    return f"{path}: {error}: free space on its disk, or choose another folder with --state."
