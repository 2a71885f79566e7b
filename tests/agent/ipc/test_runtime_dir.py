# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest
from drom.agent.daemon.recovery import open_registry, unit_in_use
from drom.agent.ipc.registry import Owner, Registry, RegistryError
from drom.agent.ipc.runtime_dir import RuntimeDirError, create_and_lock, freezes, remove_sockets
from drom.agent.model.jobs import Arrival, Grant, Job, Task
from drom.agent.system.proc import boot_id, start_time

from dromlib.layout import HEADER
from tests.support.file_systems import fill, tiny_tmpfs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ME = Owner(os.getpid(), 1, boot_id(), 5, emulated=False)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a runtime directory that an agent has locked."""
    path = tmp_path / "run"
    lock = create_and_lock(path)
    yield path
    os.close(lock)


def leave_a_task(path: Path, owner: Owner = ME, mask: int = 0b11, start: int | None = None) -> Registry:
    """Return the registry that an agent with one running task, this process, left when it was killed."""
    registry = Registry.create(path / "registry", 4, 64, owner)
    pid = os.getpid()
    arrival = Arrival(pid, start or start_time(pid) or 0, os.geteuid(), "a")
    task = Task(0, "a", 0, arrival, 1, [Grant(1, mask, 0.0)])
    registry.register(task, Job("a", "a", 1, 0, "malleable", 1, 1, 4, {0: task}))
    registry.publish(task, 1, mask, "arrival")
    return registry


class TestPrepare:
    """Making and locking it."""

    def test_a_directory_is_made_and_locked(self, folder: Path) -> None:
        """All may enter, the lock is the agent's, and it says who holds it."""
        assert folder.stat().st_mode & 0o777 == 0o755
        assert (folder / "lock").stat().st_mode & 0o777 == 0o600
        assert (folder / "lock").read_text() == f"{os.getpid()}\ndrom agent\n"

    def test_a_directory_is_open_whatever_the_umask(self, tmp_path: Path) -> None:
        """That of root: programs of all users look into it; whoever has made one before has chosen who may."""
        (tmp_path / "closed").mkdir(mode=0o700)
        before = os.umask(0o077)
        try:
            locks = [create_and_lock(tmp_path / name) for name in ("new", "closed")]
        finally:
            os.umask(before)
        for lock in locks:
            os.close(lock)

        modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("new", "closed")]
        assert modes == [0o755 if os.geteuid() == 0 else 0o700, 0o700]

    def test_a_second_agent_is_refused(self, folder: Path) -> None:
        """The refusal names the agent that runs there, which keeps the lock."""
        for _ in range(2):
            with pytest.raises(RuntimeDirError, match=rf"^another agent \(pid {os.getpid()}\) runs in .*\.$"):
                create_and_lock(folder)

    def test_a_lock_that_was_left_is_taken(self, tmp_path: Path) -> None:
        """The file alone means nothing; the kernel's lock ends with its agent."""
        (tmp_path / "lock").write_text("4194304\n")
        lock = create_and_lock(tmp_path)

        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\ndrom agent\n"
        os.close(lock)

    def test_a_path_too_long_for_sockets(self, tmp_path: Path) -> None:
        """The limit is told, and nothing is made."""
        path = tmp_path / ("x" * 100)
        with pytest.raises(RuntimeDirError, match=r"^the path .* is longer than the 99 bytes its sockets allow: .*\.$"):
            create_and_lock(path)
        assert not path.exists()

    def test_a_path_that_cannot_be_used(self, tmp_path: Path) -> None:
        """A file in the way, or a link in the place of the lock, is a sentence."""
        (tmp_path / "file").touch()
        (tmp_path / "lock").symlink_to("/etc/passwd")

        for path, reason in ((tmp_path / "file", "File exists"), (tmp_path, "Too many levels of symbolic links")):
            with pytest.raises(RuntimeDirError, match=rf"^cannot use .*: {reason}: choose .*\.$"):
                create_and_lock(path)

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
    def test_another_users_directory(self, tmp_path: Path) -> None:
        """What belongs to somebody else is not trusted."""
        os.chown(tmp_path, 1000, -1)
        with pytest.raises(RuntimeDirError, match=r"^.* belongs to another user: choose another --runtime-dir\.$"):
            create_and_lock(tmp_path)

    def test_a_directory_that_others_may_replace(self, tmp_path: Path) -> None:
        """It is not even created."""
        tmp_path.chmod(0o777)
        sentence = (
            f"others may write in {tmp_path} (mode 0777), and so may replace {tmp_path / 'run'}: "
            "choose another --runtime-dir."
        )
        with pytest.raises(RuntimeDirError, match=rf"^{re.escape(sentence)}$"):
            create_and_lock(tmp_path / "run")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775, 0o1770, 0o722])
    def test_a_directory_in_which_others_may_write(self, tmp_path: Path, mode: int) -> None:
        """Such a directory is refused with what to do, and left as it is; once that is done it is used."""
        run = tmp_path / "run"
        run.mkdir()
        run.chmod(mode)
        sentence = (
            f"others may write in {run} (mode {mode:04o}): run chmod go-w {run}, or choose another --runtime-dir."
        )
        with pytest.raises(RuntimeDirError, match=rf"^{re.escape(sentence)}$"):
            create_and_lock(run)
        assert list(run.iterdir()) == []
        subprocess.run(["chmod", "go-w", run], check=True)
        os.close(create_and_lock(run))

    @pytest.mark.parametrize("lock", [None, "", "7\n", "not a pid\n", "12 monkeys", "drom agent\n"])
    def test_a_directory_of_somebody_elses_files(self, tmp_path: Path, lock: str | None) -> None:
        """Such a directory is refused in one sentence, and everything in it stays as it was."""
        files = ("mail/1", "mail/inbox", "door", "control", "signals", "registry", "notes")
        for name in files:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(name, encoding="utf-8")
        if lock is not None:
            (tmp_path / "lock").write_text(lock, encoding="utf-8")
        before = {path: path.lstat() for path in tmp_path.rglob("*")}

        with pytest.raises(RuntimeDirError, match=r"^/.* holds files that are not an agent's: choose a new .*\.$"):
            create_and_lock(tmp_path)
        after = {path: path.lstat() for path in tmp_path.rglob("*")}
        assert {path: (about.st_ino, about.st_mtime_ns, about.st_mode) for path, about in after.items()} == {
            path: (about.st_ino, about.st_mtime_ns, about.st_mode) for path, about in before.items()
        }

    def test_a_mail_folder_is_not_an_agents(self, tmp_path: Path) -> None:
        """Numbered messages and a number in a lock: an agent would remove the messages as mailboxes."""
        (tmp_path / "lock").write_text("123\n", encoding="utf-8")
        (tmp_path / "mail").mkdir()
        (tmp_path / "mail" / "1").write_text("Dear", encoding="utf-8")

        with pytest.raises(RuntimeDirError, match=r"^/.* holds files that are not an agent's: choose a new .*\.$"):
            create_and_lock(tmp_path)
        assert (tmp_path / "mail" / "1").read_text(encoding="utf-8") == "Dear"

    @pytest.mark.parametrize(
        "files",
        [
            {"freeze": ""},
            {"lock": ""},
            {"lock": "", "events": "x"},
            {"lock": "7\n", "events": "x", "events.1": "x"},
            {"lock": "7\ndrom agent\n", "x": ""},
        ],
    )
    def test_a_directory_of_an_agent(self, tmp_path: Path, files: dict[str, str]) -> None:
        """What an earlier one has left, also one that found no room, and a kill switch do not stand in the way."""
        for name, text in files.items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        os.close(create_and_lock(tmp_path))

        assert {path.name for path in tmp_path.iterdir()} == {"lock", *files}

    def test_a_registry_tells_whose_a_directory_is(self, tmp_path: Path) -> None:
        """Also where a full disk had no room for the pid in the lock."""
        leave_a_task(tmp_path)
        (tmp_path / "mail").mkdir()
        os.close(create_and_lock(tmp_path))

    @pytest.mark.parametrize("name", ["door", "control", "signals"])
    def test_what_is_no_socket_stays(self, tmp_path: Path, name: str) -> None:
        """A file with the name of one is not removed, neither at the start nor at the end."""
        (tmp_path / "lock").write_text("7\n", encoding="utf-8")
        (tmp_path / name).write_text("mine", encoding="utf-8")
        with pytest.raises(RuntimeDirError, match=rf"^/.*/{name} is not a socket of an agent: move it away, .*\.$"):
            create_and_lock(tmp_path)
        remove_sockets(tmp_path)

        assert (tmp_path / name).read_text(encoding="utf-8") == "mine"

    def test_a_link_to_a_directory(self, tmp_path: Path) -> None:
        """Links are not followed: their owner would choose where the agent's files are."""
        (tmp_path / "there").mkdir()
        (tmp_path / "link").symlink_to("there")
        with pytest.raises(RuntimeDirError, match=r"^/.*/link is a symbolic link: name the directory itself.*\.$"):
            create_and_lock(tmp_path / "link")
        assert list((tmp_path / "there").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_only_root_and_the_agents_user_freeze_a_node(tmp_path: Path) -> None:
    """Files and links of theirs count, wherever a link leads, and nobody else's do."""
    mine, theirs, link, their_link = (tmp_path / name for name in ("mine", "theirs", "link", "their_link"))
    mine.touch()
    theirs.touch()
    os.chown(theirs, 65534, 65534)
    link.symlink_to(theirs)
    their_link.symlink_to(mine)
    os.chown(their_link, 65534, 65534, follow_symlinks=False)

    files = (mine, link, theirs, their_link, tmp_path / "none", mine / "below")
    assert [freezes(file) for file in files] == [True, True, False, False, False, False]


class TestTakeOver:
    """What an earlier agent left."""

    def test_nothing(self, folder: Path) -> None:
        """A new registry is made."""
        registry, adopted = open_registry(folder, 4, 64, ME, 0b11)

        assert (registry.capacity, adopted) == (4, False)

    def test_an_empty_one_is_made_anew(self, folder: Path) -> None:
        """Without a task there is nothing to adopt, and the new options count."""
        Registry.create(folder / "registry", 4, 64, ME)
        registry, adopted = open_registry(folder, 8, 64, ME, 0b11)

        assert (registry.capacity, adopted) == (8, False)

    @pytest.mark.parametrize("boot", [boot_id(), bytes(16)], ids=["this boot", "an earlier boot"])
    def test_a_full_file_system_has_room_for_the_next_one(self, tmp_path: Path, boot: bytes) -> None:
        """Users who fill the file system do not keep an agent from starting: the old registry goes first."""
        with tiny_tmpfs(tmp_path / "tiny", "size=1m") as tiny:
            owner = Owner(1, 1, boot, 5, emulated=False)
            Registry.create(tiny / "registry", 512, 64, owner)
            fill(tiny / "filler")
            registry, adopted = open_registry(tiny, 512, 64, ME, 0b11)

            assert (registry.capacity, adopted) == (512, False)

    def test_running_tasks_are_adopted(self, folder: Path) -> None:
        """The registry stays and has a new writer."""
        leave_a_task(folder, Owner(1, 1, boot_id(), 5, emulated=False))
        registry, adopted = open_registry(folder, 8, 64, ME, 0b11)

        assert (registry.capacity, adopted, registry.header("agent_pid")) == (4, True, os.getpid())

    def test_one_of_an_earlier_boot_is_replaced(self, folder: Path) -> None:
        """No process of it can live."""
        leave_a_task(folder, Owner(1, 1, bytes(16), 5, emulated=False))

        assert not open_registry(folder, 4, 64, ME, 0b11)[1]

    def test_one_that_was_given_up_is_replaced(self, folder: Path) -> None:
        """An agent killed while it stopped has told its programs to register again."""
        HEADER.write(leave_a_task(folder).memory, retired=1)
        registry, adopted = open_registry(folder, 4, 64, ME, 0b11)

        assert (registry.header("retired"), adopted) == (0, False)

    @pytest.mark.parametrize(
        ("owner", "bits", "usable", "sentence"),
        [
            (Owner(1, 1, boot_id(), 5, emulated=True), 64, 0b11, "differs from this agent in emulate or observe"),
            (Owner(1, 1, boot_id(), 5, emulated=False, threads=True), 64, 0b11, "has another unit than this agent"),
            (ME, 64, 0b01, "hold CPUs that this topology does not have"),
            (ME, 128, 0b11, "hold CPUs that this topology does not have"),
        ],
    )
    def test_what_cannot_be_adopted_is_left_alone(
        self, folder: Path, owner: Owner, bits: int, usable: int, sentence: str
    ) -> None:
        """An agent that does not fit the running programs says so and touches nothing."""
        leave_a_task(folder, owner)
        before = (folder / "registry").read_bytes()

        with pytest.raises(RegistryError, match=rf"{sentence}.*: start the agent with the options of the last one"):
            open_registry(folder, 4, bits, ME, usable)
        assert (folder / "registry").read_bytes() == before

    def test_the_dead_do_not_stand_in_the_way(self, folder: Path) -> None:
        """What cannot be adopted is replaced when no process of its tasks lives: this pid is another's by now."""
        leave_a_task(folder, start=1)
        registry, adopted = open_registry(folder, 8, 64, ME, 0b01)

        assert (registry.capacity, adopted, registry.records()) == (8, False, [])


class TestUnitInUse:
    """What living tasks are counted in."""

    @pytest.mark.parametrize(("threads", "unit"), [(False, "core"), (True, "thread")])
    def test_is_that_of_the_registry(self, folder: Path, threads: bool, unit: str) -> None:
        """The agent that started them has left it in the header."""
        leave_a_task(folder, Owner(1, 1, boot_id(), 5, emulated=False, threads=threads))

        assert unit_in_use(folder) == unit

    def test_there_is_none_without_living_tasks(self, folder: Path) -> None:
        """No registry, one without tasks, of an earlier boot, of the dead, or given up: any unit will do."""
        assert unit_in_use(folder) is None
        Registry.create(folder / "registry", 4, 64, ME)
        assert unit_in_use(folder) is None
        leave_a_task(folder, Owner(1, 1, bytes(16), 5, emulated=False))
        assert unit_in_use(folder) is None
        leave_a_task(folder, start=1)
        assert unit_in_use(folder) is None
        HEADER.write(leave_a_task(folder).memory, retired=1)
        assert unit_in_use(folder) is None
