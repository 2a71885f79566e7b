# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import errno
import os
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from drom.agent.ipc.mailboxes import MailboxError, Mailboxes, MailboxState

from dromlib import layout
from dromlib.layout import MAILBOX

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UID = os.geteuid()
FALLOC_FL_KEEP_SIZE = 1


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Mailboxes]:
    """Return an empty directory of mailboxes."""
    made = Mailboxes(tmp_path / "mail")
    yield made
    made.close()


def say(boxes: Mailboxes, number: int, **fields: int) -> None:
    """Write into a mailbox as its program does."""
    fd = boxes.open(number)
    for name, value in fields.items():
        os.pwrite(fd, value.to_bytes(8, "little"), MAILBOX.fields[name].offset)
    os.close(fd)


@contextmanager
def kept_open(boxes: Mailboxes, number: int) -> Iterator[int]:
    """Keep a descriptor of a mailbox, as its program has."""
    fd = boxes.open(number)
    yield fd
    os.close(fd)


def grow(fd: int, mode: int = 0) -> None:
    """Have a mailbox take up a megabyte."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.fallocate(fd, mode, ctypes.c_long(0), ctypes.c_long(1 << 20)) == 0, os.strerror(ctypes.get_errno())
    assert 512 * os.fstat(fd).st_blocks >= 1 << 20


def assert_small(fd: int) -> None:
    """A file has the size and takes up the space of a mailbox."""
    about = os.fstat(fd)
    assert about.st_size == layout.MAILBOX_SIZE
    assert 512 * about.st_blocks <= max(4 * layout.MAILBOX_SIZE, about.st_blksize)


class TestMake:
    """New mailboxes."""

    def test_a_mailbox_is_private_and_whole(self, boxes: Mailboxes) -> None:
        """A mailbox belongs to its user alone and is allocated in full, so that no program dies of a full disk."""
        number = boxes.make(UID, 3)
        stat = (boxes.directory / str(number)).stat()

        assert (stat.st_mode & 0o7777, stat.st_uid, stat.st_size) == (0o600, UID, layout.MAILBOX_SIZE)
        assert stat.st_blocks * 512 >= layout.MAILBOX_SIZE

    def test_a_mailbox_has_magic_version_and_slot(self, boxes: Mailboxes) -> None:
        """Magic, version and slot stand in it, and nothing has been said."""
        data = (boxes.directory / str(boxes.make(UID, 3))).read_bytes()

        assert MAILBOX.unpack(data) | {"magic": layout.MAILBOX_MAGIC, "layout_version": 1, "slot": 3} == MAILBOX.unpack(
            data
        )
        assert not any(data[MAILBOX.fields["applied"].offset :])

    @pytest.mark.skipif(UID != 0, reason="needs root to give files away")
    def test_a_mailbox_is_given_to_its_user(self, boxes: Mailboxes) -> None:
        """The program's user owns the file."""
        assert (boxes.directory / str(boxes.make(65534, 0))).stat().st_uid == 65534

    def test_the_directory_shows_no_names(self, boxes: Mailboxes) -> None:
        """Users may pass through but not list."""
        assert boxes.directory.stat().st_mode & 0o777 == 0o711

    def test_numbers_go_on(self, boxes: Mailboxes) -> None:
        """A number is never used twice, not even by the next agent."""
        first = boxes.make(UID, 0)
        boxes.remove(first)
        second = boxes.make(UID, 0)
        again = Mailboxes(boxes.directory)
        third = again.make(UID, 0)
        again.close()

        assert first < second < third

    @pytest.mark.parametrize(
        ("number", "remedy"),
        [
            (errno.EDQUOT, "free space there"),
            (errno.EMFILE, "allow the agent more open files (ulimit -n)"),
            (errno.EROFS, "check the directory"),
        ],
    )
    def test_the_remedy_fits_the_error(
        self, boxes: Mailboxes, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
    ) -> None:
        """Space is asked for only where space is missing."""

        def fail(*_: object) -> int:
            raise OSError(number, "fails")

        monkeypatch.setattr(os, "open", fail)
        with pytest.raises(MailboxError) as failure:
            boxes.make(UID, 0)
        assert str(failure.value) == f"cannot make a mailbox in {boxes.directory}: {os.strerror(number)}: {remedy}."

    def test_a_directory_that_was_removed_needs_another_agent(self, boxes: Mailboxes) -> None:
        """The agent makes the directory when it starts."""
        boxes.directory.rmdir()
        with pytest.raises(MailboxError, match=r": No such file or directory: restart the agent, which makes the dir"):
            boxes.make(UID, 0)

    @pytest.mark.parametrize("call", ["posix_fallocate", "pwrite", "open"])
    def test_a_full_disk_is_a_sentence(self, boxes: Mailboxes, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
        """Where a mailbox cannot be made none is left."""

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "full")

        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(
                MailboxError, match=r"^cannot make a mailbox in .*: No space left on device: free .*\.$"
            ):
                boxes.make(UID, 0)
        assert list(boxes.directory.iterdir()) == []


