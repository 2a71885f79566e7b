# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from drom.agent.demo import timeline_png
from drom.agent.demo.timeline_png import draw_png
from drom.agent.observe.timeline import PictureError, TimelineChange
from matplotlib import image

from tests.support.timelines import FOUR_CPUS, GUEST

if TYPE_CHECKING:
    from pathlib import Path


class TestPng:
    """The picture as an image file."""

    @pytest.mark.parametrize(
        ("cpu", "time_s", "colour"),
        [
            (0, 1.3, "#0072B2"),
            (0, 9.7, "#0072B2"),
            (2, 2.3, "#0072B2"),
            (3, 7.7, "#E69F00"),
            (2, 5.3, "#E69F00"),
            (2, 9.3, "#0072B2"),
            (1, 11.3, "#f2f2f2"),
            (3, 11.3, "#f2f2f2"),
        ],
    )
    def test_has_the_colour_of_the_job_at_its_place(self, tmp_path: Path, cpu: int, time_s: float, colour: str) -> None:
        """A pixel inside a CPU's row has the colour of who held it then, or of idleness."""
        path = tmp_path / "node.png"
        draw_png(path, GUEST, FOUR_CPUS, 12)
        figure, middles = timeline_png._figure(GUEST, FOUR_CPUS, 12, "Who held which CPU")
        figure.canvas.draw()
        x, y = figure.axes[0].transData.transform((time_s, middles[cpu] + 0.35))
        pixels = image.imread(path)

        red, green, blue = (round(255 * float(part)) for part in pixels[pixels.shape[0] - int(y) - 1, int(x)][:3])
        assert colour.lower() == f"#{red:02x}{green:02x}{blue:02x}"

    def test_is_a_png_of_the_stated_size(self, tmp_path: Path) -> None:
        """The file is a PNG image, 1500 pixels wide."""
        path = tmp_path / "node.png"
        draw_png(str(path), GUEST, FOUR_CPUS, 12, title="A guest")

        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert image.imread(path).shape[1] == 1500

    def test_names_jobs_in_their_blocks_and_hatches_what_moves(self) -> None:
        """Names stand inside the blocks; the legend explains the hatching alone."""
        figure, _ = timeline_png._figure(GUEST, FOUR_CPUS, 12, "A guest")
        upper, lower = figure.axes
        legend = upper.get_legend()

        assert sorted(text.get_text() for text in upper.texts if text.get_zorder() == 5) == [
            "jacobi",
            "jacobi",
            "primes",
        ]
        assert legend is not None
        assert [text.get_text() for text in legend.get_texts()] == ["asked for, not yet in force"]
        assert [text.get_text() for text in lower.texts] == ["1 s", "500 ms"]
        assert upper.get_title(loc="left") == "A guest"

    def test_a_name_without_room_goes_to_the_legend(self) -> None:
        """A job whose blocks are too small for its name is explained beside the picture."""
        changes = [
            TimelineChange(1, "a-very-long-name-for-a-job", 1, 1, "start"),
            TimelineChange(1.2, "a-very-long-name-for-a-job", 0, None, "end"),
        ]
        figure, _ = timeline_png._figure(changes, FOUR_CPUS, 12, "")
        legend = figure.axes[0].get_legend()

        assert legend is not None
        assert [text.get_text() for text in legend.get_texts()] == ["a-very-long-name-for-a-job"]

    def test_says_what_was_never_in_force(self) -> None:
        """A change without an acknowledgement is marked as such."""
        figure, _ = timeline_png._figure([TimelineChange(1, "a", 1, None, "start")], FOUR_CPUS, 12, "")

        assert [text.get_text() for text in figure.axes[1].texts] == ["not yet"]

    def test_draws_an_idle_machine(self, tmp_path: Path) -> None:
        """No change at all is a picture too."""
        draw_png(tmp_path / "idle.png", [], FOUR_CPUS, 12)

        assert (tmp_path / "idle.png").stat().st_size > 1000

    def test_without_matplotlib_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The extra is named when it is missing."""
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

        with pytest.raises(PictureError, match=r"^Drawing a PNG needs matplotlib: run pip install 'drom\[plots\]'\.$"):
            draw_png(tmp_path / "node.png", GUEST, FOUR_CPUS, 12)

    def test_refuses_a_picture_without_time(self, tmp_path: Path) -> None:
        """The error is a sentence, and no file is left."""
        with pytest.raises(PictureError, match=r"^There is nothing to draw: the picture must end after 0 seconds\.$"):
            draw_png(tmp_path / "node.png", [], FOUR_CPUS, 0)
        assert list(tmp_path.iterdir()) == []
