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
import typer
from drom.agent.cli import orders
from drom.agent.control import client

from drom.app import command_line
from dromlib import native
from tests.support.agents import SECONDS, Programs, drom, environment, programs, start_agent, wait_until
from tests.support.paths import ROOT
from tests.support.terminals import has, terminal

FOLDER = ROOT / "contrib" / "completions"
BIN = Path(sys.executable).parent
BASH = """
set -u
. "$1"
COMP_WORDS=("${@:2}") COMP_CWORD=$(($# - 2)) COMPREPLY=()
_drom "$2"
printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH = "source $argv[1]; complete -C $argv[2]"
ZSH = """
fpath=($1)
autoload -Uz _drom
compadd() { print -rl -- "${@[$argv[(i)--] + 1,-1]}" }
_files() {}
words=("${@:2}") CURRENT=$(($# - 1)) service=$2
_drom
"""
"""Without a terminal there is no completion: what is offered is printed instead."""
FILES = {
    "bash-completion/completions": {"drom", "drom-run"},
    "fish/vendor_completions.d": {"drom.fish", "drom-run.fish"},
}
HOSTILE = r"\$(touch touched)", "`touch touched`", "$(touch touched)", "a;touch touched", "--remote=there"
"""Names of jobs that a shell would take for something else, if it took them as they are."""


CARELESS = """
import re, atexit
from drom.agent.control import client as control
from drom.agent.cli import orders as cli_orders
control.order = lambda *_: {{"tasks": {tasks}}}
cli_orders._PLAIN = re.compile(".*")
atexit.register(lambda: open("asked", "w"))
from drom.app import run_app
run_app()
"""
PROMPTS = {
    "bash": ["bash", "--norc", "-i"],
    "fish": ["fish", "--no-config", "-i"],
    "zsh": ["zsh", "-fi"],
}
AT_HOME = ': <>"$(tty)" && cd "$0" && exec "$@"'
"""Opening its terminal makes that one control the session, as fish wants it."""
SETUP = {
    "bash": f". {FOLDER}/drom.bash; echo rea''dy\r",
    "fish": f"source {FOLDER}/drom.fish; echo rea''dy\r",
    "zsh": f"fpath=({FOLDER} $fpath); autoload -Uz compinit; compinit -u -D; echo rea''dy\r",
}
"""What puts our completion in force at a prompt."""


def ask(shell: str, *words: str, **extra: str) -> set[str]:
    """Return what a shell offers for the last of these words of a command line."""
    if not shutil.which(shell):
        pytest.skip(f"{shell} is missing")
    if shell == "bash":
        command = ["bash", "--norc", "-c", BASH, "bash", str(FOLDER / "drom.bash"), *words]
    elif shell == "zsh":
        command = ["zsh", "-fc", ZSH, "zsh", str(FOLDER), *words]
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
@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_jobs_are_those_of_the_running_agent(tmp_path: Path, shell: str) -> None:
    """Their names are asked for; where no agent answers there are none."""
    where = {"DROM_RUNTIME_DIR": str(tmp_path / "run")}
    with programs(tmp_path / "programs") as start, start_agent(tmp_path, "--emulate", "pack:1 core:2") as agent:
        _start(start, *agent.run("--job", "alpha", "--", "sleep", "1000"))
        agent.await_tasks(alpha="0-1")
        _start(start, *agent.run("--job", "beta", "--", "sleep", "1000"))
        agent.await_tasks(alpha="0", beta="1")
        assert ask(shell, "drom", "explain", "", **where) == {"alpha", "beta"}
        assert ask(shell, "drom", "resize", "al", **where) == {"alpha"}
    assert ask(shell, "drom", "release", "al", **where) == set()


def test_names_that_a_shell_could_take_for_more_are_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users choose the names of their jobs, and root completes them."""
    names = ["sd-1", "a.b:c@d,e+f=g%1", *HOSTILE, "a b", "=ls", "~root", "", "caf\u00e9"]
    monkeypatch.setattr(client, "order", lambda *_: {"tasks": [{"job": name} for name in names]})
    context = typer.Context(typer.main.get_command(command_line()))

    assert orders._job_names(context, "") == ["a.b:c@d,e+f=g%1", "sd-1"]
    assert orders._job_names(context, "s") == ["sd-1"]


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_nothing_that_drom_prints_is_run(tmp_path: Path, shell: str) -> None:
    """Even a drom that offers names as they are does no harm when the tabulator key is pressed twice at a prompt."""
    if not shutil.which(shell):
        pytest.skip(f"{shell} is missing")
    tasks = [{"job": name} for name in HOSTILE]
    (tmp_path / "drom").write_text(f"#!{sys.executable}\n{CARELESS.format(tasks=tasks)}", encoding="utf-8")
    (tmp_path / "drom").chmod(0o755)
    env = environment(PATH=f"{tmp_path}:{os.environ['PATH']}", HOME=str(tmp_path))
    with terminal(["sh", "-c", AT_HOME, str(tmp_path), *PROMPTS[shell]], env) as it:
        it.type(SETUP[shell])
        it.await_screen(has("^ready$"))
        it.type("drom explain \t\t")
        wait_until((tmp_path / "asked").exists, lambda: "\n".join(it.lines))
        it.type("\x15echo do''ne\r")
        it.await_screen(has("done"))
    assert not (tmp_path / "touched").exists()


def test_shells_find_them_by_the_name_of_either_command() -> None:
    """The shell bash loads a file with the name of the command, and so does fish."""
    share = Path(sys.prefix) / "share"
    for folder, names in FILES.items():
        assert {path.name for path in (share / folder).iterdir()} >= names


def test_typers_own_scripts_are_not_installed() -> None:
    """They would have the shell evaluate what drom prints."""
    assert "completion" not in drom("--help").stdout


def _start(start: Programs, *command: str) -> None:
    start.start(*command)


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is missing")
def test_zsh_finds_no_fault() -> None:
    """Its grammar is right, and the options are the launcher's."""
    file = FOLDER / "_drom"
    subprocess.run(["zsh", "-n", str(file)], check=True)
    told = subprocess.run([native.run_path(), "--help"], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^  (--[a-z-]+)", told, re.MULTILINE)) <= set(re.findall(r"--[a-z-]+", file.read_text()))
