# SPDX-License-Identifier: Apache-2.0
"""Pictures of a node over time: the job that held each CPU, as values and as text.

`drom.agent.demo.timeline_png` draws them as images. Pure: the input is a list of `Change`, the cores of the machine and
the end of the picture. A job holds every CPU of every grant that a later acknowledgement has not superseded, so a CPU
that was reclaimed stays the job's until the job has applied the change; such periods are drawn hatched, or as
lower-case letters.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dromlib import cpulist
from dromlib.errors import DromError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MOST_ROWS = 32
_COLUMNS_PER_TICK = 10
# The palette of Okabe and Ito, distinguishable with any colour vision, and the nearest of a terminal's 256 colours.
PALETTE = (
    ("#0072B2", 25),
    ("#E69F00", 178),
    ("#009E73", 36),
    ("#D55E00", 166),
    ("#56B4E9", 74),
    ("#CC79A7", 175),
    ("#F0E442", 227),
    ("#999999", 246),
)
DARK = frozenset({"#0072B2", "#009E73", "#D55E00"})


class PictureError(DromError):
    """Raised when a picture cannot be drawn; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class TimelineChange:
    """A grant: from `time_s` on, `job` is to have `cpus` (a mask of OS CPUs; 0 when the job has ended)."""

    time_s: float
    job: str
    cpus: int
    applied_s: float | None
    """The time at which the job, or the agent for it, applied the grant; None if not applied yet."""
    action: str
    """The kind of change, such as start, shrink, grow, enforce or end."""


@dataclass(frozen=True, slots=True)
class Span:
    """One CPU held by one job, from `start_s` to `end_s`."""

    cpu: int
    job: str
    start_s: float
    end_s: float
    settled: bool
    """False while the CPU is being passed on: granted or reclaimed, and not yet acknowledged."""


def spans(changes: Iterable[TimelineChange], end_s: float) -> list[Span]:
    """Return the spans in which jobs held each CPU from 0 to `end_s`, sorted by CPU and time."""
    grants: dict[str, list[TimelineChange]] = defaultdict(list)
    for change in sorted(changes, key=lambda change: change.time_s):
        grants[change.job].append(change)
    found = [span for history in grants.values() for span in _spans_of_job(history, end_s)]
    return sorted(found, key=lambda span: (span.cpu, span.start_s, span.job))


def draw_text(
    changes: Sequence[TimelineChange],
    cores: Sequence[tuple[int, int]],
    end_s: float,
    *,
    width: int = 80,
    colour: bool = False,
) -> str:
    """Return a picture for a terminal of `width` columns: one line per CPU, one letter per job, time to the right.

    `cores` are (package, mask of OS CPUs) pairs. A machine of more than 32 CPUs is drawn by cores, one of more cores by
    groups of neighbouring cores of a socket; a cell then shows the job that had most of it. A dot is an idle CPU.
    """
    refuse_empty(cores, end_s)
    rows = _rows(cores)
    labels = _row_labels(rows)
    columns = max(width - len(labels[0]), _COLUMNS_PER_TICK)
    jobs = jobs_of(changes)
    letters = {job: _LETTERS[number % len(_LETTERS)] for number, job in enumerate(jobs)}
    pens = {letter: number for number, letter in enumerate(letters.values())} if colour else {}
    cells = _cells(spans(changes, end_s), [mask for _, mask in rows], columns, end_s, letters)
    lines = [label + _paint("".join(line), pens) for label, line in zip(labels, cells, strict=True)]
    margin = " " * len(labels[0])
    lines += [(margin + line).rstrip() for line in _text_axis(columns, end_s)]
    entries = [(letter, f"{letter} {job}") for job, letter in letters.items()] + [(".", ". idle")]
    if any(character.islower() for line in cells for character in line):
        entries.append(("", "small: asked for, not yet in force"))
    return "\n".join(lines + _text_legend(entries, width, pens)) + "\n"


def refuse_empty(cores: Sequence[tuple[int, int]], end_s: float) -> None:
    """Raise `PictureError` if there is no CPU or no time to draw."""
    if not any(mask for _, mask in cores):
        raise PictureError("There is nothing to draw: the list of cores names no CPU.")
    if not end_s > 0:
        raise PictureError("There is nothing to draw: the picture must end after 0 seconds.")


def jobs_of(changes: Iterable[TimelineChange]) -> list[str]:
    """Return the jobs in the order of their first change."""
    return list(dict.fromkeys(change.job for change in sorted(changes, key=lambda change: change.time_s)))


def in_force_s(change: TimelineChange) -> float:
    """Return the time at which a change counts as applied: the end of a job needs no acknowledgement."""
    if change.applied_s is None:
        return math.inf if change.cpus else change.time_s
    return max(change.applied_s, change.time_s)


# --- spans ---


def _spans_of_job(history: Sequence[TimelineChange], end_s: float) -> Iterator[Span]:
    times = {time for change in history for time in (change.time_s, in_force_s(change)) if time < end_s}
    open_spans: dict[int, tuple[float, bool]] = {}
    for now in sorted(times):
        held, settled = _holding(history, now)
        for cpu in cpulist.cpus(held | cpulist.mask_of(open_spans)):
            state = bool(settled >> cpu & 1) if held >> cpu & 1 else None
            started = open_spans.get(cpu)
            if started is not None and started[1] != state:
                yield Span(cpu, history[0].job, started[0], now, started[1])
                del open_spans[cpu]
            if state is not None:
                open_spans.setdefault(cpu, (now, state))
    for cpu, (start_s, state) in open_spans.items():
        yield Span(cpu, history[0].job, start_s, end_s, state)


