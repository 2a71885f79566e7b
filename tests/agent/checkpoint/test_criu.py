# SPDX-License-Identifier: Apache-2.0
"""Real programs, saved and restored by real CRIU and runc."""

from __future__ import annotations

import dataclasses
import gc
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from drom.agent.checkpoint import freezer, images, transfer
from drom.agent.checkpoint.containers import Containers
from drom.agent.checkpoint.images import CONTAINER, PROCESSES, RESTORED, WHOLE, CheckpointError, Quota
from drom.agent.checkpoint.saver import restored_pid
from drom.agent.checkpoint.tools import Limit, saves_all_users

from tests.agent.checkpoint.conftest import THREADS, WAIT, Counting, Node, await_true
from tests.support.other_users import NOBODY

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.system

STARTS_OTHERS = r"""
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    FILE *file = fopen(argv[1], "a");
    for (long n = 1;; n++) {
        fprintf(file, "%ld\n", n);
        fflush(file);
        if (vfork() == 0) {
            usleep(argc > 2 ? 1000000000 : 30000);
            execl("/bin/true", "true", (char *)0);
            _exit(1);
        }
        wait(0);
        usleep(30000);
    }
}
"""


def reap(pid: int) -> int:
    """Wait for a child's end; return its status."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize(("language", "size"), [("C", 10), ("C", 100), ("Python", 10), ("Python", 100)])
def test_a_program_counts_on_where_it_was_saved(here: Node, way: str, counter: str, language: str, size: int) -> None:
    """Each number is counted once over two saves, and the state in memory is what it was."""
    file = here.folder / "numbers"
    first = (counter,) if language == "C" else (sys.executable, "-c", THREADS)
    program = Counting((*first, str(file), str(size)), file)
    pid = here.start(way, program.command)
    for generation in (1, 2):
        program.advances()
        here.saver.save(here.image(pid, generation=generation, way=way))
        assert here.states() == [(f"7.{generation}", WHOLE)]
        assert reap(pid) == -signal.SIGKILL
        assert here.store.entries()[0].size() > size << 20
        pid = here.restore(generation=generation)
    program.advances()

    assert program.counted_once()
    assert here.states() == []


def starting_others(here: Node, *words: str) -> Counting:
    """Return a program in C that counts, and starts others by vfork(); with a further word the first never begins."""
    if not here.tools.runc or not shutil.which("gcc"):
        pytest.skip("runc or gcc is not installed: make criu")
    program = Counting((str(here.folder / "starts"), str(here.folder / "numbers"), *words), here.folder / "numbers")
    compiler = ["gcc", "-x", "c", "-o", program.command[0], "-"]
    subprocess.run(compiler, input=STARTS_OTHERS, text=True, check=True)
    return program


def test_a_program_that_starts_others_is_saved_between_these(here: Node) -> None:
    """CRIU cannot save a thread that waits in vfork(): a container is frozen while none does."""
    program = starting_others(here)
    pid = here.start(CONTAINER, program.command)
    for generation in range(1, 6):
        program.advances()
        here.saver.save(here.image(pid, generation=generation, way=CONTAINER))
        reap(pid)
        pid = here.restore(generation=generation)
    program.advances()

    assert program.counted_once()


def test_a_container_that_always_waits_in_vfork_is_not_frozen(here: Node) -> None:
    """It is left to CRIU: runc waits for ever for one that does not finish to freeze."""
    program = starting_others(here, "never")
    here.start(CONTAINER, program.command)
    await_true(program.numbers, "the program has not begun")
    name = Containers(here.tools).name(7)
    (group,) = freezer.groups(name)
    await_true(group.waits_in_vfork, "the program does not call vfork()")

    freezer.freeze(name)

    assert not group.is_frozen()


def test_a_job_moves_to_another_store(make_node: Callable[[str], Node], way: str, counting: Counting) -> None:
    """The image is restored in another store, where the job counts on."""
    one, two = make_node("one"), make_node("two")
    pid = one.start(way, counting.command)
    counting.advances()
    image = one.saver.save(one.image(pid, way=way))
    reap(pid)
    messages: deque[bytes] = deque()
    transfer.send(one.store, 7, 1, messages.append)
    transfer.receive(two.store, 7, 1, image.uid, messages.popleft)
    one.store.remove(7, 1)
    with pytest.raises(CheckpointError, match="no image 1 here"):
        one.saver.restore(7, 1)
    two.restore()
    counting.advances()

    assert counting.counted_once()
    assert (one.states(), two.states()) == ([], [])


def test_an_image_stays_until_the_restored_process_is_noted(here: Node, way: str, counting: Counting) -> None:
    """Until its image is removed, a restored job's process number can be read again; nothing restores it twice."""
    here.saver.save(here.image(pid := here.start(way, counting.command), way=way))
    reap(pid)
    pid = here.saver.restore(7, 1)
    here.children.append(pid)
    with pytest.raises(CheckpointError, match="no image 1 here"):
        here.saver.restore(7, 1)
    later = here.reopen()

    assert later.states() == [("7.1", RESTORED)]
    assert restored_pid(later.store.entries()[0]) == pid
    counting.advances()


