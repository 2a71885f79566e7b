# SPDX-License-Identifier: Apache-2.0
"""What a saver makes of tools that are missing, too old, or fail; without CRIU."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import pytest
from drom.agent.checkpoint import images, store, tools
from drom.agent.checkpoint.containers import Containers
from drom.agent.checkpoint.images import CONTAINER, PROCESSES, RESTORED, RESTORING, WHOLE, CheckpointError, Image, Quota
from drom.agent.checkpoint.processes import Processes
from drom.agent.checkpoint.saver import Saver, restored_pid
from drom.agent.checkpoint.store import ImageStore
from drom.agent.system import proc

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.child_processes import Child

LIKE_CRIU = """#!/bin/sh
case $1 in
--version) echo "Version: {version}" ;;
*) {action} ;;
esac
"""


def program(path: Path, action: str = "exit 1", version: str = "4.1.1") -> str:
    """Write a program that behaves like CRIU in this respect; return its path."""
    path.write_text(LIKE_CRIU.format(action=action, version=version), encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[ImageStore]:
    """Return an empty store."""
    found = ImageStore(tmp_path / "images", Quota(1 << 34, 1 << 34))
    yield found
    found.close()


def saver(kept: ImageStore, criu: str) -> Saver:
    """Return a saver of plain processes."""
    made = tools.prepare(kept.path / store.TOOLS, criu, "no such program")
    return Saver(kept, made, {PROCESSES: Processes(made)})


def image_of(child: Child, way: str = PROCESSES) -> Image:
    """Return the record of a job whose first process is a child."""
    pid, start = child.identity
    return Image(7, 1, way, os.getuid(), os.getgid(), pid, start, proc.boot_id().hex())


def saved(kept: ImageStore, image: Image) -> None:
    """Put a whole image into the store."""
    entry = kept.begin(image, 1)
    store.commit(entry)
    entry.release()


def test_a_criu_that_is_missing_or_too_old_is_named(kept: ImageStore, tmp_path: Path) -> None:
    """The sentence says which version to install."""
    with pytest.raises(CheckpointError, match=r"CRIU is not installed: install CRIU 4\.1 or newer"):
        saver(kept, "no-such-criu")
    for version, shown in (("3.17.1", "3.17.1"), ("x", "0"), ("4", "4")):
        with pytest.raises(CheckpointError, match=f"is CRIU {shown}: install CRIU 4.1 or newer"):
            saver(kept, program(tmp_path / "criu", version=version))


def test_a_way_that_a_node_lacks_is_named(kept: ImageStore, tmp_path: Path, child: Child) -> None:
    """An image of a container waits for a node with runc."""
    made = saver(kept, program(tmp_path / "criu"))
    with pytest.raises(CheckpointError, match="runc is not installed"):
        Containers(made._tools)
    with pytest.raises(CheckpointError, match="job 7 needs runc, which this node lacks"):
        made.save(image_of(child, CONTAINER))
    saved(kept, image_of(child, CONTAINER))
    with pytest.raises(CheckpointError, match="job 7 was not restored, its image stays: job 7 needs runc"):
        made.restore(7, 1)

    assert [one.state for one in kept.entries()] == [WHOLE]


def test_a_dump_that_fails_leaves_no_image(kept: ImageStore, tmp_path: Path, child: Child) -> None:
    """The reason is in CRIU's log; without one, that is said."""
    log = 'echo "(0.1) Error (criu/sk-inet.c:191): inet: Connected TCP socket, consider" >"$5/dump.log"; exit 1'
    made = saver(kept, program(tmp_path / "criu", log))
    with pytest.raises(CheckpointError, match="not saved and goes on: it has an open TCP connection"):
        made.save(image_of(child))
    program(tmp_path / "criu")
    with pytest.raises(CheckpointError, match="not saved and goes on: no reason was reported"):
        made.save(image_of(child))

    assert [path.name for path in kept.path.iterdir()] == ["tools"]


def assert_not_saved(kept: ImageStore, tmp_path: Path, child: Child, criu: str, why: str) -> None:
    """Assert that a save by this script fails for this reason, and leaves no image."""
    made = saver(kept, program(tmp_path / "criu", criu))
    with pytest.raises(CheckpointError, match=f"not saved and goes on: {why}"):
        made.save(image_of(child))

    assert [path.name for path in kept.path.iterdir()] == ["tools"]


def test_a_dump_that_fails_with_a_long_log_leaves_no_image(kept: ImageStore, tmp_path: Path, child: Child) -> None:
    """The job goes on, as its end says that CRIU has left the processes in order; the reason is near that."""
    log = 'yes "(0.1) Pagemap" | head -c 3000000; echo "(0.1) Error (criu/sk-inet.c:191): inet: Connected TCP socket"'
    fails = f'({log}; echo "(0.1) Dumping FAILED.") >"$5/dump.log"; exit 1'
    assert_not_saved(kept, tmp_path, child, fails, "it has an open TCP connection")


