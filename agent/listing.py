# SPDX-License-Identifier: Apache-2.0
"""Tables for people as lines of text: of tasks, and of what an order would change. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.rules import in_words
from agent.words import clock, left_alone
from dromlib.cpulist import parse_cpulist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

NARROWEST = 6
"""Characters that a cell keeps however little room there is."""


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Return rows under headings, columns as wide as needed, no trailing blanks.

    Where lines would be longer than `width`, the widest columns are cut, and what is cut ends in an ellipsis.
    """
    lines = [headings, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    while width and sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return ["  ".join(_cut(cell, n).ljust(n) for cell, n in zip(line, widths, strict=True)).rstrip() for line in lines]


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else cell[: width - 1] + "\N{HORIZONTAL ELLIPSIS}"


def tasks(rows: Sequence[dict[str, Any]], user: Callable[[int], str], width: int | None = None) -> list[str]:
    """Return the table of ``drom ps`` for the tasks of its answer; `user` names a uid, `width` is as in `table`.

    Columns in which no task has anything are left out, but for those that everybody looks for.
    """
    columns: list[tuple[str, bool, Callable[[dict[str, Any]], str]]] = [
        ("JOB", True, lambda task: str(task["job"])),
        ("TASK", any(row["task"] for row in rows), lambda task: str(task["task"])),
        ("USER", True, lambda task: user(task["uid"])),
        ("PID", True, lambda task: str(task["pid"])),
        ("CLASS", True, lambda task: str(task["class"])),
        ("STATE", True, lambda task: str(task["state"])),
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
    shown = [column for column in shown if column[2] or (column[0] != "TASK" and any(column[1]))]
    cells = [[column[1][i] or "-" for column in shown] for i in range(len(rows))]
    return table([name for name, _, _ in shown], cells, width)


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
