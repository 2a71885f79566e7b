# SPDX-License-Identifier: Apache-2.0
"""The folder of a scheduler's queue: nothing in it is touched that is not the scheduler's."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from drom.agent.observe.log import Log
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster.settings import Settings
from drom.scheduler.live.server.schema import APPLICATION
from drom.scheduler.live.server.server import Server
from drom.scheduler.live.server.store import Store

from tests.scheduler.live.server.test_store import job

if TYPE_CHECKING:
    from pathlib import Path


def content(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, owner and content of all that is in a folder, and of itself."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        about = path.lstat()
        found[str(path)] = about.st_mode, about.st_uid, path.read_bytes() if path.is_file() else b""
    return found


def refusal(folder: Path) -> str:
    """Return why a queue is not kept in a folder, in which nothing has changed."""
    before = content(folder)
    with pytest.raises(SchedulerError) as told:
        Store(folder)
    assert content(folder) == before
    return str(told.value)


@pytest.mark.parametrize("name", ["control", "agents", "queue.lock", "queue.reserve", "notes.txt", "steward"])
def test_a_folder_with_files_of_others_is_refused(tmp_path: Path, name: str) -> None:
    """As somebody's home is; not even the names that are ours are touched."""
    (tmp_path / name).write_text("mine")
    (tmp_path / "mail").mkdir()
    (tmp_path / "mail" / "1").write_text("mine")
    assert "scheduler's" in refusal(tmp_path)
    assert refusal(tmp_path).endswith(" folder with --state.")


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    """Though it is called as ours is."""
    with closing(sqlite3.connect(tmp_path / "queue.sqlite")) as db:
        db.execute("CREATE TABLE notes (text)")
    before = content(tmp_path)[str(tmp_path / "queue.sqlite")]
    with pytest.raises(SchedulerError, match="cannot be opened: it is not a queue of drom: "):
        Store(tmp_path)
    assert content(tmp_path)[str(tmp_path / "queue.sqlite")] == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_a_folder_that_others_can_change_is_refused(tmp_path: Path) -> None:
    """One of another user, one that others may write or replace, and a link that another user has made."""
    folder = tmp_path / "state"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    assert refusal(folder) == f"{folder} belongs to another user: choose another folder with --state."
    os.chown(folder, 0, 0)
    for mode in (0o777, 0o1777, 0o770):
        folder.chmod(mode)
        assert f"others may write in {folder} (mode {mode:04o}): run chmod go-w " in refusal(folder)
    folder.chmod(0o711)
    tmp_path.chmod(0o777)
    fault = f"others may write in {tmp_path} (mode 0777), and so may replace {folder}: "
    assert refusal(folder) == f"{fault}choose another folder with --state."
    tmp_path.chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(folder)
    os.chown(link, 65534, 65534, follow_symlinks=False)
    assert "cannot be kept in" in refusal(link)
    os.chown(link, 0, 0, follow_symlinks=False)
    Store(link).close()
    assert (folder / "queue.sqlite").exists()


def test_what_belongs_beside_a_queue_may_be_there_before_it(tmp_path: Path) -> None:
    """An agent's spool, what a file system of its own has, and the scheduler's own log."""
    for name in ("steward", "spool", "lost+found"):
        (tmp_path / name).mkdir()
    (tmp_path / "scheduler.log").touch()
    Store(tmp_path).close()
    (tmp_path / "backup.sqlite").write_text("a copy")
    Store(tmp_path).close()


def test_a_queue_of_an_earlier_version_is_taken_and_marked(tmp_path: Path) -> None:
    """The earlier ones did not say in the file whose it is."""
    with closing(Store(tmp_path)) as store:
        store.write([job(1)], [], [])
    with closing(sqlite3.connect(tmp_path / "queue.sqlite", isolation_level=None)) as db:
        db.execute("PRAGMA application_id = 0")
        db.execute("DROP INDEX jobs_by_user")
    with closing(Store(tmp_path)) as store:
        assert store.living() == [job(1)]
    with closing(sqlite3.connect(tmp_path / "queue.sqlite")) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION,)


def test_a_scheduler_that_ends_removes_sockets_only(tmp_path: Path) -> None:
    """What has taken their place meanwhile stays."""
    server = Server(tmp_path, load_policy("fcfs"), Settings(), Log(quiet=True))
    (tmp_path / "control").unlink()
    (tmp_path / "control").write_text("mine")
    server.close()
    assert (tmp_path / "control").read_text() == "mine"
    assert not (tmp_path / "agents").exists()