def rights(pid: int) -> dict[str, str]:
    """Return ids, groups and capabilities of a process."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return dict(re.findall(r"^(Uid|Gid|Groups|Cap\w+|NoNewPrivs):[ \t]*(.*?)[ \t]*$", text, re.MULTILINE))


def test_the_image_of_a_restored_job_is_locked_until_it_is_released(here: Node, way: str, counting: Counting) -> None:
    """Otherwise whoever settles images would end the job."""
    pid = here.start(way, counting.command)
    counting.advances()
    here.saver.save(here.image(pid, way=way))
    reap(pid)
    entry = here.saver.resume(7, 1, Limit(time.monotonic() + WAIT))
    here.children.append(restored_pid(entry))
    gc.collect()
    here.saver.tidy()

    assert here.store.in_use(7)
    counting.advances()
    entry.release()
    assert not here.store.in_use(7)


def test_a_container_has_no_right_more(here: Node, counting: Counting) -> None:
    """A job in a container has no capability and cannot gain any, before and after a restore."""
    if not here.tools.runc:
        pytest.skip("runc is not installed: make criu")

    pid = here.start(CONTAINER, counting.command)
    counting.advances()
    before = rights(pid)
    here.saver.save(here.image(pid, way=CONTAINER))
    reap(pid)
    after = rights(here.restore())

    assert {value for name, value in before.items() if name.startswith("Cap")} == {"0" * 16}
    assert before["NoNewPrivs"] == "1"
    assert after == before


def test_a_users_job_keeps_its_rights(here: Node, way: str, counter: str) -> None:
    """A job of an ordinary user is restored with the same ids, groups and capabilities, and counts on."""
    if not saves_all_users():
        pytest.skip("root lacks CAP_SYS_RESOURCE here, without which CRIU saves only root's own jobs")
    home = here.folder / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    for folder in (Path(counter).parent, here.folder, *list(here.folder.parents)[:2]):
        folder.chmod(0o711)
    counting = Counting((counter, str(home / "numbers"), "10"), home / "numbers")
    pid = here.start(way, counting.command, uid=NOBODY)
    counting.advances()
    before = rights(pid)
    image = dataclasses.replace(here.image(pid, way=way), uid=NOBODY, gid=NOBODY)
    here.saver.save(image)
    reap(pid)
    pid = here.restore()
    counting.advances()

    assert before["Uid"] == "\t".join([str(NOBODY)] * 4)
    assert rights(pid) == before
    assert counting.counted_once()


def test_the_output_of_a_container_is_a_file_of_the_node(here: Node, tmp_path: Path) -> None:
    """Standard output, opened within the container, is continued after a restore."""
    if not here.tools.runc:
        pytest.skip("runc is not installed: make criu")
    from drom.agent.checkpoint import containers
    from drom.agent.checkpoint.bundle import Program
    from drom.agent.checkpoint.containers import Containers

    file = tmp_path / "output"
    loop = "n=0; while :; do n=$((n + 1)); echo $n; sleep 0.01; done"
    program = Program(
        0, 0, containers.node_folders(), ("sh", "-c", loop), {"PATH": os.environ["PATH"]}, output=str(file)
    )
    pid = Containers(here.tools).start(7, program)
    counting = Counting((), file)
    counting.advances()
    here.saver.save(here.image(pid, way=CONTAINER))
    reap(pid)
    here.restore()
    counting.advances()

    assert counting.counted_once()


def stays(here: Node, pid: int, words: str, way: str = PROCESSES) -> None:
    """Check that a job is not saved for a reason, and goes on."""
    with pytest.raises(CheckpointError, match=f"job 7 was not saved and goes on: .*{words}"):
        here.saver.save(here.image(pid, way=way))
    assert here.states() == []
    assert [path.name for path in here.store.path.iterdir()] == ["tools"]
    assert (stat := Path(f"/proc/{pid}/stat").read_text(encoding="ascii"))
    assert stat.rpartition(")")[2].split()[0] in "SRD"


HOLD = """
import os, socket, sys, time
{what}
open(sys.argv[1], "w").close()
time.sleep(1000)
"""


def holding(here: Node, way: str, what: str, tmp_path: Path) -> int:
    """Start a job that has done something and waits."""
    ready = tmp_path / "ready"
    pid = here.start(way, (sys.executable, "-c", HOLD.format(what=what), str(ready)))
    await_true(ready.exists, "the program does not begin")
    return pid


def test_a_job_with_a_tcp_connection_is_not_saved(here: Node, way: str, tmp_path: Path) -> None:
    """The sentence names the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        pid = holding(here, way, f"s = socket.create_connection(('127.0.0.1', {port}))", tmp_path)
        stays(here, pid, "it has an open TCP connection", way)


