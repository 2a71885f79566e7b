# SPDX-License-Identifier: Apache-2.0
"""The jobs that were released, on disk: what each had before, so that another daemon can take it back."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from drom.agent.system.ancestors import fault_above
from drom.scheduler.slurm.engine import Asked
from drom.scheduler.slurm.errors import SlurmError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE = "slurm.sqlite"


class Store:
    """The file of released jobs in `folder`, which is created. Only one daemon has it open: a lock is held on it.

    Raises SlurmError for a folder that others may change, a file that is no such store, and one that is in use.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        if fault := fault_above(self._path, os.geteuid()):
            raise SlurmError(f"{fault}, and so may replace {self._path}: choose another folder with --state.")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            self._file = sqlite3.connect(self._path, isolation_level=None, timeout=0)
            self._file.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._file.execute("PRAGMA synchronous = FULL")
            self._file.execute("BEGIN EXCLUSIVE")  # the lock then stays
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS sent (job TEXT PRIMARY KEY, licences TEXT, nodes TEXT, nice INT)"
            )
            self._file.execute("COMMIT")
        except OSError as error:
            msg = f"{error.filename or folder}: {error.strerror}: choose another folder with --state."
            raise SlurmError(msg) from error
        except sqlite3.Error as error:
            raise SlurmError(self._sentence(error)) from error
        self._stored = self.load()

    def _sentence(self, error: sqlite3.Error) -> str:
        if "locked" in str(error):
            return f"another drom slurm uses {self._path}: stop that one, or choose another folder with --state."
        return f"{self._path}: {error}: free space on its disk, or choose another folder with --state."

    def load(self) -> dict[str, Asked]:
        """Return the released jobs, by name, with what each had before. Raises SlurmError."""
        try:
            rows = self._file.execute("SELECT job, licences, nodes, nice FROM sent").fetchall()
        except sqlite3.Error as error:
            raise SlurmError(self._sentence(error)) from error
        return {job: Asked(licences, nodes, nice) for job, licences, nodes, nice in rows}

    def save(self, sent: Mapping[str, Asked]) -> None:
        """Store exactly these jobs, all at once and lastingly. Raises SlurmError."""
        if sent == self._stored:
            return
        gone = [(job,) for job in self._stored.keys() - sent.keys()]
        new = [(job, *asked) for job, asked in sent.items() if self._stored.get(job) != asked]
        try:
            with closing(self._file.cursor()) as cursor:
                cursor.execute("BEGIN")
                cursor.executemany("DELETE FROM sent WHERE job = ?", gone)
                cursor.executemany("INSERT OR REPLACE INTO sent VALUES (?, ?, ?, ?)", new)
                cursor.execute("COMMIT")
        except sqlite3.Error as error:
            if self._file.in_transaction:
                self._file.rollback()
            raise SlurmError(self._sentence(error)) from error
        self._stored = dict(sent)

    def close(self) -> None:
        """Close the file and give up the lock."""
        self._file.close()
