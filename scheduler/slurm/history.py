# SPDX-License-Identifier: Apache-2.0
"""What ended jobs used, on disk: Slurm itself forgets them after MinJobAge, minutes later."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from drom.agent.errors import SlurmError
from drom.agent.model.core_use import CoreUse
from drom.scheduler.slurm.database import open_database, sentence_of
from drom.scheduler.slurm.usage import JobUse

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FILE = "history.sqlite"
KEPT = 400 * 86400
"""Seconds for which a job is kept after its end."""
_TABLE = """
    CREATE TABLE IF NOT EXISTS jobs (job TEXT, user TEXT, account TEXT, name TEXT, nodes INT, cpus INT,
    started INT, ended INT, held REAL, lent REAL, borrowed REAL, PRIMARY KEY (job, started))
"""
_INDEX = "CREATE INDEX IF NOT EXISTS jobs_by_end ON jobs (ended)"


class History:
    """The file of ended jobs in `folder`, which is created. Several processes may have it open.

    Raises SlurmError as `open_database`.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._file = self._open()
        self._has_failed = False

    def _open(self) -> sqlite3.Connection:
        return open_database(self._path, _TABLE, _INDEX)

    def record(self, uses: Iterable[JobUse]) -> None:
        """Store the jobs that have ended, all at once; forget those that ended long before. Raises SlurmError.

        After a failure the file is opened anew: somebody may have moved it.
        """
        new = [use for use in uses if use.ended is not None]
        if not new:
            return
        if self._has_failed:
            self._file.close()
            self._file, self._has_failed = self._open(), False
        oldest = max(use.ended or 0 for use in new) - KEPT
        rows = [(*use[:-1], *use.used) for use in new]
        try:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.execute("DELETE FROM jobs WHERE ended < ?", (oldest,))
            self._file.executemany("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
            self._file.execute("COMMIT")
        except sqlite3.Error as error:
            self._has_failed = True
            if self._file.in_transaction:
                self._file.rollback()
            raise SlurmError(sentence_of(self._path, error)) from error

    def read(self, since: float) -> list[JobUse]:
        """Return the jobs that have ended since a time in seconds since 1970, in that order. Raises SlurmError."""
        try:
            rows = self._file.execute("SELECT * FROM jobs WHERE ended >= ? ORDER BY ended, job", (since,)).fetchall()
        except sqlite3.Error as error:
            raise SlurmError(sentence_of(self._path, error)) from error
        return [JobUse._make((*row[:8], CoreUse(*row[8:]))) for row in rows]

    def close(self) -> None:
        """Close the file."""
        self._file.close()