def test_a_job_with_a_device_is_not_saved(here: Node, tmp_path: Path) -> None:
    """A GPU is a device that CRIU cannot save."""
    if not Path("/dev/fuse").exists():
        pytest.skip("needs a device that CRIU does not know")
    pid = holding(here, PROCESSES, "f = os.open('/dev/fuse', os.O_RDWR)", tmp_path)
    stays(here, pid, r"device open \(number 10:229\)")


def test_a_job_with_a_terminal_is_not_saved(here: Node, tmp_path: Path) -> None:
    """A terminal stays with its user."""
    parent, child = pty.openpty()
    code = HOLD.format(what="import fcntl, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0)")
    ready = tmp_path / "ready"
    process = subprocess.Popen([sys.executable, "-c", code, ready], stdin=child, stdout=child, stderr=child)
    here.children.append(process.pid)
    await_true(ready.exists, "the program does not begin")
    stays(here, process.pid, "it uses a terminal")
    os.close(parent)
    os.close(child)
    process.kill()
    process.wait()


def test_a_job_that_grows_beyond_its_room_goes_on(
    here: Node, way: str, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image that becomes larger than what was reserved for it is given up; the job does not notice."""
    monkeypatch.setattr(images, "reservation", lambda *_: 5 << 20)
    pid = here.start(way, counting.command)
    counting.advances()
    stays(here, pid, "does not fit into the store|larger than the store has room for", way)
    counting.advances()

    assert counting.counted_once()


def test_a_full_store_refuses_without_stopping_the_job(here: Node, counting: Counting) -> None:
    """The quota is compared before CRIU is started."""
    here.store._quota = Quota(1 << 20, 1 << 20)
    pid = here.start(PROCESSES, counting.command)
    counting.advances()
    with pytest.raises(CheckpointError, match="does not fit, 1 MiB are left"):
        here.saver.save(here.image(pid))

    counting.advances()


def test_a_process_number_that_is_in_use_keeps_the_image(here: Node, counting: Counting) -> None:
    """A restore that fails gives the image back, and leaves the process that has the number alone."""
    pid = here.start(PROCESSES, counting.command)
    counting.advances()
    here.saver.save(here.image(pid))  # not reaped: the number is in use
    with pytest.raises(CheckpointError, match=f"its image stays: the process number {pid} is in use on this node"):
        here.saver.restore(7, 1)
    assert here.states() == [("7.1", WHOLE)]
    reap(pid)
    here.restore()
    counting.advances()

    assert counting.counted_once()


def test_a_file_that_changed_keeps_the_image(here: Node, way: str, counting: Counting) -> None:
    """A program that runs from a file which is no longer the same is not restored; with the old file it is."""
    pid = here.start(way, counting.command)
    counting.advances()
    here.saver.save(here.image(pid, way=way))
    reap(pid)
    moved = counting.file.rename(counting.file.with_name("moved"))
    with pytest.raises(CheckpointError, match=r"was not restored, its image stays: the file \S*numbers is missing"):
        here.saver.restore(7, 1)
    moved.rename(counting.file)
    here.restore()
    counting.advances()

    assert counting.counted_once()


def test_a_node_without_a_folder_of_the_job_keeps_the_image(here: Node, counting: Counting, way: str) -> None:
    """A container needs the folders that it had."""
    if way == PROCESSES:
        pytest.skip("plain processes have no folders of their own")
    pid = here.start(way, counting.command)
    counting.advances()
    here.saver.save(here.image(pid, way=way))
    reap(pid)
    entry = here.store.entries()[0]
    record = (entry.path / "image.json").read_text(encoding="utf-8")
    (entry.path / "image.json").write_text(record.replace('"/usr"', '"/scratch7"'), encoding="utf-8")
    with pytest.raises(CheckpointError, match="needs the folder /scratch7, which this node does not have"):
        here.saver.restore(7, 1)

    assert here.states() == [("7.1", WHOLE)]
