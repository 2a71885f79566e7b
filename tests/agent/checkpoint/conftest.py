# SPDX-License-Identifier: Apache-2.0
"""A store with real CRIU and runc, and programs whose progress can be followed."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from drom.agent.checkpoint import containers, store, tools
from drom.agent.checkpoint.bundle import Program
from drom.agent.checkpoint.containers import Containers
from drom.agent.checkpoint.images import CONTAINER, PROCESSES, Image, Quota
from drom.agent.checkpoint.processes import Processes
from drom.agent.checkpoint.saver import Saver
from drom.agent.checkpoint.store import ImageStore
from drom.agent.system import proc
from drom.agent.system.mounts import below, detach_below

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from drom.agent.checkpoint.saver import Way

COUNTER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    size_t size = (size_t)atoi(argv[2]) << 20;
    unsigned char *state = malloc(size);
    for (size_t at = 0; at < size; at++) state[at] = at * 2654435761u >> 24;
    FILE *file = fopen(argv[1], "a");
    for (long n = 1;; n++) {
        for (size_t at = n % 4096; at < size; at += 4096 * 97)
            if (state[at] != (unsigned char)(at * 2654435761u >> 24)) return 3;
        fprintf(file, "%ld\n", n);
        fflush(file);
        usleep(5000);
    }
}
"""
THREADS = """
import random, sys, threading, time
state = [random.Random(7).randbytes(int(sys.argv[2]) << 18) for _ in range(4)]
sums = [hash(one) for one in state]
lock, count, done = threading.Lock(), 0, [0] * 4
def work(me):
    global count
    while True:
        with lock:
            count += 1
            done[me] += 1
            if sum(done) != count or hash(bytes(bytearray(state[me]))) != sums[me]:
                sys.exit(3)
            print(count, file=file, flush=True)
        time.sleep(0.005)
file = open(sys.argv[1], "a")
for me in range(4):
    threading.Thread(target=work, args=(me,)).start()
"""
WAIT = 60.0
PR_SET_CHILD_SUBREAPER = 36


def await_true(check: Callable[[], object], what: str) -> None:
    """Wait until `check` returns something true."""
    until = time.monotonic() + WAIT
    while not check():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def criu() -> str:
    """Return the path of a CRIU that works here, or skip the test."""
    if os.geteuid() != 0:
        pytest.skip("CRIU saves jobs as root alone")
    for path in (str(ROOT / "build" / "criu" / "criu"), shutil.which("criu")):
        if path and tools.parse_version(_output(path, "--version")) >= tools.OLDEST:
            if subprocess.run([path, "check"], capture_output=True, check=False).returncode:
                pytest.skip(f"'{path} check' fails on this kernel")
            return path
    pytest.skip("no CRIU 4.1 or newer is installed: make criu")


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


@dataclass
class Node:
    """An image store of this machine, and the jobs that run on it."""

    store: ImageStore
    tools: tools.Tools
    saver: Saver
    folder: Path
    children: list[int] = field(default_factory=list)

    def image(self, pid: int, job: int = 7, generation: int = 1, way: str = PROCESSES) -> Image:
        """Return the record of a job of root's whose first process is `pid`."""
        start = proc.start_time(pid)
        assert start is not None
        binds = containers.node_folders() if way == CONTAINER else ()
        return Image(job, generation, way, os.geteuid(), os.getegid(), pid, start, proc.boot_id().hex(), binds=binds)

    def start(self, way: str, command: Sequence[str], uid: int = 0, job: int = 7) -> int:
        """Start a job of a user, whose group has the same number; return its pid."""
        if way == CONTAINER:
            program = Program(uid, uid, containers.node_folders(), command, {"PATH": os.environ["PATH"]})
            pid = Containers(self.tools).start(job, program)
        else:
            null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
            become = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups") if uid else ()
            pid = os.posix_spawnp(
                (*become, *command)[0], (*become, *command), os.environ, file_actions=null, setsid=True
            )
        self.children.append(pid)
        return pid

    def restore(self, job: int = 7, generation: int = 1) -> int:
        """Restore a job, forget its image, and return its pid."""
        pid = self.saver.restore(job, generation)
        self.children.append(pid)
        self.store.remove(job, generation)
        return pid

    def states(self) -> list[tuple[str, str]]:
        """Return the names and states of all images."""
        return [(one.image.name, one.state) for one in self.store.entries()]

    def reopen(self) -> Node:
        """Return the node with a new agent, which has settled what an earlier one left."""
        self.store.close()
        return node(self.store.path, self.folder, self.children)


