# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from drom.agent import text as words
from drom.agent.model import layouts
from drom.agent.model.layouts import ANY, Layout
from drom.agent.text import WordError

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86400), ("366d", 366 * 86400)]
)
def test_durations(text: str, seconds: int) -> None:
    """A number with or without a unit."""
    assert words.parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"), [("5", 5), ("2K", 2048), ("800M", 800 << 20), ("4G", 4 << 30), ("1T", 1 << 40)]
)
def test_sizes(text: str, size: int) -> None:
    """Powers of 1024."""
    assert words.parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("compact", Layout("compact")),
        ("spread!", Layout("spread", strict=True)),
        ("per-socket=12", Layout("per_socket", 12)),
        ("per-socket=32768", Layout("per_socket", 32768)),
        ("per-socket=2!", Layout("per_socket", 2, strict=True)),
    ],
)
def test_layouts(text: str, layout: Layout) -> None:
    """What `drom run` takes, and what is printed again."""
    assert layouts.parse_layout(text) == layout
    assert layouts.layout_name(layout) == text


def test_no_layout_has_no_name() -> None:
    """Who asked for none is told of none."""
    assert layouts.layout_name(ANY) == ""


@pytest.mark.parametrize(
    ("parse", "text", "what"),
    [
        *(
            (words.parse_duration, text, "a duration")
            for text in ("", "0", "-1", "10x", "1.5h", "367d", "\u0663", "9" * 99)
        ),
        *((words.parse_size, text, "a size") for text in ("", "0", "G", "3Q", "1.5G", "99999999T", "9" * 99)),
        *(
            (layouts.parse_layout, text, "a distribution")
            for text in (
                *(
                    "",
                    "!",
                    "tight",
                    "compact!!",
                    "default",
                    "per-socket",
                    "per-socket=0",
                    "per-socket=",
                    "per-socket=32769",
                ),
                *("per-socket=\u0661", "x" * 999),
            )
        ),
    ],
)
def test_what_is_none_is_one_sentence(parse: Callable[[str], object], text: str, what: str) -> None:
    """The sentence says what to write."""
    with pytest.raises(WordError, match=rf"^'.*' is not {what}.*: write .*\.$") as wrong:
        parse(text)

    assert len(str(wrong.value)) < 250


@pytest.mark.parametrize(
    ("seconds", "told", "short"),
    [
        (-1, "0.0 s", "0s"),
        (0.25, "0.2 s", "0s"),
        (42, "42 s", "42s"),
        (600, "10 min", "10m"),
        (7200, "2 h", "2h"),
        (86400 * 3, "3 days", "3d"),
    ],
)
def test_durations_are_told(seconds: float, told: str, short: str) -> None:
    """In the largest unit that makes a number of some size."""
    assert (words.duration(seconds), words.clock(seconds)) == (told.replace("120 min", "2 h"), short)


def test_names_are_harmless() -> None:
    """No character of a name breaks a line or a label."""
    assert words.clean_name(" a\nb\x1b[2J\ufffd ") == "a_b_[2J_"
    assert len(words.clean_name("\N{SNOWMAN}" * 99).encode()) == 63


def test_marks_cover_nothing_beside_them() -> None:
    """Two on a letter are shown, as languages have them; those without a letter, and more, are escaped."""
    for text in ("caf\u00e9", "cafe\u0301", "\u1ec7", "e\u0302\u0323", "\u4f5c\u696d", "\u0915\u0941\u0902"):
        assert words.escaped(text) == words.clean_name(text) == text
    assert words.escaped("a" + "\u0301" * 5 + "b") == "a\u0301\u0301" + r"\u0301" * 3 + "b"
    assert words.clean_name("\u0301" * 3 + "a") == "___a"
    assert words.escaped("a \u20dd\u200b\x1b[m") == r"a \u20dd\u200b\x1b[m"


def test_a_text_has_a_width() -> None:
    """Of wide characters it is double, and marks have none: so tables are straight."""
    assert [words.width_of(text) for text in ("ab", "e\u0301", "\u4f5c\u696d", "a\u4f5c")] == [2, 1, 4, 3]
    assert [words.cut_to("\u4f5ce\u0301bc", width) for width in (1, 2, 3, 4, 9)] == [
        "",
        "\u4f5c",
        "\u4f5ce\u0301",
        "\u4f5ce\u0301b",
        "\u4f5ce\u0301bc",
    ]


def test_a_text_that_is_cut_in_its_middle_shows_both_ends() -> None:
    """An ellipsis stands for what is left out, and the columns of wide characters and marks count."""
    assert [words.cut_middle("abcdefgh", width) for width in (8, 7, 6, 2, 1)] == [
        "abcdefgh",
        "abc\N{HORIZONTAL ELLIPSIS}fgh",
        "abc\N{HORIZONTAL ELLIPSIS}gh",
        "a\N{HORIZONTAL ELLIPSIS}",
        "\N{HORIZONTAL ELLIPSIS}",
    ]
    assert words.cut_middle("\u4f5c\u696d" * 3, 6) == "\u4f5c\N{HORIZONTAL ELLIPSIS}\u696d"
    assert words.cut_middle("abcdefe\u0301", 4) == "ab\N{HORIZONTAL ELLIPSIS}e\u0301"
    assert words.cut_middle("abcd\u4f5c\u0301", 4) == "ab\N{HORIZONTAL ELLIPSIS}"
