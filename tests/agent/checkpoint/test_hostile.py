# SPDX-License-Identifier: Apache-2.0
"""Owners of fillers who change what CRIU opens as root, or have it write more than they may."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from drom.agent.checkpoint.images import CONTAINER, WHOLE, CheckpointError

from tests.agent.checkpoint.conftest import Node, await_true
from tests.support.other_users import NOBODY

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system

READS = """
import os, sys, time
os.chdir(sys.argv[1])
file = os.open("mine/file", os.O_RDWR)
if len(sys.argv) > 2:
    os.chdir("mine")
said = open(sys.argv[1] + "/said", "a", buffering=1)
while True:
    said.write(f"{os.pread(file, 100, 0)}\\n")
    time.sleep(0.01)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of the job's user, where others can look."""
    made = Path(tempfile.mkdtemp(prefix="drom-test-"))
    (made / "mine").mkdir()
    (made / "mine" / "file").write_text("mine", encoding="ascii")
    (made / "mine" / "file").chmod(0o600)
    yield made
    shutil.rmtree(made)


def _said(folder: Path) -> list[str]:
    said = folder / "said"
    return said.read_text("ascii").split() if said.exists() else []


def _reader(here: Node, folder: Path, *words: str) -> None:
    """Save a job in a container that reads a file which it has open; further words have it enter the folder."""
    if not here.tools.runc:
        pytest.skip("runc is not installed: make criu")
    pid = here.start(CONTAINER, ("/usr/bin/python3", "-c", READS, str(folder), *words))
    await_true(lambda: len(_said(folder)) > 3, "the program does not begin")
    here.saver.save(here.image(pid, way=CONTAINER))


def test_a_link_made_since_the_save_opens_no_file_of_others(here: Node, folder: Path) -> None:
    """CRIU opens files with root's rights. The job, which lacks these, has what it had, and is restored only then."""
    theirs = folder / "theirs"
    theirs.mkdir()
    (theirs / "file").write_text("root", encoding="ascii")  # CRIU compares size and mode alone
    (theirs / "file").chmod(0o600)
    shutil.chown(theirs / "file", NOBODY, NOBODY)
    _reader(here, folder)
    (folder / "mine").rename(folder / "kept")
    (folder / "mine").symlink_to(theirs)
    before = len(_said(folder))

    with pytest.raises(CheckpointError, match="a path of a file that it has open leads elsewhere since the save"):
        here.restore()
    assert len(_said(folder)) == before
    assert here.states() == [("7.1", WHOLE)]

    (folder / "mine").unlink()
    (folder / "kept").rename(folder / "mine")
    here.restore()
    await_true(lambda: len(_said(folder)) > before + 3, "the program stands still")
    assert set(_said(folder)) == {"b'mine'"}


def test_a_link_made_since_the_save_enters_no_folder_of_others(here: Node, folder: Path) -> None:
    """The working folder of a process is among what is compared."""
    (folder / "theirs").mkdir()
    _reader(here, folder, "enters")
    (folder / "mine").rename(folder / "kept")
    (folder / "mine").mkdir()
    (folder / "kept" / "file").rename(folder / "mine" / "file")
    (folder / "mine").rename(folder / "theirs" / "mine")
    (folder / "mine").symlink_to(folder / "theirs" / "mine")

    with pytest.raises(CheckpointError, match="a path of a file that it has open leads elsewhere since the save"):
        here.restore()
    assert here.states() == [("7.1", WHOLE)]