def node(path: Path, folder: Path, children: list[int]) -> Node:
    """Return a node whose images are below `path`, recovered."""
    kept = ImageStore(path, Quota(1 << 34, 1 << 34))
    made = tools.prepare(path / store.TOOLS, criu())
    ways: dict[str, Way] = {PROCESSES: Processes(made)}
    if made.runc:
        ways[CONTAINER] = Containers(made)
    saver = Saver(kept, made, ways)
    saver.recover()
    return Node(kept, made, saver, folder, children)


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[[str], Node]]:
    """Return a function that makes a node; what ran on it is ended and its containers are removed."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # restored processes become our children
    made: list[Node] = []

    def make(name: str) -> Node:
        made.append(node(tmp_path / name, tmp_path, []))
        return made[-1]

    with ExitStack() as stack:
        stack.callback(ctypes.CDLL(None).prctl, PR_SET_CHILD_SUBREAPER, 0)
        yield make
        bound = [path for path in below(tmp_path) if "rootfs" in path.parts or path.name == "criu-root"]
        for one in made:
            _end(one)
        assert bound == [], "folders of the node are mounted here: who removes this folder removes their files"


def _end(one: Node) -> None:
    if one.tools.runc:
        for bundle in (one.tools.folder / "bundles").glob("*"):
            Containers(one.tools).remove(int(bundle.name))
    for pid in one.children:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.fixture
def here(make_node: Callable[[str], Node]) -> Node:
    """Return a node."""
    return make_node("images")


@pytest.fixture(params=[PROCESSES, CONTAINER])
def way(request: pytest.FixtureRequest) -> str:
    """Return each way to save a job."""
    if request.param == CONTAINER and not shutil.which("runc"):
        pytest.skip("runc is not installed: make criu")
    return str(request.param)


@dataclass(frozen=True)
class Counting:
    """A program that appends numbers to a file, from 1 on, and keeps state."""

    command: tuple[str, ...]
    file: Path

    def numbers(self) -> list[int]:
        """Return the numbers in the complete lines of the file; a shell also says that its command was killed."""
        text = self.file.read_text(encoding="ascii") if self.file.exists() else ""
        return [int(line) for line in text[: text.rfind("\n") + 1].split() if line != "Killed"]

    def advances(self) -> None:
        """Wait until the program has counted further."""
        first = len(self.numbers())
        await_true(lambda: len(self.numbers()) > first + 2, "the program stands still")

    def counted_once(self) -> bool:
        """Return whether each number was written once, in order."""
        found = self.numbers()
        return found == list(range(1, len(found) + 1))


@pytest.fixture(scope="session")
def counter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a counting program in C."""
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")
    folder = tmp_path_factory.mktemp("counter")
    (folder / "counter.c").write_text(COUNTER, encoding="ascii")
    subprocess.run(["gcc", "-O1", "-o", folder / "counter", folder / "counter.c"], check=True)
    return str(folder / "counter")


@pytest.fixture
def counting(counter: str, tmp_path: Path) -> Counting:
    """Return a small counting program."""
    return Counting((counter, str(tmp_path / "numbers"), "10"), tmp_path / "numbers")


@pytest.fixture(autouse=True)
def _nothing_stays_mounted(tmp_path: Path) -> Iterator[None]:
    """A killed CRIU leaves mounts in images of jobs that run; nothing of them stays after a test."""
    yield
    detach_below(tmp_path)
