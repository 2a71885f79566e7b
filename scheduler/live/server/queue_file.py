# SPDX-License-Identifier: Apache-2.0
"""The file of a queue: SQLite with a write-ahead log, and the space that is reserved for it on its disk."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from drom.scheduler.live.server import schema
from drom.scheduler.live.server.reserve import Reserve

LOCK_SECONDS = 0.05
"""Seconds for which a write waits if another program, such as a backup, has locked the queue."""


def is_locked(error: Exception) -> bool:
    """Return whether an error is due to another program that has locked the queue."""
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


class QueueFile:
    """The file `path` in the folder with the descriptor `at`. Raises OSError if space cannot be reserved there.

    A committed transaction survives the end of the process; with `durable` it survives a loss of power as well.
    """

    leads = True

    def __init__(self, path: Path, at: int, *, durable: bool) -> None:
        self._path, self._durable = path, durable
        self._reserve = Reserve(at)
        self.fill = self._reserve.fill
        self.make_room = self._reserve.give
        self.close = self._reserve.close

    def __str__(self) -> str:
        """Return its path."""
        return str(self._path)

    def open(self) -> sqlite3.Connection:
        """Open the queue; on a full disk with the reserved space. Raises sqlite3.Error, OSError, and as `schema`."""
        while True:
            db = sqlite3.connect(self._path, isolation_level=None)
            try:
                self._prepare(db)
            except sqlite3.OperationalError as error:
                db.close()
                if is_locked(error) or not self.make_room():
                    raise
            except BaseException:
                db.close()
                raise
            else:
                return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        """Set up a connection and, in a new file, the tables. Raises an error for a file that is not drom's queue."""
        schema.check(db)  # before anything is changed
        for end in ("", "-wal", "-shm"):  # other users may not read environments
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self._path}{end}").chmod(0o600)
        db.execute("PRAGMA temp_store=MEMORY")  # sorting works also when the disk is full
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={'FULL' if self._durable else 'NORMAL'}")
        schema.prepare(db)
        db.execute(f"PRAGMA busy_timeout={round(1000 * LOCK_SECONDS)}")

    def check(self) -> None:
        """Do nothing: the lock beside the file keeps other schedulers away."""

    def store(self) -> None:
        """Do nothing: SQLite stores a transaction when it is committed."""
