# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from datetime import datetime, timezone

import pytest
from drom.agent.observe.text_view import event_line, is_wanted, parse_since
from drom.agent.text import WordError

NOW = datetime(2026, 11, 21, 20, 0, tzinfo=timezone.utc)
CHANGE = {"time": "2026-11-21T19:59:59.500Z", "event": "applied", "job": "a", "old": "0-3", "new": "", "pid": 7}


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90s", "2026-11-21T19:58:30.000Z"),
        ("1d", "2026-11-20T20:00:00.000Z"),
        ("2026-11-21T19:50Z", "2026-11-21T19:50:00.000Z"),
        ("2026-11-21 19:50:01.5+01:00", "2026-11-21T18:50:01.500Z"),
    ],
)
def test_since_is_ago_or_a_moment(text: str, moment: str) -> None:
    """Both are compared as events have their times."""
    assert parse_since(text, NOW) == moment


@pytest.mark.parametrize("text", ["soon", "", "0s", "2026-13-01", "0001-01-01T00:00+23:00"])
def test_what_is_no_time_is_told(text: str) -> None:
    """The sentence says what to write."""
    with pytest.raises(WordError, match=r"is not a time: write a span such as 10m or 2h, or a date such as "):
        parse_since(text, NOW)


def test_who_asks_for_a_job_sees_only_that() -> None:
    """Events of others, of nobody and from before are left out."""
    assert is_wanted(CHANGE, None, "")
    assert is_wanted(CHANGE, "a", "2026-11-21T19:59:59.500Z")
    assert not is_wanted(CHANGE, "b", "")
    assert not is_wanted(CHANGE, "a", "2026-11-21T19:59:59.501Z")
    assert not is_wanted({"time": "2026", "event": "ready"}, "a", "")


def test_an_event_is_a_line() -> None:
    """When, what, whose, from which CPUs to which, and all the rest."""
    assert event_line(CHANGE, timezone.utc) == "2026-11-21 19:59:59  applied           a             0-3 -> -  pid=7"
    ready = {"time": "2026-11-21T20:00:00.000Z", "event": "ready", "cores": 4}
    assert event_line(ready, timezone.utc) == "2026-11-21 20:00:00  ready             cores=4"
    levels = {level: event_line({**ready, "level": level}, timezone.utc) for level in ("info", "warning")}
    assert levels["info"] == event_line(ready, timezone.utc)
    assert levels["warning"] == "2026-11-21 20:00:00  ready             level=warning cores=4"


def test_nothing_in_a_history_moves_the_cursor() -> None:
    """A file that somebody else has written is shown without its control characters."""
    nasty = dict.fromkeys(("time", "event", "job", "old", "new", "more"), "\x1b[2J\n")

    assert event_line(nasty).isprintable()
