# SPDX-License-Identifier: Apache-2.0
"""Selects events of a history, and formats them for reading. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from drom.agent.observe.log import logfmt, quoted
from drom.agent.text import WordError, iso, parse_duration

if TYPE_CHECKING:
    from datetime import tzinfo

_COLUMNS = ("time", "level", "event", "job", "old", "new")


def parse_since(text: str, now: datetime) -> str:
    """Return a time in the format of events, from ``10m`` (ago) or ``2026-11-21T19:50`` (local time without a zone).

    Raises `WordError`.
    """
    try:
        moment = now - timedelta(seconds=parse_duration(text))
    except WordError:
        try:
            moment = datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc)
        except (ValueError, OverflowError) as error:
            msg = f"{text[:40]!r} is not a time: write a span such as 10m or 2h, or a date such as 2026-11-21T19:50."
            raise WordError(msg) from error
    return iso(moment.timestamp(), "milliseconds")


def is_wanted(record: dict[str, Any], job: str | None, since: str) -> bool:
    """Return whether an event is about `job`, if one is given, and not older than `since`."""
    return record["time"] >= since and job in (None, record.get("job"))


def event_line(record: dict[str, Any], zone: tzinfo | None = None) -> str:
    """Return an event as a line: time (local, or of `zone`), name, job, its CPUs, then the other fields."""
    parts = [_clock(record["time"], zone), f"{_printable(record['event']):<16}"]
    if "job" in record:
        parts.append(f"{_printable(record['job']):<12}")
    if "old" in record and "new" in record:
        parts.append(f"{_printable(record['old'] or '-')} -> {_printable(record['new'] or '-')}")
    rest = {key: value for key, value in record.items() if key not in _COLUMNS}
    if (level := record.get("level")) in ("warning", "err"):
        rest = {"level": level, **rest}
    return "  ".join([*parts, logfmt(rest)]).rstrip()


def _printable(value: object) -> str:
    return text if (text := str(value)).isprintable() else quoted(text)


def _clock(time: str, zone: tzinfo | None) -> str:
    try:
        moment = datetime.fromisoformat(time.replace("Z", "+00:00")).astimezone(zone)
    except ValueError:
        return quoted(time)
    return moment.strftime("%Y-%m-%d %H:%M:%S")