class TestRead:
    """What programs have said."""

    def test_all_of_it(self, boxes: Mailboxes) -> None:
        """Newest epoch applied, points passed, and work done."""
        number = boxes.make(UID, 0)
        say(boxes, number, applied=layout.EPOCH_RETIRED, polls=5, progress=6)

        assert boxes.read(number) == MailboxState(layout.EPOCH_RETIRED, 5, 6)

    @pytest.mark.parametrize("kind", ["gone", "short", "fifo", "link", "folder"])
    def test_what_is_no_mailbox_is_none(self, boxes: Mailboxes, kind: str) -> None:
        """Whatever its user puts in the place of the file, the agent neither waits nor fails."""
        number = boxes.make(UID, 0)
        path = boxes.directory / str(number)
        path.unlink()
        if kind == "short":
            path.write_bytes(b"DROMBOX1")
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "link":
            path.symlink_to("/etc/passwd")
        elif kind == "folder":
            path.mkdir()

        assert boxes.read(number) is None

    @pytest.mark.parametrize("mode", [0, FALLOC_FL_KEEP_SIZE])
    def test_one_that_has_grown_is_cut(self, boxes: Mailboxes, mode: int) -> None:
        """Whoever reads it finds what was said, and leaves it with its size, also where its size did not tell."""
        number = boxes.make(UID, 0)
        say(boxes, number, applied=7, polls=5)
        with kept_open(boxes, number) as fd:
            grow(fd, mode)
            assert boxes.read(number) == MailboxState(7, 5, 0)
            assert_small(fd)
        assert boxes.read(number) == MailboxState(7, 5, 0)

    @pytest.mark.parametrize("others", [True, False])
    def test_one_that_has_grown_is_cut_before_it_is_removed(self, boxes: Mailboxes, others: bool) -> None:
        """Who keeps it open keeps the space of a mailbox, which its program may still have in its memory."""
        number = boxes.make(UID, 0)
        with kept_open(boxes, number) as fd:
            grow(fd)
            if others:
                boxes.keep_only(set())
            else:
                boxes.remove(number)
            assert_small(fd)
            assert os.fstat(fd).st_nlink == 0

    def test_a_link_to_a_large_file_does_not_cut_it(self, boxes: Mailboxes, tmp_path: Path) -> None:
        """Only what lies in the directory itself is a mailbox."""
        number = boxes.make(UID, 0)
        (tmp_path / "large").write_bytes(bytes(1 << 20))
        (boxes.directory / str(number)).unlink()
        (boxes.directory / str(number)).symlink_to(tmp_path / "large")

        assert boxes.read(number) is None
        boxes.remove(number)
        assert (tmp_path / "large").stat().st_size == 1 << 20

    def test_clear_forgets_the_acknowledgement_alone(self, boxes: Mailboxes) -> None:
        """The next responder starts with nothing applied; counts stay."""
        number = boxes.make(UID, 0)
        say(boxes, number, applied=7, polls=5)
        boxes.clear(number)

        assert boxes.read(number) == MailboxState(0, 5, 0)


class TestWatch:
    """Which mailboxes have been written to."""

    def test_writes_are_seen_once(self, boxes: Mailboxes) -> None:
        """Every mailbox written to since the last look is named, once."""
        numbers = [boxes.make(UID, slot) for slot in range(3)]
        boxes.changed_mailboxes()
        say(boxes, numbers[0], applied=1)
        say(boxes, numbers[2], applied=1)
        say(boxes, numbers[2], applied=2)

        assert boxes.changed_mailboxes() == {numbers[0], numbers[2]}
        assert boxes.changed_mailboxes() == set()

    def test_other_files_are_passed_over(self, boxes: Mailboxes) -> None:
        """A name that is no number is nobody's."""
        (boxes.directory / "notes").write_text("x", encoding="utf-8")

        assert boxes.changed_mailboxes() == set()

    def test_lost_events_mean_look_at_all(self, boxes: Mailboxes, monkeypatch: pytest.MonkeyPatch) -> None:
        """When the kernel's queue ran over nobody knows who has written."""
        read, write = os.pipe2(os.O_NONBLOCK)
        os.write(write, struct.pack("iIII", -1, 0x4000, 0, 0) + struct.pack("iIII16s", 1, 2, 0, 16, b"7"))
        with monkeypatch.context() as patch:
            patch.setattr(boxes, "watch", read)
            assert boxes.changed_mailboxes() is None
        os.close(read)
        os.close(write)


def test_remove_all_but(boxes: Mailboxes) -> None:
    """Mailboxes of nobody are removed; whatever else lies there is not the agent's."""
    kept, gone = boxes.make(UID, 0), boxes.make(UID, 1)
    others = ["junk", "007", "\u0663", "1.bak"]
    for name in others:
        (boxes.directory / name).touch()
    (boxes.directory / "98").mkdir()
    (boxes.directory / "97").symlink_to("junk")

    boxes.keep_only({kept, 99})

    assert {path.name for path in boxes.directory.iterdir()} == {str(kept), "98", "97", *others}
    boxes.remove(gone)
