# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from agent.history import History
from agent.log import Log


def written(event: str, **fields: object) -> str:
    """Return what one event looks like, without its time."""
    stream = io.StringIO()
    Log(stream)(event, **fields)
    time, _, rest = stream.getvalue().partition(" ")
    assert re.fullmatch(r"time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    return rest


def test_an_event_is_one_line_of_pairs() -> None:
    """Time comes first, in UTC with milliseconds, then the event, then the fields in order."""
    assert written("granted", job="a", pid=7, cpus="0-3") == "event=granted job=a pid=7 cpus=0-3\n"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("", '""'),
        ("two words", '"two words"'),
        ('a "b"', r'"a \"b\""'),
        ("a=b", '"a=b"'),
        ("a\\b c", r'"a\\b c"'),
        ("line\nbreak", r'"line\nbreak"'),
        (None, "None"),
    ],
)
def test_odd_values_are_quoted_and_stay_on_the_line(value: object, shown: str) -> None:
    """Blanks, quotes, equals signs and line breaks never look like another field or event."""
    assert written("x", value=value) == f"event=x value={shown}\n"


def test_as_json_numbers_stay_numbers() -> None:
    """One value per line; what JSON has no word for is text."""
    stream = io.StringIO()
    Log(stream, form="json")("granted", job='a "b"\n', pid=7, share=0.5, last=True, file=Path("/f"))

    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert list(record) == ["time", "event", "job", "pid", "share", "last", "file"]
    assert list(record.values())[1:] == ["granted", 'a "b"\n', 7, 0.5, True, "/f"]


def test_what_cannot_be_kept_is_said_once(tmp_path: Path) -> None:
    """The history gets the same as JSON; when it cannot, one line more says so."""
    stream = io.StringIO()
    log = Log(stream)
    log.history = History(tmp_path / "gone" / "events", 1 << 16)
    log("a")
    log("b")

    assert [line.split(" ", 2)[1] for line in stream.getvalue().splitlines()] == [
        "event=a",
        "event=warning",
        "event=b",
    ]
    assert log.history.lost == 2


@pytest.mark.parametrize("character", ["\x1b", "\r", "\0", "\u2028"])
def test_no_character_moves_the_cursor(character: str) -> None:
    """What a program calls itself cannot clear the screen of who reads the log."""
    assert character not in written("x", job=f"a{character}b")


def test_a_quiet_log_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Quiet is silent."""
    Log(quiet=True)("x")

    assert capsys.readouterr() == ("", "")


def test_the_log_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is for answers."""
    Log()("x")

    out, err = capsys.readouterr()
    assert (out, err.endswith(" event=x\n")) == ("", True)
