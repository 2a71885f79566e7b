# SPDX-License-Identifier: Apache-2.0
"""Where images lie, who can take one, and what is left of them after a crash."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import pytest
from drom.agent.checkpoint import images, store
from drom.agent.checkpoint.images import NEW, RESTORED, RESTORING, WHOLE, CheckpointError, Image, Quota
from drom.agent.checkpoint.store import ImageStore
from drom.agent.system.files import lock_folder

from tests.support.other_users import as_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from drom.agent.checkpoint.store import Entry

IMAGE = Image(7, 3, images.PROCESSES, 1000, 100, 4711, 99, "0" * 32)
QUOTA = Quota(1 << 30, 1 << 29)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[ImageStore]:
    """Return an empty store."""
    found = ImageStore(tmp_path / "images", QUOTA)
    yield found
    found.close()


def whole(kept: ImageStore, image: Image = IMAGE, data: bytes = b"memory") -> Entry:
    """Return a whole image with a file."""
    entry = kept.begin(image, len(data))
    store.write(entry.path / "pages-1.img", data)
    store.commit(entry)
    entry.release()
    return entry


def states(kept: ImageStore) -> list[tuple[str, str]]:
    """Return the names and states of all images."""
    return [(one.image.name, one.state) for one in kept.entries()]


def test_only_root_can_read_an_image(kept: ImageStore) -> None:
    """The store and its folders have mode 0700, the files 0600; they belong to root, not to the job's user."""
    entry = whole(kept)

    modes = {path.name: path.stat().st_mode & 0o777 for path in (kept.path, entry.path, *entry.path.iterdir())}
    assert modes == {"images": 0o700, "7.3": 0o700, "image.json": 0o600, "pages-1.img": 0o600}
    assert entry.path.stat().st_uid == os.geteuid()


def test_another_user_neither_reads_nor_replaces_an_image(kept: ImageStore) -> None:
    """A user gets EACCES, also for an image of a job of theirs."""
    path = whole(kept, Image(7, 3, images.PROCESSES, 65534, 65534, 4711, 99, "0" * 32)).path

    def refused(do: Callable[[], object]) -> bool:
        try:
            do()
        except PermissionError:
            return True
        return False

    def attempts() -> list[bool]:
        ways = (lambda: list(path.iterdir()), (path / "x").touch, lambda: path.rename(f"{path}.new"))
        return [refused(do) for do in ways]

    path.parent.parent.chmod(0o711)
    for folder in list(path.parents)[2:4]:
        folder.chmod(0o711)
    assert as_user(attempts) == [True] * 3


