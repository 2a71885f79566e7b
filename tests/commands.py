# SPDX-License-Identifier: Apache-2.0
"""The command line, run as scripts run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def drom(*arguments: str | Path, code: int = 0) -> tuple[str, str]:
    """Run `drom` from the root of the repository, check its exit code, and return its stdout and stderr."""
    command = [sys.executable, "-m", "agent", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr
