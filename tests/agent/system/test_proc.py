# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import resource
import select
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from drom.agent.enforcement import affinity
from drom.agent.system import proc as processes
from drom.agent.system.proc import Identity, Stat

from tests.support.child_processes import (
    ONE,
    UID,
    Child,
    needs_two_cpus,
    open_descriptors,
    our_masks,
    running,
    task_processes,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _own_mask_stays() -> Iterator[None]:
    """Assert that no test leaves this process with another mask."""
    before = our_masks()
    yield
    assert before == our_masks()


def ended(pidfd: int) -> bool:
    """Say whether the process of `pidfd` has ended."""
    return bool(select.select([pidfd], [], [], 0)[0])


class TestStat:
    """What /proc/PID/stat says."""

    @pytest.mark.parametrize("name", ["sh", "a b", "a) S 9 (b", ")", "\n"])
    def test_any_name_may_stand_in_parentheses(self, name: str) -> None:
        """Blanks and parentheses in the name of a program do not shift the fields."""
        numbers = " ".join(str(field) for field in range(5, 53))

        assert processes.parse_stat(f"17 ({name}) S 4 {numbers}\n") == Stat(4, "S", 22)

    @pytest.mark.parametrize("text", ["", "17 (sh) S 4 5", "17 (sh) S x 5" + " 6" * 40])
    def test_short_text_is_nothing(self, text: str) -> None:
        """A stat that is cut short or odd is None."""
        assert processes.parse_stat(text) is None

    def test_reads_our_own(self) -> None:
        """Our parent is the one the C library names, and our start time is not in the future."""
        stat = processes.read_stat(os.getpid())

        assert stat is not None
        assert os.getppid() == stat.ppid
        assert 0 < stat.start_time <= time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")

    def test_the_dead_have_no_start_time(self) -> None:
        """A process that was collected has no start time."""
        popen = subprocess.Popen(["true"])
        popen.wait()

        assert processes.start_time(popen.pid) is None

    def test_reads_another_root(self, tmp_path: Path) -> None:
        """The place of /proc is a parameter."""
        for pid, ppid in ((10, 1), (11, 10), (12, 11), (13, 1)):
            (tmp_path / str(pid)).mkdir()
            (tmp_path / str(pid) / "stat").write_text(f"{pid} (x) S {ppid}" + " 7" * 40)
        (tmp_path / "self").mkdir()

        assert processes.start_time(10, str(tmp_path)) == 7
        assert process_tree(10, str(tmp_path)) == {10, 11, 12}
        assert process_tree(99, str(tmp_path)) == set()

    def test_a_ring_of_parents_ends(self, tmp_path: Path) -> None:
        """A scan that is not taken at once may show a ring, which is walked once."""
        for pid, ppid in ((10, 11), (11, 10), (12, 11)):
            (tmp_path / str(pid)).mkdir()
            (tmp_path / str(pid) / "stat").write_text(f"{pid} (x) S {ppid}" + " 7" * 40)

        assert process_tree(10, str(tmp_path)) == {10, 11, 12}
        assert process_tree(12, str(tmp_path)) == {12}
        assert processes.ancestry(12, str(tmp_path)) == [Identity(12, 7), Identity(11, 7), Identity(10, 7)]
        assert processes.ancestry(13, str(tmp_path)) == []

    def test_a_lineage_ends_with_who_is_too_old_or_has_anothers_pid(self, tmp_path: Path) -> None:
        """Ancestors are older than their descendants; those before a moment are left out, and so are too many."""
        for pid, ppid, start in ((10, 1, 5), (11, 10, 7), (12, 11, 7), (13, 12, 9), (14, 13, 8)):
            (tmp_path / str(pid)).mkdir()
            (tmp_path / str(pid) / "stat").write_text(f"{pid} (x) S {ppid}{' 0' * 17} {start} 0")

        def pids(pid: int, **bounds: int) -> list[int]:
            return [who.pid for who in processes.ancestry(pid, str(tmp_path), **bounds)]

        assert pids(13) == [13, 12, 11, 10]
        assert pids(13, since=7) == [13, 12, 11]
        assert pids(13, most=2) == [13, 12]
        assert pids(14) == [14]


class TestPidfd:
    """Descriptors that stand for a process."""

    def test_right_start_time(self, child: Child) -> None:
        """The pidfd of a process that is the one meant tells when it ends."""
        pidfd = processes.open_pidfd(child.pid, child.identity.start_time)

        assert pidfd is not None
        assert not ended(pidfd)
        child.popen.communicate()
        assert ended(pidfd)
        os.close(pidfd)

    def test_reused_pid(self, child: Child) -> None:
        """A pid that another start time belongs to gives no pidfd and leaks none."""
        before = open_descriptors()

        assert processes.open_pidfd(child.pid, child.identity.start_time - 1) is None
        assert before == open_descriptors()

    def test_gone(self, child: Child) -> None:
        """A process that was collected gives no pidfd; neither does what is no pid."""
        child.popen.communicate()

        assert processes.open_pidfd(child.pid, child.identity.start_time) is None
        assert processes.open_pidfd(-1, 1) is None
        assert processes.open_pidfd(0, 1) is None

    @needs_two_cpus
    def test_main_thread_gone_is_not_death(self, program: str) -> None:
        """A process whose main thread has left shows state Z, but is alive, is bound, and ends later."""
        with running(program, "leave") as child:
            assert child.popen.stdout is not None
            assert child.popen.stdout.readline() == "heir\n"
            until(lambda: (processes.read_stat(child.pid) or Stat(0, "", 0)).state == "Z", "state Z")
            pidfd = processes.open_pidfd(child.pid, child.identity.start_time)

            assert pidfd is not None
            assert not ended(pidfd)
            assert {child.pid} == task_processes(child.identity, UID)
            assert affinity.bind(lambda: task_processes(child.identity, UID), ONE).settled
            (worker,) = set(processes.threads(child.pid)) - {child.pid}
            assert processes.thread_masks([child.pid])[worker] == ONE
            child.popen.communicate()
            assert ended(pidfd)
            os.close(pidfd)


def process_tree(root: int, proc: str = "/proc") -> set[int]:
    """Return the pids of a process and all its descendants, in one scan; empty if it is gone."""
    stats = processes.scan(proc)
    owners = processes.nearest_roots(stats, {root} & stats.keys())
    return {pid for pid, owner in owners.items() if owner == root}


class TestTree:
    """Which processes are a task's."""

    def test_descendants(self, child: Child) -> None:
        """Children belong to the tree, and their parent's stay out of theirs."""
        fork = int(child.ask("fork"))

        assert {child.pid, fork} == process_tree(child.pid)
        assert {child.pid, fork} == task_processes(child.identity, UID)
        assert {fork} == process_tree(fork)
        assert {child.pid, fork} < process_tree(os.getpid())

    def test_orphans_of_a_living_task(self, child: Child) -> None:
        """An orphan is found by its environment; another user's is not, and the parents alone do not show it."""
        orphan = int(child.ask("orphan"))

        assert {child.pid} == process_tree(child.pid)
        assert {child.pid, orphan} == task_processes(child.identity, UID)
        assert {child.pid} == task_processes(child.identity, UID + 1)

    def test_orphans_of_a_dead_task(self, child: Child) -> None:
        """When the first process has ended, what it left behind is the task."""
        fork, orphan = int(child.ask("fork")), int(child.ask("orphan"))
        child.popen.kill()
        child.popen.wait()

        assert task_processes(child.identity, UID) == {fork, orphan}

    def test_orphans_are_young_adopted_and_marked(self, tmp_path: Path) -> None:
        """Orphans are no older than the task, adopted by its ancestors, and marked by its DROM_TASK alone."""
        mark = b"A=1\0DROM_TASK=10:7\0"
        rows: list[tuple[int, int, int, bytes | None]] = [
            (2, 1, 1, b""),  # an ancestor of the task
            (3, 1, 1, b""),  # a stranger
            (10, 2, 7, b""),  # the task
            (11, 1, 7, None),  # its environment cannot be read
            (12, 1, 7, mark),
            (13, 12, 8, None),
            (14, 2, 9, mark),
            (15, 3, 9, mark),  # a stranger's child
            (16, 1, 6, mark),  # older than the task
            (17, 1, 9, b"DROM_TASK=10:70\0XDROM_TASK=10:7\0"),
        ]
        for pid, ppid, start, environ in rows:
            (tmp_path / str(pid)).mkdir()
            (tmp_path / str(pid) / "stat").write_text(f"{pid} (x) S {ppid}{' 0' * 17} {start} 0 0\n")
            if environ is not None:
                (tmp_path / str(pid) / "environ").write_bytes(environ)

        assert task_processes(Identity(10, 7), UID, proc=str(tmp_path)) == {10, 12, 13, 14}

    def test_a_reused_pid_is_not_the_task(self, child: Child) -> None:
        """A process with the pid of the task and another start time is not in it, even as a task of its own."""
        stranger = Identity(child.pid, child.identity.start_time - 1)

        assert task_processes(stranger, UID) == set()
        assert task_processes(stranger, UID, [child.identity]) == set()

    def test_other_tasks_below_are_left_out(self, child: Child) -> None:
        """A task launched inside another is not part of it; a task that is over counts no more."""
        fork = int(child.ask("fork"))
        start = processes.start_time(fork)
        assert start is not None

        assert {child.pid} == task_processes(child.identity, UID, [Identity(fork, start)])
        assert {child.pid, fork} == task_processes(child.identity, UID, [Identity(fork, start - 1)])


class TestPeer:
    """Who knocks at a socket."""

    CONNECT = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1]); input()"
    )

    @pytest.fixture
    def knock(self, tmp_path: Path) -> Iterator[tuple[Child, socket.socket]]:
        """Return a program that connected to us, and our end."""
        path = str(tmp_path / "door")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
            door.bind(path)
            door.listen()
            with running(sys.executable, "-c", self.CONNECT, path) as child, door.accept()[0] as sock:
                yield child, sock

    @pytest.mark.parametrize("option", [processes.SO_PEERPIDFD, 9999])
    def test_kernel_names_the_peer(
        self, knock: tuple[Child, socket.socket], monkeypatch: pytest.MonkeyPatch, option: int
    ) -> None:
        """Process, user, group and pidfd are those of who connected, with and without SO_PEERPIDFD."""
        monkeypatch.setattr(processes, "SO_PEERPIDFD", option)
        child, sock = knock

        peer = processes.peer_identity(sock)

        assert peer is not None
        assert (child.identity, UID, os.getgid()) == (peer.identity, peer.uid, peer.gid)
        assert not os.get_inheritable(peer.pidfd)
        assert not ended(peer.pidfd)
        child.popen.communicate()
        assert ended(peer.pidfd)
        os.close(peer.pidfd)

    @pytest.mark.parametrize("option", [processes.SO_PEERPIDFD, 9999])
    def test_a_peer_that_is_gone_is_none(
        self, knock: tuple[Child, socket.socket], monkeypatch: pytest.MonkeyPatch, option: int
    ) -> None:
        """A peer that ended and was collected is nobody, and no descriptor is left."""
        monkeypatch.setattr(processes, "SO_PEERPIDFD", option)
        child, sock = knock
        child.popen.communicate()
        before = open_descriptors()

        assert processes.peer_identity(sock) is None
        assert before == open_descriptors()

    def test_a_pid_taken_over_is_not_the_peer(
        self, knock: tuple[Child, socket.socket], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """When the pidfd's process no longer holds the pid, the start time read there is not the peer's."""
        child, sock = knock
        start = child.identity.start_time
        child.popen.communicate()
        monkeypatch.setattr(processes, "start_time", lambda _pid, _proc: start)
        before = open_descriptors()

        assert processes.peer_identity(sock) is None
        assert before == open_descriptors()

    def test_the_parent_of_a_peer_is_ours(self, knock: tuple[Child, socket.socket]) -> None:
        """It is this process, with the user of the peer and a pidfd of its own."""
        _, sock = knock
        peer = processes.peer_identity(sock)
        assert peer is not None
        parent = processes.parent_of(peer)
        assert parent is not None
        own = processes.start_time(os.getpid())

        assert (parent.identity, parent.uid, parent.gid) == ((os.getpid(), own), UID, os.getgid())
        assert not ended(parent.pidfd)
        os.close(parent.pidfd)
        os.close(peer.pidfd)

    def test_a_parent_of_another_user_is_none(self, knock: tuple[Child, socket.socket]) -> None:
        """No descriptor is left."""
        _, sock = knock
        peer = processes.peer_identity(sock)
        assert peer is not None
        before = open_descriptors()

        assert processes.parent_of(replace(peer, uid=UID + 1)) is None
        assert before == open_descriptors()
        os.close(peer.pidfd)

    def test_a_peer_that_has_ended_has_no_parent(self, knock: tuple[Child, socket.socket]) -> None:
        """No descriptor is left."""
        child, sock = knock
        peer = processes.peer_identity(sock)
        assert peer is not None
        child.popen.communicate()
        before = open_descriptors()

        assert processes.parent_of(peer) is None
        assert before == open_descriptors()
        os.close(peer.pidfd)


class TestMachine:
    """What is true of the whole machine."""

    def test_boot_id(self, tmp_path: Path) -> None:
        """The boot's id is sixteen bytes, and zeros where there is none."""
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")

        assert uuid.UUID(text.strip()).bytes == processes.boot_id()
        assert bytes(16) == processes.boot_id(str(tmp_path))

    def test_descriptors(self) -> None:
        """The soft limit of descriptors rises to the hard one."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
            assert hard == processes.raise_fd_limit()
            assert (hard, hard) == resource.getrlimit(resource.RLIMIT_NOFILE)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class TestStatus:
    """What the status of a process says of its users and namespaces."""

    @pytest.fixture
    def proc(self, tmp_path: Path) -> str:
        """Return a tree with process 7, a thread of the kernel 2, and nothing else."""
        for pid, flags in ((7, 0x400000), (2, 0x200040)):
            (tmp_path / str(pid)).mkdir()
            (tmp_path / str(pid) / "stat").write_text(f"{pid} (a ) b) S 1 0 0 0 -1 {flags} 0 0" + " 9" * 40)
        (tmp_path / "7" / "status").write_text("Name:\tx\nUid:\t5\t6\t6\t6\nNSpid:\t7\t1\n")
        (tmp_path / "7" / "environ").write_bytes(b"A=1\0DROM_TASK=x:1\0DROM_TASK=12:34\0")
        (tmp_path / "7" / "comm").write_text("na me\n")
        return str(tmp_path)

    def test_users(self, proc: str) -> None:
        """Real and effective, or none for who is gone."""
        assert (processes.users(7, proc), processes.users(8, proc)) == ((5, 6), None)

    def test_namespaces(self, proc: str) -> None:
        """One in a container has two pids; where the kernel is silent there is no number."""
        assert (processes.namespaces(7, proc), processes.namespaces(2, proc)) == (2, 0)

    def test_threads_of_the_kernel(self, proc: str) -> None:
        """The kernel's own are known by a flag, whatever they are called."""
        assert [processes.is_kernel_thread(pid, proc) for pid in (2, 7, 8)] == [True, False, False]

    def test_the_task_it_names(self, proc: str) -> None:
        """The first DROM_TASK in the environment that is one."""
        assert (processes.named_task(7, proc), processes.named_task(2, proc)) == (Identity(12, 34), None)

    def test_no_more_of_an_environment_is_read(self, proc: str, tmp_path: Path) -> None:
        """One of megabytes is read in part, and an entry that is cut off is none."""
        environ, most = tmp_path / "7" / "environ", processes.MOST_ENVIRONMENT
        entry = b"DROM_TASK=12:34\0"
        for before in (0, most - len(entry), most - len(entry) + 1, most):
            environ.write_bytes((b"A" * before)[:-1] + b"\0" * (before > 0) + entry + bytes(most))
            named = Identity(12, 34) if before + len(entry) <= most else None
            assert processes.named_task(7, proc) == named
            assert sum(len(found) + 1 for found in processes.environment(7, proc)) <= most

    def test_a_number_without_end_names_no_task(self, proc: str, tmp_path: Path) -> None:
        """Thousands of digits are nonsense."""
        (tmp_path / "7" / "environ").write_bytes(b"DROM_TASK=" + b"9" * 5000 + b":1\0")

        assert processes.named_task(7, proc) is None

    def test_its_command(self, proc: str) -> None:
        """The name, or a word for who has none."""
        assert (processes.command(7, proc), processes.command(8, proc)) == ("na me", "program")

    def test_this_process(self) -> None:
        """On this machine the answers are true."""
        me = os.getpid()

        assert processes.users(me) == (os.getuid(), os.geteuid())
        assert not processes.is_kernel_thread(me)
        assert [who.pid for who in processes.ancestry(me)][:2] == [me, os.getppid()]
