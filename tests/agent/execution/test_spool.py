# SPDX-License-Identifier: Apache-2.0
"""What is known of an attempt at each point at which an agent or a drom-step may have died."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from drom.agent.execution import spool, step_requests
from drom.agent.execution.spool import Folder, Spool, SpoolError, Status

from tests.support.fake_scheduler import start

if TYPE_CHECKING:
    from pathlib import Path

WANTED = start(7, "true", env={"A": "b\udcff"})


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return the folder of an attempt that was begun in the boot `now`."""
    whole = Spool(tmp_path / "spool")
    found = whole.folder(7, 1)
    found.begin(WANTED, "now")
    whole.close()
    return found


def test_what_was_begun_is_found_again(folder: Folder) -> None:
    """Every field comes back, and the folder is for nobody else's eyes."""
    assert folder.start() == WANTED
    assert (folder.path.stat().st_mode & 0o777, folder.path.parent.stat().st_mode & 0o777) == (0o700, 0o700)


def test_an_agent_died_before_it_started_anything(folder: Folder) -> None:
    """The folder is not locked and has no pid: it can be started as if it had never been."""
    assert folder.state("now") == spool.NEVER


def test_a_step_lives(folder: Folder) -> None:
    """A step that holds the lock is about to begin, and then has a pid."""
    lock = folder.lock()
    assert lock is not None
    assert folder.lock() is None
    assert folder.state("now") == spool.BEGINNING
    (folder.path / "pid").write_text("", encoding="ascii")
    assert folder.state("now") == spool.BEGINNING
    (folder.path / "pid").write_text("12\n345\n", encoding="ascii")
    assert (folder.state("now"), folder.pids()) == (spool.RUNNING, [12, 345])
    os.close(lock)


def test_a_step_was_killed(folder: Folder) -> None:
    """A killed step has a pid and no status; a step of an earlier boot has ended, whatever it wrote."""
    assert folder.state("later") == spool.LOST
    (folder.path / "pid").write_text("12\n", encoding="ascii")
    assert folder.state("now") == spool.LOST


def test_a_status_is_what_counts(folder: Folder) -> None:
    """Whoever holds what, and whichever boot it is."""
    text = json.dumps({"status": 3, "time": 1.5, "cpu_seconds": 0.25, "max_rss": 4096}) + " " * 100
    (folder.path / "status").write_text(text, encoding="ascii")

    assert (folder.state("now"), folder.state("later")) == (spool.OVER, spool.OVER)
    assert folder.status() == Status(3, 1.5, 0.25, 4096)


def test_a_program_began_when_its_pid_was_recorded(folder: Folder) -> None:
    """Not when that of drom-step was, which comes first."""
    assert folder.began() == 0.0
    (folder.path / "pid").write_text("77\n", encoding="ascii")
    assert folder.began() == 0.0
    (folder.path / "pid").write_text("77\n78\n", encoding="ascii")
    os.utime(folder.path / "pid", (5.5, 5.5))
    assert folder.began() == 5.5


def test_half_begun_folders_are_removed(tmp_path: Path, folder: Folder) -> None:
    """What has no start.json was never begun; the others are found."""
    (tmp_path / "spool" / "8.1").mkdir()
    (tmp_path / "spool" / "8.1" / "start.new").write_text("{", encoding="ascii")
    folder.order(5)
    found = Spool.__new__(Spool)
    found.path = tmp_path / "spool"

    assert [(one.path.name, one.start(), one.cores()) for one in found.list_attempts()] == [("7.1", WANTED, 5)]
    assert sorted(path.name for path in (tmp_path / "spool").iterdir()) == ["7.1"]


