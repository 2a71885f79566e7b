# SPDX-License-Identifier: Apache-2.0
"""Jobs that are over as `drom history` prints them: moments, columns, totals. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.agent.text import WordError, clock, cut_middle, escaped, in_words, iso, parse_duration, table
from drom.scheduler.live.cli.tables import label, moment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Row = dict[str, Any]


def parse_moment(text: str, now: float) -> float:
    """Return the unix seconds of ``2h`` (before `now`), ``today``, ``2026-11-20`` or an ISO time. Raises `WordError`.

    Days and times without an offset are those of the local time zone.
    """
    try:
        if re.fullmatch("[0-9]+[smhd]", text):
            return now - parse_duration(text)
        if text == "today":
            text = datetime.fromtimestamp(now).astimezone().date().isoformat()
        return datetime.fromisoformat(text.removesuffix("Z") + "+00:00" * text.endswith("Z")).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        msg = f"{text[:40]!r} is not a time: write for example 2h, today, 2026-11-20 or 2026-11-20T14:30."
        raise WordError(msg) from error


def wait_of(row: Row) -> float | None:
    """Return the seconds for which a job waited until it started; None if it never did."""
    return None if row["started"] is None else max(0.0, row["started"] - row["submitted"])


def time_of(row: Row) -> float | None:
    """Return the seconds for which a job has run; None if it never started. The row has the time in `now`."""
    return None if row["started"] is None else (row["ended"] or row["now"]) - row["started"]


class Column(NamedTuple):
    """A column of the list: its value in a job's row, and how a table shows that at the time `now`."""

    value: Callable[[Row], Any]
    shown: Callable[[Any, float], str]


def _plain(value: object, _: float) -> str:
    return escaped(str(value))


def _name(value: str, _: float) -> str:
    return cut_middle(escaped(value), 24)


def _clock(value: float, _: float) -> str:
    return clock(value)


def _hours(value: float, _: float) -> str:
    return f"{value:.2f}"


def _field(name: str, shown: Callable[[Any, float], str] = _plain) -> Column:
    return Column(lambda row: row[name], shown)


COLUMNS = {
    "job": Column(label, _plain),
    "name": _field("name", _name),
    "user": _field("user"),
    "state": _field("state"),
    "class": _field("class"),
    "partition": Column(lambda row: row.get("partition", ""), _plain),
    "submitted": _field("submitted", moment),
    "started": _field("started", moment),
    "ended": _field("ended", moment),
    "wait": Column(wait_of, _clock),
    "time": Column(time_of, _clock),
    "limit": _field("limit", _clock),
    "nodes": _field("nodes"),
    "where": Column(lambda row: " ".join(row["shares"]), _plain),
    "core_hours": Column(lambda row: round(row["core_seconds"] / 3600, 6), _hours),
    "cpu_seconds": _field("cpu_seconds", _clock),
    "max_rss": _field("max_rss", lambda value, _: in_words(value)),
    "attempt": _field("attempt"),
    "status": _field("status"),
    "paid": Column(lambda row: row.get("paid"), _plain),
    "reason": _field("reason"),
}
USUAL = ("job", "name", "user", "state", "ended", "wait", "time", "nodes", "core_hours", "reason")
MOMENTS = ("submitted", "started", "ended")


def parse_columns(text: str) -> tuple[str, ...]:
    """Return the columns in ``job,user,time``. Raises `WordError`."""
    names = tuple(text.lower().split(","))
    for name in names:
        if name not in COLUMNS:
            msg = f"{name[:40]!r} is not a column: choose from {', '.join(COLUMNS)}."
            raise WordError(msg)
    return names


def lines(rows: Iterable[Row], names: Sequence[str], now: float) -> list[str]:
    """Return a table of jobs."""
    cells = [[_cell(COLUMNS[name], row | {"now": now}, now) for name in names] for row in rows]
    return table([name.upper().replace("_", " ") for name in names], cells)


def _cell(column: Column, row: Row, now: float) -> str:
    value = column.value(row)
    return "-" if value in (None, "") else column.shown(value, now)


def records(rows: Iterable[Row], names: Sequence[str], now: float) -> list[list[object]]:
    """Return the values of jobs for CSV, under their names: durations in seconds, moments as ISO 8601 in UTC."""
    found: list[list[object]] = [list(names)]
    for row in rows:
        values = {name: COLUMNS[name].value(row | {"now": now}) for name in names}
        dated = {name: iso(values[name]) for name in MOMENTS if values.get(name) is not None}
        found.append(list((values | dated).values()))
    return found


BY: dict[str, Callable[[Row, float], str]] = {
    "user": lambda row, _: str(row["user"]),
    "state": lambda row, _: str(row["state"]),
    "day": lambda row, now: datetime.fromtimestamp(row["ended"] or now).astimezone().date().isoformat(),
}
"""What totals may be by: the key of a job's row."""


def parse_by(text: str) -> str:
    """Return what totals are by. Raises `WordError`."""
    if text not in BY:
        msg = f"{text[:40]!r} has no totals: choose {', '.join(BY)}."
        raise WordError(msg)
    return text


def totals(rows: Iterable[Row], by: str, now: float) -> list[Row]:
    """Return the number of jobs, their core-hours and their mean wait in seconds, for each value of `by`, in order."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[BY[by](row, now)].append(row)
    return [{by: key, **_sums(groups[key])} for key in sorted(groups)]


def _sums(rows: Sequence[Row]) -> Row:
    waits = [wait for row in rows if (wait := wait_of(row)) is not None]
    return {
        "jobs": len(rows),
        "core_hours": round(sum(row["core_seconds"] for row in rows) / 3600, 6),
        "mean_wait": round(sum(waits) / len(waits), 3) if waits else None,
    }


def records_of_totals(sums: Iterable[Row], by: str) -> list[list[object]]:
    """Return totals for CSV, under their names."""
    return [[by, "jobs", "core_hours", "mean_wait"], *(list(one.values()) for one in sums)]


def total_lines(rows: Sequence[Row], by: str, now: float) -> list[str]:
    """Return a table of totals, with those of all jobs at its end."""
    sums = [*totals(rows, by, now), {by: "all", **_sums(rows)}]
    waits = ["-" if one["mean_wait"] is None else clock(one["mean_wait"]) for one in sums]
    cells = [
        [escaped(one[by]), str(one["jobs"]), f"{one['core_hours']:.2f}", wait]
        for one, wait in zip(sums, waits, strict=True)
    ]
    return table([by.upper(), "JOBS", "CORE HOURS", "MEAN WAIT"], cells, "<>>>")