def test_a_store_is_not_placed_where_others_can_replace_it(tmp_path: Path) -> None:
    """A folder that others may write, a link and a folder with other files are refused with a sentence."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(CheckpointError, match=r"others may write in .*: choose another folder"):
        ImageStore(tmp_path / "open" / "images", QUOTA)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis").touch()
    with pytest.raises(CheckpointError, match="contains other files, such as thesis"):
        ImageStore(tmp_path / "used", QUOTA)
    (tmp_path / "link").symlink_to(tmp_path / "used")
    with pytest.raises(CheckpointError, match="is a link"):
        ImageStore(tmp_path / "link", QUOTA)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot use .*/file"):
        ImageStore(tmp_path / "file", QUOTA)


def test_a_store_has_one_agent(kept: ImageStore) -> None:
    """A second agent is refused while the first one lives."""
    with pytest.raises(CheckpointError, match="another agent uses"):
        ImageStore(kept.path, QUOTA)


def test_an_image_is_restored_once(kept: ImageStore) -> None:
    """Of two that take the same image, the second is refused, also once the first has released it."""
    whole(kept)
    entry = kept.take(7, 3, WHOLE, RESTORING)
    with pytest.raises(CheckpointError, match="no image 3 here that can be taken"):
        kept.take(7, 3, WHOLE, RESTORING)
    entry.release()
    with pytest.raises(CheckpointError, match="no image 3 here"):
        kept.take(7, 3, WHOLE, WHOLE)

    assert states(kept) == [("7.3", RESTORING)]


def test_an_image_that_is_worked_on_is_left_alone(kept: ImageStore) -> None:
    """While the lock is held nobody takes, settles or removes the image."""
    entry = kept.begin(IMAGE, 1)

    assert list(kept.take_unlocked()) == []
    with pytest.raises(CheckpointError, match="is in use"):
        kept.remove(7, 3)
    with pytest.raises(CheckpointError, match="is in use"):
        kept.take(7, 3, NEW, RESTORED)
    entry.release()
    assert [one.state for one in kept.take_unlocked()] == [NEW]


def test_a_job_has_one_image(kept: ImageStore) -> None:
    """A second image of a job, of any generation, is refused until the first is removed."""
    whole(kept)
    later = Image(7, 4, images.PROCESSES, 1000, 100, 4711, 99, "0" * 32)
    with pytest.raises(CheckpointError, match="job 7 has an image already"):
        kept.begin(later, 1)
    kept.remove(7, 3)
    whole(kept, later)

    assert states(kept) == [("7.4", WHOLE)]


def test_a_restored_job_is_saved_again_beside_its_image(kept: ImageStore) -> None:
    """The new image is of a later save; the old one stays until the new one is whole."""
    entry = whole(kept)
    old = kept.take(7, 3, WHOLE, RESTORING)
    old.rename(RESTORED)
    with pytest.raises(CheckpointError, match="job 7 has an image already"):
        kept.begin(IMAGE, 1)
    later = dataclasses.replace(entry.image, generation=4)
    whole(kept, later)

    assert states(kept) == [("7.3", RESTORED), ("7.4", WHOLE)]
    old.release()


def test_a_store_that_is_changed_by_others_is_waited_for(kept: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes never count the same room twice; one that hangs does not hang the others."""
    monkeypatch.setattr(store, "PATIENCE", 0.05)
    other = ImageStore(kept.path, QUOTA, owns=False)
    with kept._adding(), pytest.raises(CheckpointError, match="another process has used"):
        other.begin(IMAGE, 1)

    other.begin(IMAGE, 1).release()


def test_images_count_against_the_quota(kept: ImageStore) -> None:
    """A whole image counts with its size, a new one with its reservation; other users have room left."""
    entry = kept.begin(IMAGE, 1 << 28)
    assert entry.image.reserved == (1 << 28) + (1 << 26) + images.SLACK
    mine = Image(8, 1, images.PROCESSES, 1000, 100, 4711, 99, "0" * 32)
    with pytest.raises(CheckpointError, match="user 1000 may have images of 512 MiB"):
        kept.begin(mine, 1 << 28)
    kept.begin(Image(9, 1, images.PROCESSES, 2000, 100, 4711, 99, "0" * 32), 1 << 28).release()
    store.commit(entry)
    entry.release()

    kept.begin(mine, 1 << 28).release()


def test_what_a_crash_left_without_a_record_is_removed(kept: ImageStore) -> None:
    """A folder without a record, with that of another image, or to be removed goes; a locked one stays."""
    (kept.path / "5.1.new").mkdir()
    (kept.path / "6.1").mkdir()
    (kept.path / "6.1" / "image.json").write_text(images.to_json(IMAGE), encoding="utf-8")
    (kept.path / "9.1.removed").mkdir()
    (kept.path / "8.1.new").mkdir()
    lock = lock_folder(kept.path / "8.1.new")
    assert lock is not None

    assert states(kept) == []
    kept.sweep()
    assert {path.name for path in kept.path.iterdir()} == {"8.1.new", store.TOOLS}
    os.close(lock)


def test_a_disk_that_refuses_writing_leaves_nothing(kept: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new image that cannot be written is removed, and its lock released."""

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write", fail)
    with pytest.raises(CheckpointError, match="cannot be created: No space left on device"):
        kept.begin(IMAGE, 1)

    assert [path.name for path in kept.path.iterdir()] == [store.TOOLS]


def test_a_state_that_cannot_change_is_reported(kept: ImageStore) -> None:
    """An image that vanished cannot be renamed."""
    entry = whole(kept)
    entry.remove()
    with pytest.raises(CheckpointError, match="cannot be renamed: No such file"):
        entry.rename(RESTORING)
