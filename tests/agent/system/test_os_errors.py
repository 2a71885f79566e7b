# SPDX-License-Identifier: Apache-2.0
"""What the operating system refuses is one sentence: the thing, why, and what to do."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from drom.agent.system import os_errors

from tests.support.agents import SECONDS, environment

DROM = Path(sys.executable).with_name("drom")
GONE = "drom: the current folder does not exist any more: change to one that does (cd).\n"


def run(script: str, folder: Path, *words: str) -> tuple[int, str, str]:
    """Return the status, stdout and stderr of a line of shell that runs drom, "$@", in a folder."""
    command = ["bash", "-c", script, "bash", str(DROM), *words]
    env = environment(DROM_QUEUE=str(folder / "queue"))
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "words", ["--version", "--help", "topology --json", "config show", "flags", "workload --help", "run --help"]
)
def test_an_answer_that_cannot_be_written_is_a_failure(tmp_path: Path, words: str) -> None:
    """On a full device every command says so, exactly once, and fails."""
    status, _, said = run('"$@" >/dev/full', tmp_path, *words.split())

    expected = {
        "run": "drom: cannot write to standard output (No space left on device).\n",
        "all others": "drom: standard output: No space left on device: free space there, or choose another place.\n",
    }
    assert (status, said) == (1, expected["run" if words.startswith("run") else "all others"])


@pytest.mark.parametrize(
    "words",
    [
        *(
            "submit -- true",
            "ps --runtime-dir x",
            "agent --emulate core:1 --runtime-dir x",
            "explain --runtime-dir x 1",
        ),
        *("doctor --runtime-dir x", "agent --config x", "top --runtime-dir x", "config check x"),
        *("keys make --dir x", "keys show --dir x/y", "keys trust x name --dir x", "events --file x"),
        *("demo --out x", "reproduce cp --out x", "workload info x", "compare x y"),
    ],
)
def test_a_folder_that_was_deleted_is_named(tmp_path: Path, words: str) -> None:
    """Whatever needs the current folder says that it is gone."""
    gone = tmp_path / "gone"
    gone.mkdir()

    assert run(f'rmdir "{gone}"; "$@"', gone, *words.split()) == (1, "", GONE)


@pytest.mark.parametrize("words", ["topology --emulate core:1", "config show", "run true", "flags"])
def test_a_folder_that_was_deleted_hinders_nothing_else(tmp_path: Path, words: str) -> None:
    """What does not need it works."""
    gone = tmp_path / "gone"
    gone.mkdir()

    assert run(f'rmdir "{gone}"; "$@"', gone, *words.split())[0] == 0


@pytest.mark.parametrize(
    ("script", "words", "sentence"),
    [
        ('"$@"', "workload info none", "none: No such file or directory: check its name."),
        ('"$@"', "config check none", "cannot read the configuration none: No such file or directory: check its name."),
        ('"$@"', "workload info .", ".: Is a directory: name a file."),
        ('ln -s a a; "$@"', "workload info a", "a: Too many levels of symbolic links: it is a link to itself."),
        ('"$@"', f"workload info {'x' * 300}", f"{'x' * 300}: File name too long: choose a shorter name."),
        ('"$@"', "workload info /etc/passwd/x", "/etc/passwd/x: Not a directory: check its name."),
    ],
)
def test_a_file_is_named_with_what_to_do(tmp_path: Path, script: str, words: str, sentence: str) -> None:
    """A file that cannot be used is named, with the reason and a remedy."""
    assert run(script, tmp_path, *words.split()) == (1, "", f"drom: {sentence}\n")


def test_no_sentence_is_a_bare_number() -> None:
    """Errors without a file name what was refused, whichever number they have."""
    for number in errno.errorcode:
        for file in (None, "file", b"file", 7):
            error = OSError(number, os.strerror(number))
            error.filename = file
            said = os_errors.sentence_of(error)

            assert os.strerror(number) in said
            assert "Errno" not in said
            assert said.endswith(".")
            assert file is None or said.startswith(("file: ", "descriptor 7: "))
    assert os_errors.sentence_of(OSError("words")) == "the system refuses what drom needs (words): see drom doctor."
