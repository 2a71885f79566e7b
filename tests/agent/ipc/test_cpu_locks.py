# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from drom.agent.ipc.cpu_locks import CpuLockError, CpuLocks, cpu_locks_file, lock_holders, roots_file, runtime_dir_of

from dromlib.cpulist import cpus

if TYPE_CHECKING:
    from collections.abc import Iterator

HOLD = """
import sys
from pathlib import Path
from drom.agent.ipc.cpu_locks import CpuLocks
claims = CpuLocks(Path(sys.argv[1]))
claims.take(int(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holding(file: Path, mask: int, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold CPUs."""
    command = [sys.executable, "-c", HOLD, str(file), str(mask), *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdin
        assert process.stdout.readline() == "held\n"
        yield process
        process.stdin.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file for claims."""
    return cpu_locks_file({"DROM_CLAIMS_DIR": str(tmp_path)})


def test_what_another_agent_manages_is_refused_with_its_name(file: Path) -> None:
    """The sentence has the CPUs in question, the pid and the runtime directory; nothing is held after it."""
    with holding(file, 0b0110, "--runtime-dir", "/run/other") as other:
        mine = CpuLocks(file)
        with pytest.raises(CpuLockError) as caught:
            mine.take(0b0111)
        assert str(caught.value) == (
            f"CPUs 1-2 are managed by the agent with pid {other.pid} in /run/other: "
            "stop it, or leave them to it with --reserved."
        )
        with holding(file, 0b0001):
            pass
        mine.close()
        assert lock_holders(file, 0b1111) == {other.pid: 0b0110}


def test_disjoint_sets_go_together(file: Path) -> None:
    """Two agents with cpusets of their own may share a node."""
    with holding(file, 0b01) as a, holding(file, 0b10) as b:
        assert lock_holders(file, 0b111) == {a.pid: 0b01, b.pid: 0b10}


def test_death_frees_a_claim(file: Path) -> None:
    """Whatever it dies of."""
    with holding(file, 0b1) as other:
        other.kill()
        other.wait()
        claims = CpuLocks(file)
        claims.take(0b1)
        claims.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_nobody_else_stops_roots_agent(file: Path) -> None:
    """Of CPUs that another user has claimed a sentence tells; a second agent of root's is still refused."""
    claim(file, 0b0001)
    with claimed_by(4711, file, 0b0011) as other:
        mine = CpuLocks(file)
        said = mine.take(0b0111)
        assert said == [
            f"CPUs 0-1 are managed by the agent with pid {other}: stop it, or leave them to it with --reserved."
        ]
        found = ask_for(file, 0b0010)
        mine.close()

    assert found == (
        f"CPU 1 is managed by the agent with pid {os.getpid()}: stop it, or leave this one to it with --reserved."
    )
    assert roots_file(file).stat().st_mode & 0o777 == 0o600
    assert roots_file(cpu_locks_file({})) == Path("/run/drom-claims")


def claim(file: Path, mask: int) -> None:
    """Claim CPUs and give them up."""
    claims = CpuLocks(file)
    claims.take(mask)
    claims.close()


def ask_for(file: Path, mask: int) -> str:
    """Return what another agent of root's is told that wants CPUs."""
    code = HOLD.replace("claims.take(int(sys.argv[2]))", "print(attempt(claims))").replace("sys.stdin.read()", "")
    attempt = (
        "def attempt(claims):\n"
        "    try:\n        return claims.take(int(sys.argv[2]))\n"
        "    except Exception as error:\n        return error\n"
    )
    command = [sys.executable, "-c", attempt + code, str(file), str(mask)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]


@contextmanager
def claimed_by(uid: int, file: Path, mask: int) -> Iterator[int]:
    """Let a process of another user claim CPUs in the file for everybody; yield its pid."""
    fd = os.open(file, os.O_RDWR)
    (read, write), (until, end) = os.pipe(), os.pipe()
    if not (child := os.fork()):
        try:
            os.setresuid(uid, uid, uid)
            os.close(end)
            for cpu in cpus(mask):
                fcntl.lockf(fd, fcntl.LOCK_EX, 1, cpu)
            os.write(write, b"held")
            os.read(until, 1)
        finally:
            os._exit(0)
    os.read(read, 4)
    yield child
    for one in (fd, read, write, until, end):
        os.close(one)
    os.waitpid(child, 0)


def test_a_file_with_another_name_is_left_alone(file: Path, tmp_path: Path) -> None:
    """A link made before the first agent changes neither owner nor mode of the file it leads to."""
    theirs = tmp_path / "theirs"
    theirs.write_text("kept")
    theirs.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(theirs, 65534, 65534)
    file.hardlink_to(theirs)
    before = theirs.stat()
    claims = CpuLocks(file)

    if os.geteuid() == 0:
        (told,) = claims.take(1)
    else:
        with pytest.raises(CpuLockError) as caught:
            claims.take(1)
        told = str(caught.value)
    claims.close()

    assert "another name" in told
    assert (theirs.stat().st_uid, theirs.stat().st_mode) == (before.st_uid, before.st_mode)


def test_everybody_may_lock_the_file(file: Path, tmp_path: Path) -> None:
    """The file is made writable for all users, and stays when a claim ends."""
    claim(file, 1)

    assert file.stat().st_mode & 0o777 == 0o666
    assert lock_holders(file, 1) == {}
    assert lock_holders(tmp_path / "none", 1) == {}


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_is_no_file_is_refused(file: Path, kind: str) -> None:
    """Nothing is followed, waited for or written, and the sentence says what to do."""
    ours = roots_file(file) if os.geteuid() == 0 else file
    for path in {file, ours}:
        if kind == "link":
            path.symlink_to("/dev/null")
        elif kind == "folder":
            path.mkdir()
        else:
            os.mkfifo(path)
    with pytest.raises(CpuLockError, match=rf"^cannot claim CPUs in {ours}: .*: remove it, or set DROM_CLAIMS_DIR\.$"):
        CpuLocks(file).take(1)
    if ours != file:
        ours.rmdir() if kind == "folder" else ours.unlink()
        claims = CpuLocks(file)
        (said,) = claims.take(1)
        claims.close()
        assert said.startswith(f"cannot claim CPUs in {file}: ")


@pytest.mark.parametrize("words", ["", "drom-agent", "drom-agent\0--runtime-dir"])
def test_a_command_line_that_is_no_agent_names_no_directory(tmp_path: Path, words: str) -> None:
    """A command line without the arguments of an agent gives no runtime directory."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cmdline").write_bytes(words.encode())

    assert runtime_dir_of(7, str(tmp_path)) == runtime_dir_of(8, str(tmp_path)) == ""
