# SPDX-License-Identifier: Apache-2.0
"""docs/guarantees.md and docs/programs.md name the tests of what they say: these exist."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT

NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def page(name: str) -> str:
    """Return a page of the documentation."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def section(name: str, heading: str) -> str:
    """Return the text under a heading, up to the next one."""
    found = re.search(rf"^## {heading}\n(.*?)^## ", page(name), re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


@pytest.mark.parametrize("name", ["guarantees.md", "programs.md"])
def test_every_test_that_is_named_exists(name: str) -> None:
    """A file and, in it, a function or a class of that name; a state machine is a name."""
    named = NAMED.findall(page(name))
    assert len(named) > 10
    for file, what in named:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^(?:def {what}\(|class {what}\b|{what} = )", text, re.MULTILINE), f"{file} has no {what}"


@pytest.mark.parametrize(
    ("heading", "columns", "least"),
    [("At every instant", 4, 10), ("After a fault", 5, 10), ("Several schedulers", 4, 4), ("Bounds", 3, 30)],
)
def test_every_guarantee_is_shown(heading: str, columns: int, least: int) -> None:
    """No line of the tables is without a test, or a column empty."""
    lines = [line for line in section("guarantees.md", heading).splitlines() if line.startswith("|")]
    rows = [line.strip("|").split("|") for line in lines if not re.match(r"\|[-|]+$|\| (what|fault|request) ", line)]
    assert len(rows) >= least
    for row in rows:
        assert len(row) == columns, row
        assert all(cell.strip() for cell in row), row
        assert NAMED.search(row[-1]), row


@pytest.mark.parametrize(
    ("name", "heading"),
    [
        ("guarantees.md", "What is not guaranteed"),
        ("programs.md", "Programs that cannot follow"),
        ("programs.md", "How many processors a program finds"),
    ],
)
def test_every_claim_is_shown(name: str, heading: str) -> None:
    """Each item of these lists names a test."""
    items = re.split(r"^\* ", section(name, heading), flags=re.MULTILINE)[1:]
    assert len(items) >= 5
    for item in items:
        assert NAMED.search(item), item
