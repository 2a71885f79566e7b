# SPDX-License-Identifier: Apache-2.0
"""The screen of `drom top` as lines of text with colours: a map of the node's cores, its tasks, or one job. Pure."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.agent.observe import node_map, text_view
from drom.agent.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SORTS = ("arrival", "cpus", "job", "user")
HELP = "q quit   s sort: {sort}   up, down choose   enter explain"
HELP_JOB = "q quit   enter back to the tasks   up, down another"
LEAST_TABLE = 6
"""Minimum number of lines for the tasks, however large the machine is."""


class Span(NamedTuple):
    """A part of a line; `job` is the number of the job that gives its colour."""

    text: str
    job: int | None = None
    reverse: bool = False


Line = list[Span]


class View(NamedTuple):
    """The data to show."""

    title: str
    machine: dict[str, Any]
    """The agent's answer to `topology`."""
    answer: dict[str, Any]
    """Its answer to `ps`."""
    numbers: dict[str, int]
    """The number of each job, which gives its letter and its colour."""
    rate: float | None = None
    """Changes of grants per second, if they are counted."""
    trouble: str = ""
    """Why this is not the present state; empty if it is."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The user's choices: the `pid` of a task, and the `sentences` about its job if they are to be shown."""

    sort: str = SORTS[0]
    pid: int | None = None
    sentences: tuple[str, ...] | None = None

    def sorted_otherwise(self) -> Choice:
        """Return the same choice with the next sort order."""
        return replace(self, sort=SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)])

    def moved(self, tasks: Sequence[dict[str, Any]], step: int) -> Choice:
        """Return the same choice with the task `step` further down, as far as there are tasks."""
        pids = [task["pid"] for task in tasks]
        if not pids:
            return self
        place = pids.index(self.pid) + step if self.pid in pids else 0
        return replace(self, pid=pids[min(max(place, 0), len(pids) - 1)])


def in_order(tasks: Sequence[dict[str, Any]], sort: str, user: Callable[[int], str]) -> list[dict[str, Any]]:
    """Return tasks by arrival, most CPUs, name of their job, or name of their user."""
    keys: dict[str, Callable[[dict[str, Any]], Any]] = {
        "arrival": lambda _: 0,
        "cpus": lambda task: -len(node_map.cpus_of(task["applied"])),
        "job": lambda task: task["job"],
        "user": lambda task: user(task["uid"]),
    }
    return sorted(tasks, key=keys[sort])


def frame(
    view: View, choice: Choice, user: Callable[[int], str], width: int, height: int, *, whole: bool = False
) -> list[Line]:
    """Return the lines of a screen, at most `height` of at most `width` characters, which may be none.

    With `whole` the table has all tasks, and its lines are not cut.
    """
    width = max(width, 1)
    cells = node_map.cells(view.machine, view.answer, view.numbers)
    top = [[Span(line)] for line in textwrap.wrap(_headline(view, cells), width)]
    said = [view.trouble, *text_view.node_notes(view.answer)]
    notes = [[Span(line)] for note in said for line in textwrap.wrap(note, width)]
    room = max(height - len(top) - len(notes) - LEAST_TABLE - 3, 1)
    together, drawn = node_map.rows(cells, width, room)
    middle = [_painted(label, row, view.numbers) for label, row in drawn]
    if len(middle) > room:
        middle[room - 1 :] = [[Span(f"and {counted(len(middle) - room + 1, 'socket')} more")]]
    legend = [[Span(line)] for line in textwrap.wrap(_legend(cells, together), width)]
    above = [*top, *middle, *legend, *notes, []]
    left = max(height - len(above) - 1, 1)
    if whole:
        return [*(_cut(line, width) for line in above), *_table(view, choice, user), []]
    if choice.sentences is None:
        below, words = _table(view, choice, user, width, left), HELP.format(sort=choice.sort)
    else:
        below, words = [[Span(line)] for text in choice.sentences for line in textwrap.wrap(text, width)], HELP_JOB
    above += below[:left]
    above += [[]] * (height - len(above) - 1)
    return [_cut(line, width) for line in [*above[: height - 1], [Span(words, reverse=True)]]]


def _cut(line: Line, width: int) -> Line:
    """Return a line cut to `width` characters."""
    cut = []
    for span in line:
        cut.append(span._replace(text=span.text[:width]))
        width -= len(cut[-1].text)
    return cut


def _headline(view: View, cells: Sequence[node_map.Cell]) -> str:
    held, ours = sum(cell.job != "" for cell in cells), sum(cell.sign != node_map.UNMANAGED for cell in cells)
    what = "cores" if len(cells) == len(view.machine["cores"]) else "CPUs"
    tasks = counted(len(view.answer["tasks"]), "task")
    changes = "" if view.rate is None else f", {view.rate:.1f} changes a second"
    return f"{view.title}: {counted(len(view.numbers), 'job')}, {tasks}, {held} of {ours} {what} in use{changes}"


def _legend(cells: Sequence[node_map.Cell], together: int) -> str:
    """Return the meaning of the present signs other than letters, and the cores per sign if it stands for several."""
    signs = {cell.sign for cell in cells}
    words = {node_map.IDLE: "idle", node_map.LEFT_ALONE: "left alone", node_map.UNMANAGED: "not the agent's"}
    said = [f"{sign} {word}" for sign, word in words.items() if sign in signs]
    if any(sign.islower() for sign in signs):
        said.append("small letter: changing, not yet in force")
    if together > 1:
        said.append(f"each sign: the majority of {together} neighbours")
    return "   ".join(said)


def _painted(label: str, row: Sequence[node_map.Cell | None], numbers: dict[str, int]) -> Line:
    return [Span(label), *(Span(cell.sign, numbers.get(cell.job)) if cell else Span(" ") for cell in row)]


def _table(
    view: View, choice: Choice, user: Callable[[int], str], width: int | None = None, height: int | None = None
) -> list[Line]:
    """Return headings and as many tasks as fit, including the chosen one; all without a `height`."""
    tasks = in_order(view.answer["tasks"], choice.sort, user)
    if not tasks:
        return [[Span("No task runs here.")]]
    headings, *texts = text_view.task_table(tasks, user, width and max(width - 2, 1))
    chosen = next((place for place, task in enumerate(tasks) if task["pid"] == choice.pid), 0)
    shown = len(tasks) if height is None else max(height - 1, 1)
    first = min(max(chosen - shown // 2, 0), max(len(tasks) - shown, 0))
    lines: list[Line] = [[Span("  " + headings)]]
    for task, text in list(zip(tasks, texts, strict=True))[first : first + shown]:
        number = view.numbers[task["job"]]
        sign = Span(node_map.letter(number), number)
        lines.append([sign, Span(" "), Span(text, reverse=task["pid"] == choice.pid)])
    return lines
