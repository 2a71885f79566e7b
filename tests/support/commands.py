# SPDX-License-Identifier: Apache-2.0
"""The command line, run as scripts run it."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING

from tests.support.forks import Fork
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping


def drom(*arguments: str | Path, code: int = 0, compiled: bool = True) -> tuple[str, str]:
    """Run `drom` from the root of the repository, check its exit code, and return its stdout and stderr.

    Unless `compiled`, policies and simulator run as plain Python, which gives the same answers.
    """
    if compiled and arguments[0] == "simulate":
        _load_simulator()
    if arguments[0] == "reproduce" or {"--html", "--plots"} & {*arguments}:
        _load_matplotlib()
    env = os.environ | ({} if compiled else {"NUMBA_DISABLE_JIT": "1"})
    done = run_forked(*map(str, arguments), folder=ROOT, env=env)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


@functools.cache
def _load_simulator() -> None:
    """Load the simulator with its usual policy into this process, so that its forks have it."""
    from drom.scheduler.engine.compiler import compile_program, load_policy

    compile_program(load_policy("easy"))


@functools.cache
def _load_matplotlib() -> None:
    """Load matplotlib into this process, if it is installed, so that its forks have it."""
    with contextlib.suppress(ModuleNotFoundError):
        for part in ("figure", "backends.backend_agg", "backends.backend_svg"):
            importlib.import_module(f"matplotlib.{part}")


def run_forked(*words: str, folder: Path | None = None, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a `drom` command to its end, in a fork of this process."""
    with Fork(["drom", *words], cwd=folder, env=env, stdout=PIPE, stderr=PIPE, encoding="utf-8") as process:
        try:
            out, err = process.communicate()
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def commands_of(page: str) -> list[str]:
    """Return the lines of a page's `sh` blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return "".join(blocks).splitlines()


def run_lines(lines: list[str], folder: Path) -> str:
    """Run lines of shell in a folder, up to the first that fails, which none may; return their stdout.

    If all are plain calls of commands, those of drom are run in forks of this process.
    """
    if not re.search(r"[^\w\s./,:=+-]", "".join(lines)):
        _load_simulator()
        _load_matplotlib()
        return "".join(_run_line(line.split(), folder) for line in lines)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["bash", "-euc", "\n".join(lines)]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _run_line(words: list[str], folder: Path) -> str:
    if words[0] == "drom":
        done = run_forked(*words[1:], folder=folder, env=os.environ)
    else:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
