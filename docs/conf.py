# SPDX-License-Identifier: Apache-2.0
"""Configuration of the documentation as a site: `make docs`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "drom"
author = "The drom maintainers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
# The pages lie where readers of the repository look for them, so the repository is the source of the site.
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples/README.md", "docs/**.md"]
exclude_patterns = [".*", "build", "out", "dist", "tests"]
highlight_language = "none"  # blocks without a language are output, or pictures
html_theme = "alabaster"
html_theme_options = {
    "description": "A malleability runtime for HPC",
    "page_width": "1300px",
    "body_max_width": "none",
}
html_title = "drom"
html_show_sourcelink = False
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "description"
default_role = "code"  # docstrings quote names as Markdown does


def add_contents(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Append to the index page a hidden table of contents: all pages to which it links, in its order.

    Args:
        docname: Name of the page that Sphinx reads.
        source: The text of the page as a list of one string, which is changed in place.
    """
    if docname == root_doc:
        pages = re.findall(r"\]\(([^)#:]+)\.md\)", source[0])
        source[0] += "\n".join(["", "```{toctree}", ":hidden:", *pages, "```", ""])


def mark_code(_app: Sphinx, _what: str, _name: str, _thing: object, _options: object, lines: list[str]) -> None:
    """Mark indented paragraphs of a docstring as code: they are code in Markdown, and quotations to Sphinx.

    Args:
        lines: The lines of the docstring, which are changed in place. Sections such as `Args:` stay as they are.
    """
    marked: list[str] = []
    for line in lines:
        text_before = next((one for one in reversed(marked) if one.strip()), "")
        begins_code = line.startswith("    ") and marked and not marked[-1].strip() and not text_before.startswith(" ")
        if begins_code and not text_before.endswith("::"):
            marked += ["::", ""]
        marked.append(line)
    lines[:] = marked


def add_entrance(app: Sphinx, _error: Exception | None) -> None:
    """Write a first page that leads to the index of the documentation.

    Args:
        app: The run of Sphinx, which has ended.
    """
    entrance = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html"><title>drom</title>'
    (Path(app.outdir) / "index.html").write_text(f"{entrance}\n", encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect what is above with Sphinx.

    Args:
        app: The run of Sphinx.

    Returns:
        What Sphinx asks of an extension: that pages may be read in parallel.
    """
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", mark_code)
    app.connect("build-finished", add_entrance)
    return {"parallel_read_safe": True}
