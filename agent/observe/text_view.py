# SPDX-License-Identifier: Apache-2.0
"""Tasks, the changes that an order would cause, and events of a history as lines of text. Pure."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from drom.agent.observe.log import logfmt, quoted
from drom.agent.text import (
    WordError,
    clock,
    cut_middle,
    cut_to,
    in_words,
    iso,
    left_alone,
    parse_duration,
    table,
    width_of,
)

from dromlib.cpulist import parse_cpulist

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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


NARROWEST = 6
"""Minimum width of a cell, in characters."""
ARROW = " -> "
"""Separates the CPUs in force from those to come."""
NAMES = 24
"""Characters that names of jobs, cut in their middle, keep before other columns are left out."""
CUT = (("OWNED", "LENT"), ("USER", "HELD AT"), ("JOB",), ("CPUS",))
"""Columns of tasks that are cut if there is no room for all, in this order; then all others."""
LEFT_OUT = ("OWNED", "LENT", "REASON", "LAYOUT", "MEMORY", "CLASS", "MODE", "HELD AT", "USER")
"""Columns of tasks that are left out, in this order, if there is no room for them even when they are cut."""
ENOUGH = 24
"""Characters of CPUs that are shown beside other columns; longer lists continue in further lines."""


def fitted(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None = None,
    *,
    cut: Sequence[Collection[str]] = (),
    least: Mapping[str, int] | None = None,
    wrapped: str | None = None,
    cutters: Mapping[str, Callable[[str, int], str]] | None = None,
) -> list[str]:
    """Return the lines of a table that are at most `width` characters long.

    If lines would be longer, columns are cut, always the widest, down to their width in `least`: those in the first
    entry of `cut` as long as that helps, then those in the next one, and at last all, to `NARROWEST`. A cut cell ends
    in an ellipsis, or is what `cutters` return for it; cells of the column `wrapped` continue in further lines instead.
    """
    if not width:
        return table(headings, rows)
    least, cutters = least or {}, cutters or {}
    whole = [max(map(width_of, cells)) for cells in zip(headings, *rows, strict=True)]
    widths = [min(n, ENOUGH) if name == wrapped else n for name, n in zip(headings, whole, strict=True)]
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    for names in cut:
        some = {i: least.get(name, NARROWEST) for i, name in enumerate(headings) if name in names}
        excess = _narrow(widths, some, excess)
    excess = _narrow(widths, dict.fromkeys(range(len(headings)), NARROWEST), excess)
    lines: list[tuple[str, ...]] = []
    for line in (headings, *rows):
        cells = [
            _wrapped(cell, n - min(excess, 0)) if name == wrapped else [cutters.get(name, _cut)(cell, n)]
            for name, cell, n in zip(headings, line, widths, strict=True)
        ]
        lines += zip_longest(*cells, fillvalue="")
    return table(lines[0], lines[1:])


def _narrow(widths: list[int], least: Mapping[int, int], excess: int) -> int:
    """Narrow columns, always the widest, none below its minimum; return by how much all are still too wide."""
    while excess > 0 and (able := [i for i, n in least.items() if widths[i] > n]):
        widths[max(able, key=lambda i: widths[i])] -= 1
        excess -= 1
    return excess


def _cut(cell: str, width: int) -> str:
    return cell if width_of(cell) <= width else cut_to(cell, width - 1) + "\N{HORIZONTAL ELLIPSIS}"


def cut_cpus(cell: str, width: int) -> str:
    """Return the CPUs in force, and those to come, in at most `width` characters, with the number of those cut."""
    if len(cell) <= width:
        return cell
    now, arrow, then = cell.partition(ARROW)
    if not arrow:
        return _first_cpus(cell, width)
    room = width - len(ARROW)
    first = _first_cpus(now, min(len(now), max(room - len(then), room // 2)))
    return f"{first}{ARROW}{_first_cpus(then, room - len(first))}"


def _first_cpus(cpus: str, width: int) -> str:
    """Return as many entries of a list of CPUs as fit, and the number of CPUs in the others."""
    entries = cpus.split(",")
    for shown in range(len(entries) - 1, 0, -1):
        more = parse_cpulist(",".join(entries[shown:])).bit_count()
        if len(text := f"{','.join(entries[:shown])} +{more} more") <= width:
            return text
    return _cut(cpus, width)


def _wrapped(cell: str, width: int) -> list[str]:
    """Return a cell in lines of at most `width` characters, broken after commas and blanks where possible."""
    lines = [""]
    for word in re.split("(?<=[, ])", cell):
        if lines[-1] and len(lines[-1]) + len(word.rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return [line[at : at + width].rstrip() for line in lines for at in range(0, max(len(line.rstrip()), 1), width)]


def task_table(
    rows: Sequence[dict[str, Any]], user: Callable[[int], str], width: int | None = None, *, wraps: bool = False
) -> list[str]:
    """Return the table of ``drom ps`` for the tasks of its answer; `user` names a uid.

    `width` is as in `fitted`. Names are cut in their middle. CPUs are cut last, and a cut list says how many more there
    are; with `wraps` a task may have several lines, and CPUs are never cut.

    Columns that are empty for all tasks are left out, except the standard ones.
    """
    columns: list[tuple[str, bool, Callable[[dict[str, Any]], str]]] = [
        ("JOB", True, lambda task: str(task["job"])),
        ("TASK", any(row["task"] for row in rows), lambda task: str(task["task"])),
        ("USER", True, lambda task: user(task["uid"])),
        ("PID", True, lambda task: str(task["pid"])),
        ("CLASS", True, lambda task: str(task["class"])),
        ("STATE", True, lambda task: str(task["state"])),
        ("NCPUS", True, _count),
        ("CPUS", True, _cpus),
        ("OWNED", True, lambda task: str(task["owned"])),
        ("LENT", False, lambda task: str(task["lent"])),
        ("MODE", False, _mode),
        ("REASON", True, lambda task: str(task["reason"])),
        ("LAYOUT", False, lambda task: str(task["layout"])),
        ("HELD AT", False, _held),
        ("MEMORY", False, lambda task: in_words(task["memory"]) if task["memory"] else ""),
    ]
    shown = [(name, [cell(row) for row in rows], always) for name, always, cell in columns]
    cells = {
        name: [cell or "-" for cell in found]
        for name, found, always in shown
        if always or (name != "TASK" and any(found))
    }
    least = _leave_out(cells, width, wraps=wraps) if width else {}
    return fitted(
        list(cells),
        list(zip(*cells.values(), strict=True)),
        width,
        cut=CUT,
        least=least,
        wrapped="CPUS" if wraps else None,
        cutters={"JOB": cut_middle, "CPUS": cut_cpus},
    )


def _leave_out(columns: dict[str, list[str]], width: int, *, wraps: bool) -> dict[str, int]:
    """Remove columns until the others fit, cut as far as permitted, and all CPUs as well if that can succeed.

    Return the minimum widths of the columns.
    """
    least = {name: max(map(width_of, [name, *cells])) for name, cells in columns.items()}
    for name in set().union(*CUT) & least.keys():
        least[name] = min(least[name], {"JOB": NAMES, "CPUS": ENOUGH}.get(name, NARROWEST))
    needed = least | {"CPUS": max(map(len, ["CPUS", *columns["CPUS"]]))}
    if wraps or not _fits(needed, needed.keys() - LEFT_OUT, width):
        needed = least
    for name in LEFT_OUT:
        if _fits(needed, columns.keys(), width):
            break
        columns.pop(name, None)
    return least


def _fits(widths: Mapping[str, int], columns: Collection[str], width: int) -> bool:
    return sum(widths[name] for name in columns) + 2 * (len(columns) - 1) <= width


def _count(task: dict[str, Any]) -> str:
    """Return the number of CPUs in force, and that to come."""
    now, then = (parse_cpulist(task[name]).bit_count() for name in ("applied", "target"))
    return str(now) if now == then else f"{now}{ARROW}{then}"


def _cpus(task: dict[str, Any]) -> str:
    """Return the CPUs in force, and those to come."""
    now, then = task["applied"] or "-", task["target"] or "-"
    return str(now) if now == then else f"{now}{ARROW}{then}"


def _mode(task: dict[str, Any]) -> str:
    """Return what applies grants: a runtime's name, or bind-only or unmanaged; empty for the program itself."""
    if not task["applied"]:
        return ""
    return str(task["points"] if task["mode"] == "cooperative" else task["mode"])


def _held(task: dict[str, Any]) -> str:
    """Return what an order has fixed: exact CPUs, or the number of CPUs of the job and for how long."""
    if task["pin"]:
        return f"CPUs {task['pin']}"
    if task["hold"] is None:
        return ""
    return str(task["hold"]) + ("" if task["left"] is None else f" for {clock(task['left'])}")


def node_notes(answer: dict[str, Any]) -> Iterator[str]:
    """Yield further notes on a node from the answer to `ps`."""
    if answer["observe"]:
        yield "This agent only observes: no mask is changed."
    avoided, unavailable, foreign = (
        parse_cpulist(answer.get(name, "")) for name in ("avoided", "unavailable", "foreign")
    )
    yield from left_alone(avoided & ~foreign, unavailable, foreign)
    if answer.get("frozen_since"):
        yield f"Frozen since {answer['frozen_since']}: nothing changes until the freeze file is removed."


def changes(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the table of the changes that an order would cause."""
    if not rows:
        return ["Nothing would change."]
    keys = ("job", "task", "pid", "action", "from", "to", "why")
    cells = [[str(row[key]) or "-" for key in keys] for row in rows]
    return table(["JOB", "TASK", "PID", "CHANGE", "FROM", "TO", "WHY"], cells)
