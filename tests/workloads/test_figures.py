# SPDX-License-Identifier: Apache-2.0
"""Saving pictures."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from drom.workloads.figures import blank, name_axes, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

pytest.importorskip("matplotlib", reason="needs matplotlib")


def picture() -> Figure:
    """Return a picture of four panels."""
    figure = blank(9, 6, "Jobs")
    for axes in figure.subplots(2, 2).flat:
        axes.plot([0, 1000], [0, 10**5])
        name_axes(axes, "a panel", "time, h", "jobs")
    return figure


def places(figure: Figure) -> list[tuple[float, ...]]:
    """Return where the panels of a picture are."""
    return [axes.get_position().bounds for axes in figure.axes]


def test_a_picture_has_the_layout_that_matplotlib_gives_it() -> None:
    """A saved picture is, to the byte, what matplotlib writes of it."""
    ours, theirs = io.BytesIO(), io.BytesIO()
    save(picture(), ours, "png")
    picture().savefig(theirs, format="png")

    assert ours.getvalue() == theirs.getvalue()


def test_all_formats_of_a_picture_have_one_layout() -> None:
    """The panels stay where they are when a picture is saved in another format."""
    figure = picture()
    before = places(figure)
    save(figure, io.BytesIO(), "png")
    first = places(figure)
    save(figure, io.BytesIO(), "svg")

    assert before != first
    assert places(figure) == first