def test_a_removal_that_was_interrupted_goes_on(
    tmp_path: Path, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent may be killed while it removes an attempt: the next one starts, and removes the rest, with its steps."""
    Folder(folder.path / f"{spool.STEP}1").begin(WANTED, "now")
    for name in spool.FILES - {"group"}:
        (folder.path / name).touch()
    with monkeypatch.context() as killed:
        killed.setattr(shutil, "rmtree", lambda *_, **__: None)
        folder.remove()
    assert len(list(folder.path.iterdir())) == len(spool.FILES) - 1

    following = Spool(tmp_path / "spool")
    assert list(following.list_attempts()) == []
    following.close()
    assert not (tmp_path / "spool").exists()


def test_a_spool_has_one_agent(tmp_path: Path) -> None:
    """A second one is refused in a sentence, until the first has closed it; an empty one goes."""
    first = Spool(tmp_path / "spool")
    with pytest.raises(SpoolError, match=r"^another agent uses .*/spool: give each its own --spool\.$"):
        Spool(tmp_path / "spool")
    first.close()
    assert not (tmp_path / "spool").exists()
    (tmp_path / "file").touch()
    with pytest.raises(SpoolError, match=r"^cannot use .*/file: File exists: choose a folder you may write with"):
        Spool(tmp_path / "file")


def test_a_spool_that_others_may_replace_is_refused(tmp_path: Path) -> None:
    """What an agent reads there decides which processes it ends."""
    tmp_path.chmod(0o777)
    sentence = rf"^others may write in {tmp_path} \(mode 0777\), and so may replace .*/spool: choose another --spool\.$"
    with pytest.raises(SpoolError, match=sentence):
        Spool(tmp_path / "spool")
    assert not (tmp_path / "spool").exists()


def test_a_spool_is_nothing_but_a_spool(tmp_path: Path) -> None:
    """A folder with something else in it is refused, and nothing in it is touched."""
    (tmp_path / "home" / "thesis").mkdir(parents=True)
    (tmp_path / "home" / "8.1").mkdir()

    with pytest.raises(
        SpoolError, match=r"^.*/home contains other files, such as thesis: choose an empty folder with --spool\.$"
    ):
        Spool(tmp_path / "home")

    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["8.1", "thesis"]


def test_folders_that_are_called_as_ours_are_not_removed(tmp_path: Path) -> None:
    """As those of the versions of a program are; nor is what a link of such a name leads to."""
    (tmp_path / "python" / "3.11").mkdir(parents=True)
    (tmp_path / "python" / "3.11" / "bin").write_text("mine", encoding="ascii")
    with pytest.raises(
        SpoolError, match=r"^.*/python contains other files, such as 3\.11: choose an empty folder with --spool\.$"
    ):
        Spool(tmp_path / "python")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "3.12").symlink_to(tmp_path / "python")
    with pytest.raises(SpoolError, match=r"^.*/links contains other files, such as 3\.12: "):
        Spool(tmp_path / "links")
    assert (tmp_path / "python" / "3.11" / "bin").read_text(encoding="ascii") == "mine"


def test_fields_of_another_version_are_left_out(folder: Folder) -> None:
    """What runs goes on under an agent that is older than the one that started it."""
    path = folder.path / "start.json"
    value = json.loads(path.read_bytes())
    path.write_text(json.dumps(value | {"start": value["start"] | {"colour": "red"}}), encoding="ascii")

    assert folder.start() == WANTED


@pytest.mark.parametrize("text", [b"", b"\xff", b"[]", b'{"start": 1}', b'{"start": {"job": "x"}}', b"{"])
def test_what_cannot_be_read_is_nothing(folder: Folder, text: bytes) -> None:
    """A damaged file ends no agent."""
    for name in ("start.json", "pid", "status", "cores"):
        (folder.path / name).write_bytes(text)

    assert (folder.start(), folder.pids(), folder.status(), folder.cores()) == (None, [], None, None)
    (folder.path / "status").unlink()
    assert folder.state("now") == spool.LOST


def test_a_pid_is_a_number_that_can_be_one(folder: Folder) -> None:
    """Lines that are none are left out, as is one that is not whole."""
    (folder.path / "pid").write_bytes(b"12\n99999999999\n-5\n345\n67")

    assert folder.pids() == [12, 345]


NUMBER = b"0123456789abcdef" * 2


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"7\0001\0" + NUMBER + b"\0n2\0/\0cmd",
        b"7\0001\0" + NUMBER + b"\0n2\0/\0cmd\0more\0",
        b"x\0001\0" + NUMBER + b"\0n2\0/\0cmd\0",
        b"7" * 5000 + b"\0001\0" + NUMBER + b"\0n2\0/\0cmd\0",
        b"7\000" + b"1" * 19 + b"\0" + NUMBER + b"\0n2\0/\0cmd\0",
        "\N{ARABIC-INDIC DIGIT SEVEN}".encode() + b"\0001\0" + NUMBER + b"\0n2\0/\0cmd\0",
        b"7\0001\0../../etc\0n2\0/\0cmd\0",
        b"7\0001\0" + NUMBER + b"\0\0/\0cmd\0",
        b"7\0001\0" + NUMBER + b"\0n2\0here\0cmd\0",
        b"7\0001\0" + NUMBER + b"\0n2\0/\0\0",
    ],
)
def test_what_is_no_request_of_a_launcher_is_dropped(data: bytes) -> None:
    """Numbers become names of folders, so that nothing else may be one."""
    assert step_requests.parse(data, 0) is None
    good = b"7\0001\0" + NUMBER + b"\0n2\0/tmp\0orted -x\0"
    assert step_requests.parse(good, 5) == step_requests.Request(7, 1, NUMBER.decode(), "n2", "/tmp", "orted -x", 5)


def test_a_control_group_goes_with_its_folder(tmp_path: Path) -> None:
    """Also one that could not be made, or was removed by somebody else."""
    folder, group = Folder(tmp_path / "7.1"), tmp_path / "group"
    folder.begin(start(7, "true"), "boot")
    assert folder.group() is None
    with pytest.raises(FileNotFoundError):
        folder.confine(tmp_path / "nosuch" / "group", 4096)
    folder.confine(group, 4096)
    (group / "memory.limit_in_bytes").unlink()  # the kernel's files go with their group
    assert Folder(tmp_path / "7.1").group() == group

    folder.remove()

    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_keeps_no_signal_from_an_attempt(folder: Folder) -> None:
    """That it was sent the signal before its limit is recorded if that is possible."""
    assert (folder.notify_once(), folder.notify_once()) == (True, False)
    folder.remove()
    assert folder.notify_once()