def _holding(history: Sequence[TimelineChange], now: float) -> tuple[int, int]:
    """Return the CPUs held at `now`, and those of them on which the newest grant and the acknowledged one agree."""
    published = [change for change in history if change.time_s <= now]
    first, in_force = 0, 0
    for number, change in enumerate(published):
        if in_force_s(change) <= now:
            first, in_force = number, change.cpus
    held = 0
    for change in published[first:]:
        held |= change.cpus
    return held, in_force & published[-1].cpus


# --- rows ---


def _rows(cores: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (package, mask) rows, 32 at most unless there are more sockets: CPUs, else cores, else groups of cores."""
    singles = cpu_rows(cores)
    if len(singles) <= _MOST_ROWS:
        return singles
    sockets: dict[int, list[int]] = defaultdict(list)
    for package, mask in cores:
        sockets[package].append(mask)
    lines = max(_MOST_ROWS // len(sockets), 1)
    rows = []
    for package, masks in sorted(sockets.items()):
        size = math.ceil(len(masks) / lines)
        for first in range(0, len(masks), size):
            group = 0
            for mask in masks[first : first + size]:
                group |= mask
            rows.append((package, group))
    return rows


def cpu_rows(cores: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return one row for each CPU; the hardware threads of a core are neighbours."""
    return [
        (package, 1 << cpu) for package, mask in sorted(cores, key=lambda core: core[0]) for cpu in cpulist.cpus(mask)
    ]


def _row_labels(rows: Sequence[tuple[int, int]]) -> list[str]:
    names = [cpulist.format_cpulist(mask) for _, mask in rows]
    wide = max(map(len, names))
    labels, before = [], None
    for (package, _), name in zip(rows, names, strict=True):
        socket = f"socket {package}" if package != before else ""
        labels.append(f"{socket:<10}{name:>{wide}} ")
        before = package
    return labels


# --- for a terminal ---


def _cells(
    held: Iterable[Span], masks: Sequence[int], columns: int, end_s: float, letters: dict[str, str]
) -> list[list[str]]:
    """Return a character for each row and column: the job that had most of the cell, unless it was idle for longer."""
    row_of = {cpu: row for row, mask in enumerate(masks) for cpu in cpulist.cpus(mask)}
    step = end_s / columns
    shares: dict[tuple[int, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for span in held:
        if span.cpu not in row_of:
            continue
        letter = letters[span.job] if span.settled else letters[span.job].lower()
        for column in range(int(span.start_s / step), min(math.ceil(span.end_s / step), columns)):
            inside = min(span.end_s, (column + 1) * step) - max(span.start_s, column * step)
            shares[row_of[span.cpu], column][letter] += inside
    cells = [["."] * columns for _ in masks]
    for (row, column), share in shares.items():
        cells[row][column] = _dominant_job(share, masks[row].bit_count() * step)
    return cells


def _dominant_job(share: dict[str, float], whole: float) -> str:
    totals: dict[str, float] = defaultdict(float)
    for letter, time in share.items():
        totals[letter.upper()] += time
    best = max(totals, key=lambda letter: totals[letter])
    # A small tolerance: sums of times are not exact, and half a cell must be drawn alike in all columns.
    if totals[best] < (whole - sum(totals.values())) * (1 - 1e-9):
        return "."
    return best.lower() if share.get(best.lower(), 0.0) > share.get(best, 0.0) else best


def _text_axis(columns: int, end_s: float) -> tuple[str, str]:
    step = _nice_step(end_s * _COLUMNS_PER_TICK / columns)
    line, numbers = ["-"] * columns, ""
    for tick in range(math.floor(end_s / step * (1 + 1e-9)) + 1):
        column = round(tick * step / end_s * columns)
        text = f"{tick * step:g}" + ("" if tick else " s")
        if column + len(text) <= columns:
            line[column] = "+"
            numbers = numbers.ljust(column) + text
    return "".join(line), numbers


def _nice_step(least: float) -> float:
    """Return the smallest 1, 2 or 5 times a power of ten that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def _text_legend(entries: Iterable[tuple[str, str]], width: int, pens: dict[str, int]) -> list[str]:
    lines: list[str] = []
    room = 0
    for letter, text in entries:
        shown = _paint(letter, pens) + text.removeprefix(letter)
        if room < len(text) + 3:
            lines.append(shown)
            room = width - len(text)
        else:
            lines[-1] += "   " + shown
            room -= len(text) + 3
    return lines


def _paint(line: str, pens: dict[str, int]) -> str:
    """Return `line` with each run of a job's letters on its colour; lower-case letters are drawn in that colour."""
    painted, start = "", 0
    for end in range(1, len(line) + 1):
        if end < len(line) and line[end] == line[start]:
            continue
        run, start = line[start:end], end
        pen = pens.get(run[0].upper())
        if pen is None:
            painted += run
            continue
        code, number = PALETTE[pen % len(PALETTE)]
        ink = 231 if code in DARK else 16
        painted += f"\x1b[38;5;{number}m" if run[0].islower() else f"\x1b[48;5;{number};38;5;{ink}m"
        painted += run + "\x1b[0m"
    return painted
