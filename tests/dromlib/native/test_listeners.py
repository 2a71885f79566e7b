# SPDX-License-Identifier: Apache-2.0
"""Whom a program asks for CPUs: an agent of root or of its own user, in a directory that nobody else can write."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from drom.agent.ipc.runtime_dir import fault_of

from dromlib import native
from tests.support import native_build
from tests.support.agents import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OTHER, THIRD = 200_000 + os.getpid() % 100_000, 65533
"""Numbers of users. A directory of /tmp is named after the first, so that each process that tests has its own."""
USERS = {"root": 0, "user": OTHER, "another": THIRD}
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a program that attaches, and waits a second for an answer."""
    return native_build.build(tmp_path_factory.mktemp("client"), "client", "plain", flags=["-DDROMI_ANSWER_SECONDS=1"])


@pytest.fixture
def common(client: Path) -> Iterator[Path]:
    """Return a folder that everybody may enter, with copies of the launcher and of a program that attaches."""
    with tempfile.TemporaryDirectory(prefix="drom") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for program in (native.run_path(), client):
            shutil.copy(program, folder)
        yield folder


@contextlib.contextmanager
def listening(door: Path, uid: int, kind: int = socket.SOCK_SEQPACKET) -> Iterator[None]:
    """Have a user listen at a door for the length of a block, and answer nothing."""
    code = (
        f"import os, socket, sys; os.setresuid({uid}, {uid}, {uid}); s = socket.socket(socket.AF_UNIX, {kind})\n"
        "s.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o666); s.listen(); print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(door)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as listener:
        assert listener.stdout
        assert listener.stdin
        assert listener.stdout.readline() == b"\n"
        yield
        listener.stdin.close()


def run(common: Path, uid: int, **environ: str) -> str:
    """Return what drom-run of a user says who requires an agent."""
    command = ["setpriv", f"--reuid={uid}", "--clear-groups", f"{common}/drom-run", "--require", "true"]
    env = {"PATH": os.environ["PATH"], **environ}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    return done.stderr


def attach(common: Path, uid: int, **environ: str) -> str:
    """Return what libdrom says in a program of a user that attaches."""
    command = ["setpriv", f"--reuid={uid}", "--clear-groups", f"{common}/client"]
    env = {"PATH": os.environ["PATH"], **environ}
    done = subprocess.run(
        command, env=env, input="attach\n", capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.stdout.startswith("attach ")
    return done.stderr


@pytest.mark.parametrize(
    ("listener", "user", "asked"),
    [
        *(("root", "root", True), ("root", "user", True), ("user", "user", True)),
        *(("user", "root", False), ("user", "another", False)),
    ],
)
def test_only_an_agent_of_root_or_of_the_same_user_is_asked(
    common: Path, listener: str, user: str, *, asked: bool
) -> None:
    """Root's programs join root's agent alone; others that of root, and their own. Both clients say why they do not."""
    folder = common / "run"
    folder.mkdir()
    folder.chmod(0o777)
    stranger = f"drom: the agent in {folder} belongs to another user than you or root"
    silent = f"drom: the agent in {folder} has not answered for 1 s"
    with listening(folder / "door", USERS[listener]):
        told = attach(common, USERS[user], DROM_RUNTIME_DIR=str(folder))
        assert told.startswith(f"{silent if asked else stranger}, so this program runs unmanaged: ")
        if not asked:
            said = run(common, USERS[user], DROM_RUNTIME_DIR=str(folder))
            assert said == f"{stranger}: name your agent's directory with DROM_RUNTIME_DIR\n"


def a_link(folder: Path) -> None:
    """Make a link to a directory of the user's own."""
    real = folder.with_name(f"{folder.name}-real")
    real.mkdir()
    os.chown(real, OTHER, OTHER)
    folder.symlink_to(real)


def a_file(folder: Path) -> None:
    """Make a file of the user's."""
    folder.touch()
    os.chown(folder, OTHER, OTHER)


def a_folder(uid: int, mode: int) -> Callable[[Path], None]:
    """Return what makes a directory of a user."""

    def make(folder: Path) -> None:
        folder.mkdir()
        folder.chmod(mode)
        os.chown(folder, uid, uid)

    return make


UNSAFE = [a_link, a_file, a_folder(THIRD, 0o755), a_folder(OTHER, 0o775), a_folder(OTHER, 0o757), a_folder(0, 0o777)]
ROOTS = a_folder(0, 0o755)
SAFE = [a_folder(OTHER, 0o700), a_folder(OTHER, 0o755), ROOTS]
ASK_ADMINISTRATOR = (
    "you cannot start one there: ask an administrator to, or name the directory of your own agent with DROM_RUNTIME_DIR"
)


@pytest.mark.parametrize(
    ("make", "safe"),
    [*((make, False) for make in UNSAFE), *((make, True) for make in SAFE)],
    ids=[f"{'safe' if number >= len(UNSAFE) else 'unsafe'}{number}" for number in range(len(UNSAFE) + len(SAFE))],
)
@pytest.mark.parametrize("session", [True, False])
def test_a_directory_that_nobody_has_named_must_be_safe(
    common: Path, make: Callable[[Path], None], *, safe: bool, session: bool
) -> None:
    """Below XDG_RUNTIME_DIR and in /tmp alike it is a directory of the user or of root that nobody else can write.

    That is the rule of libdrom, drom-run and the command line.
    """
    if Path("/run/drom/door").exists():
        pytest.skip("an agent of this machine comes first")
    if session:
        folder = common / "drom"
        environ = {"XDG_RUNTIME_DIR": str(common)}
    else:
        folder = Path(f"/tmp/drom-{OTHER}")
        environ = {}
        if os.path.lexists(folder):
            pytest.skip(f"{folder} is somebody's")
    try:
        make(folder)
        said = run(common, OTHER, **environ)
        fault = fault_of(folder, OTHER, environ)
    finally:
        if folder.is_dir() and not folder.is_symlink():
            folder.rmdir()
        else:
            folder.unlink()
        with contextlib.suppress(FileNotFoundError):
            folder.with_name(f"{folder.name}-real").rmdir()

    unsafe = f"drom: {folder} is not a directory that only you or root may write: name your agent's with "
    advice = ASK_ADMINISTRATOR if make is ROOTS else f"start one with: drom agent --runtime-dir {folder}"
    absent = f"drom: no agent answers in {folder}: {advice}\n"
    assert said == absent if safe else said.startswith(unsafe)
    assert bool(fault) is not safe


def test_a_users_namespace_still_joins_roots_agent(common: Path) -> None:
    """In a container without root's number the agent of root is a user that nobody knows, and is asked."""
    folder = common / "run"
    folder.mkdir()
    unshare = ["unshare", "--user", "--map-user=1000"]
    if subprocess.run(["setpriv", f"--reuid={OTHER}", *unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs user namespaces")
    command = ["setpriv", f"--reuid={OTHER}", "--clear-groups", *unshare, f"{common}/client"]
    with listening(folder / "door", 0):
        env = {"PATH": os.environ["PATH"], "DROM_RUNTIME_DIR": str(folder)}
        done = subprocess.run(
            command, env=env, input="attach\n", capture_output=True, text=True, timeout=SECONDS, check=False
        )

    assert f"the agent in {folder} has not answered for 1 s" in done.stderr


def test_every_reason_names_the_directory_and_what_to_do(common: Path) -> None:
    """Whatever hinders the launcher, one sentence says what it is, and how it can be mended."""
    (common / "file").touch()
    (common / "loop").symlink_to("loop")
    (common / "closed").mkdir(mode=0o700)
    (common / "stream").mkdir(mode=0o755)
    (common / "stale").mkdir(mode=0o755)
    for name in ("own", "it's mine"):
        (common / name).mkdir()
        os.chown(common / name, OTHER, OTHER)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as gone:
        gone.bind(str(common / "stale" / "door"))
        (common / "stale" / "door").chmod(0o666)
    reasons = {
        "none": f"no agent answers in {{}}: {ASK_ADMINISTRATOR}",
        "stale": f"no agent answers in {{}}: {ASK_ADMINISTRATOR}",
        "own": "no agent answers in {}: start one with: drom agent --runtime-dir {}",
        "own/new": "no agent answers in {}: start one with: drom agent --runtime-dir {}",
        "it's mine": f"no agent answers in {{}}: start one with: drom agent --runtime-dir '{common}/it'\\''s mine'",
        "file": "{} is not a directory: name that of an agent with DROM_RUNTIME_DIR",
        "loop": "{} is a link to itself: name the directory of an agent with DROM_RUNTIME_DIR",
        "closed": "you may not enter {}: name the directory of an agent that you may use with DROM_RUNTIME_DIR",
        "stream": "{}/door is not a socket of an agent: name the directory of an agent with DROM_RUNTIME_DIR",
    }
    with listening(common / "stream" / "door", 0, socket.SOCK_STREAM):
        for name, sentence in reasons.items():
            folder = str(common / name)
            assert run(common, OTHER, DROM_RUNTIME_DIR=folder) == f"drom: {sentence.replace('{}', folder)}\n", name
    long = run(common, OTHER, DROM_RUNTIME_DIR="/" + "x" * 5000)
    assert re.match(
        r"drom: the path /x+ is longer than the 99 bytes that the sockets of an agent allow: start one ", long
    )


def test_signals_do_not_prolong_the_wait_for_an_agent_that_accepts_nothing(tmp_path: Path) -> None:
    """A program with a timer that attaches to an agent whose queue is full runs unmanaged after the same time."""
    library = tmp_path / "libdrom.so"
    flags = ["-shared", "-fPIC", "-DDROMI_ANSWER_SECONDS=1"]
    native_build.compile_c(library, sorted((native_build.NATIVE / "src").glob("*.c")), flags)
    code = (
        "import ctypes, signal, sys; signal.signal(signal.SIGALRM, lambda *_: None)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01); ctypes.CDLL(sys.argv[1]).drom_attach()\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)"
    )
    with contextlib.ExitStack() as opened:
        door = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        door.bind(str(tmp_path / "door"))
        door.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                client = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                client.setblocking(False)
                client.connect(str(tmp_path / "door"))
        env = {"PATH": os.environ["PATH"], "DROM_RUNTIME_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", code, library], env=env, capture_output=True, text=True, timeout=SECONDS, check=False
        )

    assert done.stderr.startswith(f"drom: the agent in {tmp_path} has not answered for 1 s, so this program runs ")
    assert done.returncode == 0
