# SPDX-License-Identifier: Apache-2.0
"""Tables for people as lines of text: of tasks, and of what an order would change. Pure."""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from agent.text import clock, cut_to, in_words, left_alone, width_of
from dromlib.cpulist import parse_cpulist

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

NARROWEST = 6
"""Characters that a cell keeps however little room there is."""
CUT = (("JOB", "USER", "MODE", "REASON", "LAYOUT", "HELD AT"), ("OWNED", "LENT"), ("CLASS", "STATE", "MEMORY"))
"""Columns of tasks that are cut where there is no room for all, in this order; then CPUS, and at last all others."""
LEFT_OUT = ("OWNED", "REASON", "LAYOUT", "MEMORY", "CLASS", "LENT", "MODE", "HELD AT", "USER")
"""Columns of tasks that are left out, in this order, where there is no room for them even when they are cut."""
ENOUGH = 24
"""Characters of CPUs beside which other columns stay, where longer lists go on in further lines."""


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None = None,
    *,
    cut: Sequence[Collection[str]] = (),
    wrapped: str | None = None,
) -> list[str]:
    """Return rows under headings, columns as wide as needed, no trailing blanks.

    Where lines would be longer than `width`, columns are cut, always the widest: those in the first entry of `cut` as
    long as that helps, then those in the next one, and at last all. What is cut ends in an ellipsis, but that cells of
    the column `wrapped` go on in further lines.
    """
    lines = [headings, *rows]
    widths = [max(width_of(line[i]) for line in lines) for i in range(len(headings))]
    if width:
        whole = dict(zip(headings, widths, strict=True))
        widths = [min(n, ENOUGH) if name == wrapped else n for name, n in whole.items()]
        excess = sum(widths) + 2 * (len(widths) - 1) - width
        for names in [*cut, headings]:
            excess = _narrow(widths, [i for i, name in enumerate(headings) if name in names], excess)
        widths = [
            min(whole[name], n - min(excess, 0)) if name == wrapped else n
            for name, n in zip(whole, widths, strict=True)
        ]
    found = []
    for line in lines:
        cells = [
            _wrapped(cell, n) if name == wrapped else [_cut(cell, n)]
            for name, cell, n in zip(headings, line, widths, strict=True)
        ]
        found += [
            "  ".join(part + " " * (n - width_of(part)) for part, n in zip(parts, widths, strict=True)).rstrip()
            for parts in zip_longest(*cells, fillvalue="")
        ]
    return found


def _narrow(widths: list[int], some: Sequence[int], excess: int) -> int:
    """Make some columns narrower, always the widest of them, and return by how much all are still too wide."""
    while excess > 0 and some and max(widths[i] for i in some) > NARROWEST:
        widest = max(some, key=lambda i: widths[i])
        widths[widest] -= 1
        excess -= 1
    return excess


def _cut(cell: str, width: int) -> str:
    return cell if width_of(cell) <= width else cut_to(cell, width - 1) + "\N{HORIZONTAL ELLIPSIS}"


def _wrapped(cell: str, width: int) -> list[str]:
    """Return a cell in lines of at most `width` characters, which end behind commas and blanks where that can be."""
    lines = [""]
    for word in re.split("(?<=[, ])", cell):
        if lines[-1] and len(lines[-1]) + len(word.rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return [line[at : at + width].rstrip() for line in lines for at in range(0, max(len(line.rstrip()), 1), width)]


def tasks(
    rows: Sequence[dict[str, Any]], user: Callable[[int], str], width: int | None = None, *, wraps: bool = False
) -> list[str]:
    """Return the table of ``drom ps`` for the tasks of its answer; `user` names a uid.

    `width` is as in `table`. CPUs are cut last, or never with `wraps`, where a task may have several lines.

    Columns in which no task has anything are left out, but for those that everybody looks for.
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
    if width:
        _leave_out(cells, width, wraps=wraps)
    lines = list(zip(*cells.values(), strict=True))
    return table(list(cells), lines, width, cut=[*CUT, ("CPUS",)], wrapped="CPUS" if wraps else None)


def _leave_out(columns: dict[str, list[str]], width: int, *, wraps: bool) -> None:
    """Leave out columns until there is room for the others, cut as far as they may be, and for all CPUs."""
    needed = {name: max(len(name), *map(len, cells)) for name, cells in columns.items()}
    for name in set().union(*CUT) & needed.keys():
        needed[name] = min(needed[name], NARROWEST)
    if wraps:
        needed["CPUS"] = min(needed["CPUS"], ENOUGH)
    for name in LEFT_OUT:
        if sum(needed.values()) + 2 * (len(needed) - 1) <= width:
            return
        if name in needed:
            del needed[name], columns[name]


def _count(task: dict[str, Any]) -> str:
    """Return the number of CPUs in force, and that to come."""
    now, then = (parse_cpulist(task[name]).bit_count() for name in ("applied", "target"))
    return str(now) if now == then else f"{now} -> {then}"


def _cpus(task: dict[str, Any]) -> str:
    """Return the CPUs in force, and those to come."""
    now, then = task["applied"] or "-", task["target"] or "-"
    return str(now) if now == then else f"{now} -> {then}"


def _mode(task: dict[str, Any]) -> str:
    """Return who puts grants in force: a runtime's name, or bind-only and unmanaged; nothing for the program itself."""
    if not task["applied"]:
        return ""
    return str(task["points"] if task["mode"] == "cooperative" else task["mode"])


def _held(task: dict[str, Any]) -> str:
    """Return what an order has fixed: exact CPUs, or how many CPUs of the job and for how long."""
    if task["pin"]:
        return f"CPUs {task['pin']}"
    if task["hold"] is None:
        return ""
    return str(task["hold"]) + ("" if task["left"] is None else f" for {clock(task['left'])}")


def notes(answer: dict[str, Any]) -> Iterator[str]:
    """Yield what else there is to know of a node from the answer to `ps`."""
    if answer["observe"]:
        yield "This agent only observes: no mask is changed."
    yield from left_alone(*(parse_cpulist(answer.get(name, "")) for name in ("avoided", "unavailable")))
    if answer.get("frozen_since"):
        yield f"Frozen since {answer['frozen_since']}: nothing changes until the freeze file is removed."


def changes(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the table of what an order would change."""
    if not rows:
        return ["Nothing would change."]
    keys = ("job", "task", "pid", "action", "from", "to", "why")
    cells = [[str(row[key]) or "-" for key in keys] for row in rows]
    return table(["JOB", "TASK", "PID", "CHANGE", "FROM", "TO", "WHY"], cells)
