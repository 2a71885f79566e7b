# SPDX-License-Identifier: Apache-2.0
"""The manual pages of the commands."""

from __future__ import annotations

import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAN = ROOT / "man"


def test_pages_are_those_of_the_commands() -> None:
    """Each command has one, with what its help says: `make manual` writes them."""
    pages = runpy.run_path(str(ROOT / "scripts" / "manual.py"))["pages"]()

    assert {path.name for path in MAN.glob("*.1")} == {"drom.1", "drom-run.1", *pages}
    stale = [name for name, text in pages.items() if (MAN / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run make manual"


@pytest.mark.skipif(not shutil.which("man"), reason="man is missing")
def test_pages_are_well_formed() -> None:
    """Man has nothing to say about them."""
    for page in sorted(MAN.glob("*.[13]")):
        done = subprocess.run(["man", "--warnings", "-l", str(page)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), page
