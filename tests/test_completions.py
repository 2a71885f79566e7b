# SPDX-License-Identifier: Apache-2.0
"""What the shells complete, asked of the shells themselves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dromlib import native
from tests.agents import SECONDS, Programs, environment, programs, start_agent

FOLDER = Path(__file__).resolve().parent.parent / "contrib" / "completions"
BIN = Path(sys.executable).parent
BASH = """
set -u
. "$1"
COMP_WORDS=("${@:2}") COMP_CWORD=$(($# - 2)) COMPREPLY=()
_drom "$2"
printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH = "source $argv[1]; complete -C $argv[2]"


def ask(shell: str, *words: str, **extra: str) -> set[str]:
    """Return what a shell offers for the last of these words of a command line."""
    if not shutil.which(shell):
        pytest.skip(f"{shell} is missing")
    if shell == "bash":
        command = ["bash", "--norc", "-c", BASH, "bash", str(FOLDER / "drom.bash"), *words]
    else:
        command = ["fish", "--no-config", "-c", FISH, str(FOLDER / "drom.fish"), " ".join(words)]
    path = f"{BIN}:{native.run_path().parent}:{os.environ['PATH']}"
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment(PATH=path, **extra)
    )
    assert (done.returncode, done.stderr) == (0, "")
    return {line.partition("\t")[0].strip() for line in done.stdout.splitlines()} - {""}


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_commands_options_and_values(shell: str) -> None:
    """Commands of drom, its groups' commands, options of the launcher, and what these take."""
    assert ask(shell, "drom", "con") == {"config"}
    assert ask(shell, "drom", "config", "") == {"check", "reload", "show"}
    assert "--freeze-file" in ask(shell, "drom", "agent", "--f")
    told = subprocess.run([native.run_path(), "--help"], capture_output=True, text=True, check=True).stdout
    options = set(re.findall(r"^  (--[a-z-]+)", told, re.MULTILINE)) - {"--help", "--version"}
    for launcher in (("drom", "run"), ("drom-run",)):
        assert options <= ask(shell, *launcher, "--")
        assert ask(shell, *launcher, "--min", "2", "--class", "mo") == {"moldable"}
        assert "printenv" in ask(shell, *launcher, "--require", "printen")
    assert "printenv" in ask("bash", "drom", "run", "--cpus", "2", "--", "printen")


@pytest.mark.system
@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_jobs_are_those_of_the_running_agent(tmp_path: Path, shell: str) -> None:
    """Their names are asked for; where no agent answers there are none."""
    where = {"DROM_RUNTIME_DIR": str(tmp_path / "run")}
    with programs(tmp_path / "programs") as start, start_agent(tmp_path, "--emulate", "pack:1 core:2") as agent:
        _start(start, *agent.run("--job", "alpha", "--", "sleep", "1000"))
        _start(start, *agent.run("--job", "beta", "--", "sleep", "1000"))
        agent.await_tasks(alpha="0", beta="1")
        assert ask(shell, "drom", "explain", "", **where) == {"alpha", "beta"}
        assert ask(shell, "drom", "resize", "al", **where) == {"alpha"}
    assert ask(shell, "drom", "release", "al", **where) == set()


def _start(start: Programs, *command: str) -> None:
    start.start(*command)


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is missing")
def test_zsh_finds_no_fault() -> None:
    """Its grammar is right, and the options are the launcher's."""
    file = FOLDER / "_drom"
    subprocess.run(["zsh", "-n", str(file)], check=True)
    told = subprocess.run([native.run_path(), "--help"], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^  (--[a-z-]+)", told, re.MULTILINE)) <= set(re.findall(r"--[a-z-]+", file.read_text()))
