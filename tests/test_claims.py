# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from agent.claims import ClaimError, Claims, claims_file, holders, runtime_dir_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOLD = """
import sys
from pathlib import Path
from agent.claims import Claims
claims = Claims(Path(sys.argv[1]))
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
    return claims_file({"DROM_CLAIMS_DIR": str(tmp_path)})


def test_what_another_agent_manages_is_refused_with_its_name(file: Path) -> None:
    """The sentence has the CPUs in question, the pid and the runtime directory; nothing is held after it."""
    described = json.dumps({"runtime_dir": "/run/other"})
    with holding(file, 0b0110, "_serve", described) as other:
        mine = Claims(file)
        with pytest.raises(ClaimError) as caught:
            mine.take(0b0111)
        assert str(caught.value) == (
            f"CPUs 1-2 are managed by the agent with pid {other.pid} in /run/other: "
            "stop it, or leave them to it with --reserved."
        )
        with holding(file, 0b0001):
            pass
        mine.close()
        assert holders(file, 0b1111) == {other.pid: 0b0110}


def test_disjoint_sets_go_together(file: Path) -> None:
    """Two agents with cpusets of their own may share a node."""
    with holding(file, 0b01) as a, holding(file, 0b10) as b:
        assert holders(file, 0b111) == {a.pid: 0b01, b.pid: 0b10}


def test_death_frees_a_claim(file: Path) -> None:
    """Whatever it dies of."""
    with holding(file, 0b1) as other:
        other.kill()
        other.wait()
        claims = Claims(file)
        claims.take(0b1)
        claims.close()


def test_everybody_may_lock_the_file(file: Path, tmp_path: Path) -> None:
    """It is made for all users, and stays when a claim ends."""
    Claims(file).close()

    assert file.stat().st_mode & 0o777 == 0o666
    assert holders(file, 1) == {}
    assert holders(tmp_path / "none", 1) == {}


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_is_no_file_is_refused(file: Path, kind: str) -> None:
    """Nothing is followed, waited for or written, and the sentence says what to do."""
    if kind == "link":
        file.symlink_to("/dev/null")
    elif kind == "folder":
        file.mkdir()
    else:
        os.mkfifo(file)
    with pytest.raises(ClaimError, match=rf"^cannot claim CPUs in {file}: .*: remove it, or set DROM_CLAIMS_DIR\.$"):
        Claims(file)


@pytest.mark.parametrize("words", ["", "_serve", "_serve\0{", "_serve\0[]", "_serve\0{}"])
def test_a_command_line_that_is_no_agent_names_no_directory(tmp_path: Path, words: str) -> None:
    """It is only a name for people."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cmdline").write_bytes(words.encode())

    assert runtime_dir_of(7, str(tmp_path)) == runtime_dir_of(8, str(tmp_path)) == ""
