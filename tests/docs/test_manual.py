# SPDX-License-Identifier: Apache-2.0
"""The manual pages of the commands."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess

import pytest
import typer

from drom.app import command_line
from drom.help import HEADINGS
from tests.support.paths import ROOT

MAN = ROOT / "man"


def test_pages_are_those_of_the_commands() -> None:
    """Each command has one, with what its help says: `make manual` writes them."""
    pages = runpy.run_path(str(ROOT / "scripts" / "manual.py"))["pages"]()

    assert {path.name for path in MAN.glob("*.1")} == {"drom.1", "drom-run.1", *pages}
    stale = [name for name, text in pages.items() if (MAN / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run make manual"


def test_commands_have_the_same_headings_as_in_help() -> None:
    """Each is under one of them, here and there."""
    page = (MAN / "drom.1").read_text(encoding="utf-8").replace("\\-", "-")
    for heading, names in HEADINGS.items():
        section = page.partition(f".SS {heading}\n")[2].partition("\n.S")[0]
        assert sorted(re.findall(r"^\.TP\n\.B ([a-z-]+)$", section, re.MULTILINE)) == sorted(names), heading
    everything = sorted(name for names in HEADINGS.values() for name in names)
    assert everything == sorted(typer.main.get_command(command_line()).commands)  # type: ignore[attr-defined] # a group


def test_variables_of_the_environment_are_told() -> None:
    """Each that our programs read is in drom(1) or drom-run(1), and so is each that a job finds."""
    sources = [path for part in ("agent", "scheduler", "dromlib") for path in (ROOT / part).rglob("*.[pc]*")]
    texts = [path.read_text(encoding="utf-8") for path in sources if path.suffix in {".py", ".c"}]
    read = {name for text in texts for name in re.findall(r'"(DROM_[A-Z_]*[A-Z])"', text)}
    told = "".join((MAN / page).read_text(encoding="utf-8") for page in ("drom.1", "drom-run.1"))
    among_ourselves = {"DROM_IMAGE_BLOCKS", "DROM_PRELOADED_RUNTIME", "DROM_RESTART"}  # no job is a filler yet

    assert {"DROM_JOB_ATTEMPT", "DROM_DEBUG", "DROM_MALLEABILITY"} <= read
    assert {name for name in read if name not in told} == among_ourselves


@pytest.mark.skipif(not shutil.which("man"), reason="man is missing")
def test_pages_are_well_formed() -> None:
    """Man has nothing to say about them."""
    for page in sorted(MAN.glob("*.[13]")):
        done = subprocess.run(["man", "--warnings", "-l", str(page)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), page
