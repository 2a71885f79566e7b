# SPDX-License-Identifier: Apache-2.0
"""The command line, run as scripts run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT


def drom(*arguments: str | Path, code: int = 0, compiled: bool = True) -> tuple[str, str]:
    """Run `drom` from the root of the repository, check its exit code, and return its stdout and stderr.

    Unless `compiled`, policies and simulator run as plain Python, which gives the same answers and starts faster.
    """
    command = [sys.executable, "-m", "drom", *map(str, arguments)]
    env = os.environ | ({} if compiled else {"NUMBA_DISABLE_JIT": "1"})
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def commands_of(page: str) -> list[str]:
    """Return the lines of a page's `sh` blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return "".join(blocks).splitlines()


def run_lines(lines: list[str], folder: Path) -> str:
    """Run lines of shell in a folder, up to the first that fails, which none may; return their stdout."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["bash", "-euc", "\n".join(lines)]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
