# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re

import pytest
from drom.agent.observe.timeline import PictureError, Span, TimelineChange, draw_text, spans

from tests.support.timelines import FOUR_CPUS, GUEST


def of_cpu(changes: list[TimelineChange], cpu: int, end_s: float) -> list[tuple[str, float, float, bool]]:
    """Return what one CPU saw as (job, start, end, settled)."""
    return [(span.job, span.start_s, span.end_s, span.settled) for span in spans(changes, end_s) if span.cpu == cpu]


class TestSpans:
    """Who held each CPU, and when."""

    def test_keeps_a_cpu_with_its_job_until_the_shrink_is_applied(self) -> None:
        """A CPU that was asked back is held, unsettled, until the acknowledgement."""
        assert of_cpu(GUEST, 3, 12) == [
            ("jacobi", 0, 4, True),
            ("jacobi", 4, 5, False),
            ("primes", 5, 8, True),
            ("jacobi", 8, 8.5, False),
            ("jacobi", 8.5, 10, True),
        ]

    def test_leaves_a_kept_cpu_settled_through_a_change(self) -> None:
        """A CPU that both the old and the new grant hold never counts as moving."""
        assert of_cpu(GUEST, 0, 12) == [("jacobi", 0, 10, True)]

    def test_never_acknowledged_means_held_to_the_end(self) -> None:
        """A job that never applies a shrink holds the CPU to the end of the picture."""
        changes = [TimelineChange(0, "a", 0b11, 0, "start"), TimelineChange(2, "a", 0b01, None, "shrink")]

        assert [Span(0, "a", 0, 6, True), Span(1, "a", 0, 2, True), Span(1, "a", 2, 6, False)] == spans(changes, 6)

    def test_a_superseded_grant_is_settled_by_the_later_acknowledgement(self) -> None:
        """One acknowledgement releases what all grants before it held."""
        changes = [
            TimelineChange(0, "a", 0b1, 0, "start"),
            TimelineChange(1, "a", 0b11, None, "grow"),
            TimelineChange(2, "a", 0b101, 3, "resize"),
        ]

        assert of_cpu(changes, 1, 5) == [("a", 1, 3, False)]
        assert of_cpu(changes, 2, 5) == [("a", 2, 3, False), ("a", 3, 5, True)]

    def test_an_end_needs_no_acknowledgement(self) -> None:
        """A job that has ended holds nothing."""
        assert [Span(0, "a", 1, 2, True)] == spans(
            [TimelineChange(2, "a", 0, None, "end"), TimelineChange(1, "a", 1, 1, "start")], 9
        )

    def test_what_comes_after_the_end_of_the_picture_is_left_out(self) -> None:
        """The picture stops at its end."""
        assert [Span(0, "a", 0, 3, True)] == spans(
            [TimelineChange(0, "a", 1, 0, "start"), TimelineChange(5, "a", 0, None, "end")], 3
        )


