# SPDX-License-Identifier: Apache-2.0
"""The files of pictures."""

from __future__ import annotations


def files_of(*names: str) -> set[str]:
    """Return the files of pictures: each with its SVG and its numbers."""
    return {f"{name}.{kind}" for name in names for kind in ("png", "svg", "csv")}
