# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import psutil
import pytest
from drom.agent.observe.event_log import EventLog, EventLogError, read, rotated

from tests.support.child_processes import open_descriptors

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = 1 << 16


def event(number: int, padding: int = 0) -> str:
    """Return an event with a number."""
    return json.dumps({"time": "2026-11-21T20:00:00.000Z", "event": "x", "n": number, "padding": "x" * padding})


def numbers(path: Path) -> list[int]:
    """Return the numbers of the events kept."""
    return [found["n"] for found in read(path)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a history is to be."""
    return tmp_path / "events"


@pytest.fixture
def history(path: Path) -> Iterator[EventLog]:
    """Return an open history."""
    history = EventLog(path, SIZE)
    history.open()
    yield history
    history.close()


def test_the_log_outlives_its_writer(path: Path) -> None:
    """The next agent goes on where the last one ended; everybody may read, whatever the umask was."""
    before = os.umask(0o077)
    try:
        for number in range(3):
            history = EventLog(path, SIZE)
            history.open()
            assert history.append(event(number)) == ""
            history.close()
    finally:
        os.umask(before)

    assert numbers(path) == [0, 1, 2]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_the_log_stays_below_its_size(history: EventLog, path: Path) -> None:
    """After many events the newest are there, at least a third of the size, and never more than all of it."""
    for number in range(2000):
        assert history.append(event(number, padding=100)) == ""
        sizes = [file.stat().st_size for file in (path, rotated(path)) if file.exists()]
        assert sum(sizes) <= SIZE

    kept = numbers(path)
    assert kept == list(range(kept[0], 2000))
    assert sum(sizes) > SIZE / 3


@pytest.mark.parametrize("torn", ['{"time": "2026-11-2', "", "[]\n", "\xff\0\n", '{"event": 1}\n', "[" * 100_000])
def test_a_torn_line_is_skipped(path: Path, torn: str) -> None:
    """What is no event, at the end or between, costs no other."""
    path.write_text(event(1) + "\n" + torn, encoding="latin-1")
    history = EventLog(path, 1 << 20)
    history.open()
    history.append(event(2))
    history.close()

    assert numbers(path) == [1, 2]


def test_a_full_disk_costs_events_and_no_more(tmp_path: Path) -> None:
    """A full disk is reported once; half-written events are skipped; with room again events are kept again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        history = EventLog(disk / "events", SIZE)
        history.open()
        (disk / "filler").write_bytes(b"x" * 8192)
        told = [history.append(event(number, padding=500)) for number in range(30)]
        assert [bool(sentence) for sentence in told].count(True) == 1
        assert re.fullmatch(r"/.*/events cannot be written \(No space left on device\): events are lost\.", max(told))
        (disk / "filler").unlink()
        assert history.append(event(99)) == ""
        history.close()
        kept = numbers(disk / "events")
        assert kept == [*range(30 - history.lost), 99]
        assert 0 < history.lost < 30
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_file_that_was_taken_away_is_made_anew(history: EventLog, path: Path) -> None:
    """Whoever clears the history, or puts it elsewhere, loses only what was in it."""
    history.append(event(1))
    path.unlink()
    history.append(event(2))
    assert numbers(path) == [2]

    path.rename(path.with_name("saved"))
    history.append(event(3))
    assert (numbers(path), numbers(path.with_name("saved"))) == ([3], [2])


def test_an_event_that_is_too_large_is_lost(history: EventLog, path: Path) -> None:
    """The lost event is counted, and the next one is kept."""
    assert "File too large" in history.append(event(1, padding=SIZE))
    history.append(event(2))

    assert (numbers(path), history.lost) == ([2], 1)


def test_only_one_agent_writes(history: EventLog, path: Path) -> None:
    """A second one is told to choose another file."""
    with pytest.raises(EventLogError, match=r"another agent uses this file: choose another --events-file\.$"):
        EventLog(path, SIZE).open()
    assert history.append(event(1)) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize("alone", [False, True])
def test_who_may_read_cannot_keep_an_agent_out(alone: bool) -> None:
    """Another user who locks every file that he can open neither stops the next agent nor its history."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "events"
        first = EventLog(path, SIZE, alone=alone)
        first.open()
        first.append(event(1))
        first.close()
        lock_all = "for f in *; do { exec {fd}<$f && flock --shared $fd; } 2>&- ; done; echo locked; read"
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "bash", "-c", lock_all]
        with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"locked\n"
            second = EventLog(path, SIZE, alone=alone)
            second.open()
            assert second.append(event(2)) == ""
            second.close()
            other.communicate(b"\n")
        assert numbers(path) == [1, 2]


def test_a_lock_that_others_may_open_is_refused(path: Path) -> None:
    """Else whoever made it, or opened it before, would decide whether there is a history."""
    path.with_name("events.lock").touch(mode=0o644)
    with pytest.raises(
        EventLogError, match=r"events\.lock is not a file of this user alone: choose another --events-file"
    ):
        EventLog(path, SIZE).open()


def test_a_file_with_another_name_is_left_as_it_is(tmp_path: Path, path: Path) -> None:
    """Users who may write in the folder of a history can give it the name of any file, such as a secret of root."""
    secret = tmp_path / "secret"
    secret.write_text("secret", encoding="utf-8")
    secret.chmod(0o600)
    path.hardlink_to(secret)
    with pytest.raises(EventLogError, match="it has another name, so it may be another file of this user: choose"):
        EventLog(path, SIZE).open()
    assert (secret.read_text(encoding="utf-8"), secret.stat().st_mode & 0o777) == ("secret", 0o600)


@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "nowhere", "theirs"])
def test_what_is_no_file_of_ours_is_refused(tmp_path: Path, kind: str) -> None:
    """Nobody can make an agent wait, or write into a file of somebody else."""
    path = tmp_path / "events"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(tmp_path / "other")
    elif kind == "folder":
        path.mkdir()
    elif kind == "nowhere":
        path = tmp_path / "nowhere" / "events"
    elif os.geteuid() == 0:
        path.touch()
        os.chown(path, 12345, 12345)
    else:
        pytest.skip("needs root")

    with pytest.raises(EventLogError, match=r"^cannot keep events in .*: choose another --events-file\.$"):
        EventLog(path, SIZE).open()
    assert not (tmp_path / "other").exists()


def test_who_follows_misses_nothing(history: EventLog, path: Path) -> None:
    """Lines that are half there are waited for, and the next file is read when this one is full."""
    written, rest = 0, ""

    def write() -> None:
        nonlocal written, rest
        if rest:
            path.write_bytes(path.read_bytes() + rest.encode())
            rest = ""
            return
        for _ in range(7):
            history.append(event(written, padding=1000))
            written += 1
        half, rest = event(written)[:20], event(written)[20:] + "\n"
        path.write_bytes(path.read_bytes() + half.encode())
        written += 1

    assert [found["n"] for found in islice(read(path, write), 300)] == list(range(300))
    assert rotated(path).exists()


def test_who_follows_has_one_file_open(history: EventLog, path: Path) -> None:
    """However often a full file makes room for the next one."""

    def write() -> None:
        for number in range(40):
            history.append(event(number, padding=1000))

    before = open_descriptors()
    most = max(psutil.Process().num_fds() for _ in islice(read(path, write), 500))

    assert most <= before + 2


def test_a_smaller_size_is_kept_from_the_beginning(history: EventLog, path: Path) -> None:
    """Of what an agent with room for more has left the newest events stay, whole, and others follow them."""
    for number in range(300):
        history.append(event(number, padding=100))
    history.close()
    smaller = EventLog(path, SIZE // 8)
    smaller.open()
    sizes = [file.stat().st_size for file in (path, rotated(path))]
    smaller.append(event(300))
    smaller.close()

    assert max(sizes) <= SIZE // 16
    kept = numbers(path)
    assert kept[-1] == 300
    assert kept == sorted(kept)
    assert {file.name for file in path.parent.iterdir()} == {"events", "events.1", "events.lock"}


def test_what_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    """One sentence names the file."""
    with pytest.raises(EventLogError, match=r"^no events can be read in /.*nothing \(No such file or directory\): "):
        list(read(tmp_path / "nothing"))
