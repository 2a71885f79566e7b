# SPDX-License-Identifier: Apache-2.0
"""The jobs that were released, on disk: what each had before, so that another daemon can take it back."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from drom.agent.errors import SlurmError
from drom.scheduler.slurm.database import open_database, sentence_of
from drom.scheduler.slurm.engine import Asked

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE = "slurm.sqlite"
_SCHEMA = "CREATE TABLE IF NOT EXISTS sent (job TEXT PRIMARY KEY, licences TEXT, nodes TEXT, nice INT)"


class Store:
    """The file of released jobs in `folder`, which is created. Only one daemon has it open.

    Raises SlurmError as `open_database`.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._file = open_database(self._path, _SCHEMA, is_exclusive=True)
        self._stored = self.load()

    def load(self) -> dict[str, Asked]:
        """Return the released jobs, by name, with what each had before. Raises SlurmError."""
        try:
            rows = self._file.execute("SELECT job, licences, nodes, nice FROM sent").fetchall()
        except sqlite3.Error as error:
            raise SlurmError(sentence_of(self._path, error)) from error
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
            raise SlurmError(sentence_of(self._path, error)) from error
        self._stored = dict(sent)

    def close(self) -> None:
        """Close the file and give up the lock."""
        self._file.close()
