# SPDX-License-Identifier: Apache-2.0
"""What docs/observing.md promises."""

from __future__ import annotations

import re

from typer.main import get_group

from drom.app import command_line
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
TEXT = (DOCS / "observing.md").read_text(encoding="utf-8")


def test_its_links_lead_somewhere() -> None:
    """Files and pictures are there."""
    links = [link for link in re.findall(r"\]\(([^)#]+)", TEXT) if "://" not in link]

    assert [link for link in links if not (DOCS / link).exists()] == []
    assert {"page.png", "top.png", "../contrib/drom.rules.yml"} <= set(links)


def test_its_commands_and_options_are_there() -> None:
    """Each drom command it shows exists, with the options that it names."""
    commands = get_group(command_line()).commands
    named = set(re.findall(r"(?:`|^|\$ )drom ([a-z]+)", TEXT, re.MULTILINE))
    options = {name for command in commands.values() for parameter in command.params for name in parameter.opts}

    assert named <= commands.keys()
    assert set(re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*", TEXT)) <= options


def test_its_pictures_are_small() -> None:
    """A clone stays light."""
    assert all((DOCS / name).stat().st_size < 100_000 for name in ("page.png", "top.png"))
