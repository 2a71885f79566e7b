# SPDX-License-Identifier: Apache-2.0
"""The pages of the documentation, as files of the repository and as the source of the site that `make docs` builds."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

INDEX = ROOT / "docs" / "index.md"
BESIDE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples/README.md")
PAGES = sorted({*ROOT.glob("docs/**/*.md"), *(ROOT / name for name in BESIDE)})
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
WIDTH = 120
LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")


@cache
def prose(page: Path) -> list[tuple[int, str]]:
    """Return the lines of a page outside its code blocks, each with its number."""
    lines, fence = [], False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if line.lstrip().startswith("```"):
            fence = not fence
        elif not fence:
            lines.append((number, line))
    return lines


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site name them."""
    headings = [line.lstrip("#") for _, line in prose(page) if re.match(r"#{1,6} ", line)]
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[tuple[int, Path, str]]:
    """Yield the links of a page to files: number of the line, the file, and the anchor or nothing."""
    for number, line in prose(page):
        for link in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if not re.match(r"[a-z]+:", link):
                name, _, anchor = link.partition("#")
                yield number, Path(os.path.normpath(page.parent / name)) if name else page, anchor


def test_the_index_leads_to_every_page() -> None:
    """docs/index.md links to each page of the documentation, to the README and to the pages beside it."""
    assert {INDEX, *(target for _, target, _ in links(INDEX))} >= set(PAGES)


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files_and_headings(name: str) -> None:
    """Each relative link of a page names a file that exists and, after #, a heading of that page."""
    page = ROOT / name
    broken = [
        f"{name}:{number}: {target.relative_to(ROOT)}{'#' * bool(anchor)}{anchor}"
        for number, target, anchor in links(page)
        if not target.is_file() or (anchor and anchor not in anchors(target))
    ]

    assert broken == []


@pytest.mark.parametrize("name", NAMES)
def test_lines_are_short(name: str) -> None:
    """Lines of a page have at most 120 columns, but for code, tables, pictures and a link that is longer alone."""
    long = [
        f"{name}:{number}: {len(line)} columns"
        for number, line in prose(ROOT / name)
        if len(line) > WIDTH and not line.startswith(("|", "![")) and " " in line.strip("*- ")
    ]

    assert long == []


@pytest.mark.parametrize("name", NAMES)
def test_fences_are_closed(name: str) -> None:
    """The code blocks of a page end: none swallows the text behind it."""
    fences = [line for line in (ROOT / name).read_text(encoding="utf-8").splitlines() if line.startswith("```")]

    assert len(fences) % 2 == 0
    assert all(fence == "```" for fence in fences[1::2])


def test_anchors_are_named_as_the_site_names_them() -> None:
    """Headings with code, punctuation and capitals have the anchors to which links of other pages lead."""
    assert "what-an-agents-death-leaves" in anchors(ROOT / "docs" / "architecture.md")
    assert "c-dromh" in anchors(ROOT / "docs" / "api.md")
