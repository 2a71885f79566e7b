# SPDX-License-Identifier: Apache-2.0
"""docs/guarantees.md names tests: they exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")


def test_every_test_that_is_named_exists() -> None:
    """A file and, in it, a function or a class of that name; a state machine is a name."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 20
    for file, name in named:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^(?:def {name}\(|class {name}\b|{name} = )", text, re.MULTILINE), f"{file} has no {name}"


def test_every_guarantee_is_shown() -> None:
    """No line of the two tables is without a test, or a column empty."""
    columns = {"At every instant": 4, "After a fault": 5}
    for heading, count in columns.items():
        section = re.search(rf"^## {heading}\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
        assert section
        rows = [line.strip("|").split("|") for line in section[1].splitlines() if line.startswith("|")][2:]
        assert len(rows) >= 10
        for row in rows:
            assert len(row) == count, row
            assert all(cell.strip() for cell in row)
            assert "::" in row[-1]
