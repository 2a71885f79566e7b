# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest
from drom.agent.observe.cpu_history import (
    COLUMNS,
    MOST_JOBS,
    OTHERS,
    STEP,
    CpuHistory,
    HourRecorder,
    history_from_events,
)
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Sequence

Event = tuple[float, int, str, int]
EVENTS = st.lists(
    st.tuples(st.floats(0, 100), st.integers(0, 3), st.sampled_from(["a", "b", "c"]), st.integers(0, 4)),
    max_size=30,
)


def told(events: Sequence[Event], end: float) -> CpuHistory:
    """Return the history after events: when, slot, job, CPUs."""
    hour = HourRecorder(0.0)
    for at, slot, job, cpus in events:
        hour.has(slot, job, cpus, at)
    return hour.look(end)


def test_columns_are_means_over_time() -> None:
    """A job with four CPUs for half of a step had two; tasks of a job count together; who has gone is not there."""
    events = [(0.0, 0, "a", 2), (5.0, 1, "a", 4), (10.0, 0, "a", 0), (12.5, 1, "a", 0), (12.5, 2, "b", 1)]

    assert told(events, 25.0) == CpuHistory([{"a": 4.0}, {"a": 1.0, "b": 0.75}, {"b": 1.0}], 5.0)


def test_an_hour_without_a_change_is_an_hour() -> None:
    """However long nothing happens or nobody looks, there are columns for an hour, and they are alike."""
    history = told([(3.0, 0, "a", 2)], 100_003.0)

    assert len(history.columns) == COLUMNS
    assert history.columns == [{"a": 2.0}] * COLUMNS
    assert len({id(column) for column in history.columns}) < 4
    assert history.last == pytest.approx(3.0)


@given(EVENTS)
def test_no_time_is_lost(events: list[Event]) -> None:
    """The CPU seconds of all columns are those of the events, for each job."""
    events = sorted(events)
    wanted: dict[str, float] = {}
    slots: dict[int, tuple[str, int]] = {}
    before = 0.0
    for at, slot, job, cpus in [*events, (123.0, 9, "", 0)]:
        for name, number in slots.values():
            wanted[name] = wanted.get(name, 0.0) + number * (at - before)
        slots[slot], before = (job, cpus), at
    columns, last = told(events, 123.0)

    found: dict[str, float] = {}
    for number, column in enumerate(columns):
        for name, cpus_then in column.items():
            found[name] = found.get(name, 0.0) + cpus_then * (last if number == len(columns) - 1 else STEP)
    assert {name: pytest.approx(time) for name, time in wanted.items() if time > 1e-9} == {
        name: time for name, time in found.items() if time > 1e-9
    }


def test_many_jobs_are_taken_together() -> None:
    """The largest have their names, the others are one, and memory is bounded whatever happens."""
    hour = HourRecorder(0.0)
    for number in range(2000):
        hour.has(number, f"job{number}", 1 + (number < MOST_JOBS), 0.0)
    (column,) = hour.look(1.0).columns
    assert column == {**{f"job{n}": 2.0 for n in range(MOST_JOBS)}, OTHERS: 2000.0 - MOST_JOBS}

    for second in range(8000):
        hour.has(second % 2000, f"job{second}", 3, float(second))
    columns = hour.look(8001.0).columns
    assert len(columns) == COLUMNS
    assert max(map(len, columns)) == MOST_JOBS + 1
    assert sum(sys.getsizeof(column) for column in columns) < 1 << 20


def kept(at: str, event: str, job: str = "", new: str = "") -> dict[str, object]:
    """Return an event of a history; with a job it is a change."""
    change = {"job": job, "task": 0, "old": "", "new": new} if job else {}
    return {"time": f"2026-11-21T{at}.000Z", "event": event, **change}


def test_the_hour_before_is_made_of_events() -> None:
    """What a job had when the hour began counts; a stop lets all go, and so does an agent that adopts nobody."""
    end = datetime(2026, 11, 21, 20, 0, tzinfo=timezone.utc).timestamp()
    columns = history_from_events(
        [
            kept("17:00:00", "task_started", "old", "0-3"),
            kept("19:00:20", "stopped"),
            kept("19:59:00", "ready"),
            kept("19:59:05", "task_started", "a", "0-1"),
            kept("19:59:10", "adopted"),
            kept("19:59:10", "kept", "a", "0-1"),
            kept("19:59:10", "ready"),
            kept("19:59:30", "ready"),
            {"time": "soon", "event": "x", "old": 1, "new": 2},
            kept("19:59:40", "task_started", "b", "0"),
            kept("20:00:01", "task_started", "c", "0"),
        ],
        end,
    )

    assert len(columns) == COLUMNS - 1
    assert columns[:3] == [{"old": 4.0}, {}, {}]
    assert columns[-6:] == [{"a": 1.0}, {"a": 2.0}, {"a": 2.0}, {}, {"b": 1.0}, {"b": 1.0}]


def test_what_was_before_goes_before() -> None:
    """As far as there is room in an hour."""
    history = CpuHistory([{"a": 1.0}, {"a": 2.0}], 4.0)

    assert history.lasted == STEP + 4.0
    assert history.after([{"b": 1.0}]) == CpuHistory([{"b": 1.0}, {"a": 1.0}, {"a": 2.0}], 4.0)
    assert len(history.after([{}] * COLUMNS).columns) == COLUMNS