class TestText:
    """The picture for a terminal."""

    def test_draws_a_line_per_cpu_and_a_letter_per_job(self) -> None:
        """The picture reads without colour: sockets, CPUs, letters, time axis and legend."""
        expected = """\
socket 0  0 AAAAAAAAAAAAAAAAAAAA....
          1 AAAAAAAAAAAAAAAAAAAA....
socket 1  2 AAAAAAAAaaBBBBBBaAAA....
          3 AAAAAAAAaaBBBBBBaAAA....
            +---------+---------+---
            0 s       5         10
A jacobi   B primes   . idle
small: asked for, not yet in force
"""

        assert expected == draw_text(GUEST, FOUR_CPUS, 12, width=36)

    def test_fits_the_width(self) -> None:
        """No line is longer than the terminal, and the CPU lines fill it."""
        for width in (40, 80, 132):
            lines = draw_text(GUEST, FOUR_CPUS, 12, width=width).splitlines()

            assert {width} == {len(line) for line in lines[:4]}
            assert max(map(len, lines)) <= width

    def test_colours_each_run_of_letters_and_the_legend(self) -> None:
        """Colour adds escape sequences around runs of the same letter, and nothing else."""
        expected = (
            "socket 0  0 \x1b[48;5;25;38;5;231mAAAAA\x1b[0m\x1b[48;5;178;38;5;16mBBB\x1b[0m..\n"
            "            +---------\n"
            "            0 s\n"
            "\x1b[48;5;25;38;5;231mA\x1b[0m a   \x1b[48;5;178;38;5;16mB\x1b[0m b   . idle\n"
        )
        changes = [
            TimelineChange(0, "a", 1, 0, "start"),
            TimelineChange(0.5, "a", 0, None, "end"),
            TimelineChange(0.5, "b", 1, 0.5, "start"),
            TimelineChange(0.8, "b", 0, None, "end"),
        ]

        assert draw_text(changes, [(0, 1)], 1, width=22, colour=True) == expected
        assert draw_text(changes, [(0, 1)], 1, width=22) == re.sub(r"\x1b\[[0-9;]*m", "", expected)

    def test_moving_cpus_lose_their_background(self) -> None:
        """In colour, a small letter has its job's colour as ink."""
        changes = [TimelineChange(0, "a", 1, 5, "start")]

        assert "\x1b[38;5;25maaaaa\x1b[0m\x1b[48;5;25;38;5;231mAAAAA\x1b[0m\n" in draw_text(
            changes, [(0, 1)], 10, width=22, colour=True
        )

    def test_a_cell_shows_who_had_most_of_it(self) -> None:
        """A change too short for a column is not seen, and half a column is enough."""
        changes = [
            TimelineChange(0, "a", 1, 0, "start"),
            TimelineChange(5.5, "a", 0, None, "end"),
            TimelineChange(7, "b", 1, 7.1, "start"),
        ]

        assert "0 AAAAAA.BBB\n" in draw_text(changes, [(0, 1)], 10, width=22)

    def test_puts_hardware_threads_of_a_core_side_by_side(self) -> None:
        """Rows follow sockets and cores, whatever the order of the CPU numbers."""
        cores = [(1, 0b1010_0000), (0, 0b0101)]
        lines = draw_text([], cores, 1, width=30).splitlines()

        assert [line[:11] for line in lines[:4]] == ["socket 0  0", "          2", "socket 1  5", "          7"]

    def test_draws_cores_where_cpus_are_too_many(self) -> None:
        """Sixty-four CPUs on thirty-two cores are thirty-two lines."""
        cores = [(core // 16, 1 << core | 1 << core + 32) for core in range(32)]
        changes = [TimelineChange(0, "a", cores[1][1], 0, "start"), TimelineChange(0, "b", 1 << 2, 0, "start")]
        lines = draw_text(changes, cores, 1, width=30).splitlines()

        assert lines[0] == "socket 0   0,32 .............."
        assert lines[1] == "           1,33 AAAAAAAAAAAAAA"
        assert lines[2] == "           2,34 BBBBBBBBBBBBBB"
        assert lines[16] == "socket 1  16,48 .............."
        assert sum(line.endswith((".", "A", "B")) for line in lines[:-1]) == 32

    def test_groups_cores_of_a_socket_where_cores_are_too_many(self) -> None:
        """A line never mixes sockets, and shows a job that has most of its cores."""
        cores = [(core // 64, 1 << core) for core in range(128)]
        changes = [TimelineChange(0, "a", (1 << 64) - 1 ^ 0b11, 0, "start")]
        lines = draw_text(changes, cores, 1, width=40).splitlines()

        assert lines[0] == "socket 0      0-3 AAAAAAAAAAAAAAAAAAAAAA"
        assert lines[15] == "            60-63 AAAAAAAAAAAAAAAAAAAAAA"
        assert lines[16] == "socket 1    64-67 ......................"
        assert lines[31] == "          124-127 ......................"

    def test_wraps_a_long_legend(self) -> None:
        """Many jobs share the lines of the legend, each entry whole."""
        changes = [TimelineChange(number, f"job-{number}", 1, number, "start") for number in range(30)]
        lines = draw_text(changes, [(0, 1)], 30, width=40).splitlines()

        assert lines[3] == "A job-0   B job-1   C job-2   D job-3"
        assert "D job-29" in " ".join(lines[3:])
        assert max(map(len, lines)) <= 40

    def test_ignores_cpus_outside_the_machine(self) -> None:
        """What is held beyond the listed cores is not drawn."""
        assert "0 AAAAAAAAAA\n" in draw_text([TimelineChange(0, "a", 0b1001, 0, "start")], [(0, 1)], 1, width=22)


class TestNothingToDraw:
    """Pictures that cannot be drawn."""

    def test_refuses_a_machine_without_cpus(self) -> None:
        """The error is a sentence."""
        with pytest.raises(PictureError, match=r"^There is nothing to draw: the list of cores names no CPU\.$"):
            draw_text([], [], 1)

    def test_refuses_a_picture_without_time(self) -> None:
        """The error is a sentence."""
        with pytest.raises(PictureError, match=r"^There is nothing to draw: the picture must end after 0 seconds\.$"):
            draw_text([], FOUR_CPUS, 0)