def test_a_dump_that_outgrows_its_room_is_abandoned(kept: ImageStore, tmp_path: Path, child: Child) -> None:
    """Many files together, such as deleted ones that a job has open, take no more of the disk than one large file."""
    grows = 'for n in 1 2 3 4; do truncate -s 40M "$5/pages-$n.img"; done; until [ -e "$5/abandoned" ]; do sleep 0.01'
    fails = 'done; echo "(0.1) Error (criu/cr-dump.c:1): Dumping FAILED." >"$5/dump.log"; exit 1'
    assert_not_saved(kept, tmp_path, child, f"{grows}; {fails}", "its image is larger than the store has room for")


def test_tools_that_vanish_leave_no_image(kept: ImageStore, tmp_path: Path, child: Child) -> None:
    """A script that cannot be started is reported, and the job goes on."""
    made = saver(kept, program(tmp_path / "criu"))
    (kept.path / "tools" / "criu").unlink()
    with pytest.raises(CheckpointError, match=r"tools/criu cannot be started: No such file"):
        made.save(image_of(child))
    saved(kept, image_of(child))
    with pytest.raises(CheckpointError, match=r"its image stays: .*cannot be started"):
        made.restore(7, 1)

    assert [one.state for one in kept.entries()] == [WHOLE]


def test_a_job_with_another_users_process_is_not_saved(kept: ImageStore, tmp_path: Path, child: Child) -> None:
    """A restore must not give a user a process of another one."""
    made = saver(kept, program(tmp_path / "criu"))
    with pytest.raises(CheckpointError, match=rf"has a process of another user \({child.identity.pid}\)"):
        made.save(dataclasses.replace(image_of(child), uid=4711))

    assert kept.entries() == []


def test_an_image_of_a_job_that_runs_is_removed(
    kept: ImageStore, tmp_path: Path, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CRIU was killed when the image was whole and had not ended the processes: they have gone on."""
    monkeypatch.setattr("drom.agent.checkpoint.processes.PATIENCE_MS", 10)
    made = saver(kept, program(tmp_path / "criu"))
    saved(kept, image_of(child))
    made.recover()

    assert kept.entries() == []


def test_an_image_of_an_earlier_boot_stays(kept: ImageStore, tmp_path: Path, child: Child) -> None:
    """A process with the same number after a boot is another one."""
    made = saver(kept, program(tmp_path / "criu"))
    saved(kept, dataclasses.replace(image_of(child), boot="1" * 32))
    kept.take(7, 1, WHOLE, RESTORING).release()
    made.recover()

    assert [one.state for one in kept.entries()] == [WHOLE]


def test_an_image_that_was_cut_is_not_restored(kept: ImageStore, tmp_path: Path, child: Child) -> None:
    """CRIU would wait for the missing part of some files until its time is over."""
    made = saver(kept, program(tmp_path / "criu", "sleep 60"))
    entry = kept.begin(image_of(child), 1)
    (entry.path / "pages-1.img").write_bytes(b"memory")
    (entry.path / tools.SIZES).write_text("pages-1.img 60\n")
    store.commit(entry)
    entry.release()
    with pytest.raises(CheckpointError, match=r"stays: its image is damaged \(file pages-1\.img\): cancel the job"):
        made.restore(7, 1)

    assert [one.state for one in kept.entries()] == [WHOLE]


def test_a_restored_job_without_a_number_is_reported(kept: ImageStore, child: Child) -> None:
    """Somebody has removed the file: the administrator ends the job."""
    saved(kept, image_of(child))
    entry = kept.take(7, 1, WHOLE, RESTORED)
    entry.release()
    with pytest.raises(CheckpointError, match="its process number is not known"):
        restored_pid(entry)


def test_processes_are_cleaned_by_number_time_and_user(kept: ImageStore, tmp_path: Path, child: Child) -> None:
    """A process that is older than the restore, or not in a session of the job, is another one and lives on."""
    image = image_of(child)
    folder = tmp_path / "image"
    folder.mkdir()
    (folder / f"mm-{child.identity.pid}.img").touch()
    ways = Processes(saver(kept, program(tmp_path / "criu"))._tools)
    ways.clean(image, folder, image.start_time + 1)
    ways.clean(image, folder, image.start_time)
    ways.clean(dataclasses.replace(image, uid=4711), folder, image.start_time)

    assert (stat := proc.read_stat(child.identity.pid))
    assert stat.state not in "ZX"
    assert images.parse_name("7.1.removed") == (7, 1, images.REMOVED)


def test_a_job_that_ended_with_the_save_is_reported(kept: ImageStore, tmp_path: Path, child: Child) -> None:
    """CRIU that was killed may have ended the job: the sentence does not say that it goes on."""
    pid = child.identity.pid
    made = saver(
        kept,
        program(tmp_path / "criu", f"kill -9 {pid}; until grep -q State:.Z /proc/{pid}/status; do :; done; exit 1"),
    )
    with pytest.raises(CheckpointError, match="job 7 was not saved and has ended: no reason was reported"):
        made.save(image_of(child))

    assert kept.entries() == []
