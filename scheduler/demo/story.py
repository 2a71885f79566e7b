# SPDX-License-Identifier: Apache-2.0
"""The events of the demonstration's jobs as sentences and as a chart of letters, and checks of the results. Pure."""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby
from operator import itemgetter
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from drom.agent.text import counted
from drom.scheduler.analysis.gantt import boxes
from drom.scheduler.analysis.series import span_of
from drom.scheduler.live.cluster.jobs import CANCELLED, COMPLETED, FAILED, NODE_FAIL, TIMEOUT

from dromlib.cpulist import parse_cpulist

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from drom.scheduler.analysis.schedule import Schedule
    from drom.scheduler.demo.jobs import Submission

_RANK = re.compile(r"^ring: rank \d+ of \d+ was on (\S+)$", re.MULTILINE)
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
ENDS = {
    COMPLETED: "has ended",
    FAILED: "has failed",
    CANCELLED: "was cancelled",
    TIMEOUT: "has run out of time",
    NODE_FAIL: "was lost with its node",
}
"""The ends of jobs in words."""
AT_ONCE = 1.0
"""Seconds of waiting below which a start counts as immediate."""


class Narrator:
    """Converts entries of jobs' histories to lines. `jobs` are the submissions by number; times count from `begin`."""

    def __init__(self, begin: float, cores: int) -> None:
        self.begin, self.cores = begin, cores
        self.jobs: dict[int, Submission] = {}
        self._heard: Counter[int] = Counter()
        self._submitted: dict[int, float] = {}
        self._started: dict[int, float] = {}

    def hear(self, entries: Sequence[dict[str, Any]]) -> list[str]:
        """Return the lines for the new entries among all entries so far, in the order of time."""
        lines = []
        for (number, what, cores), group in groupby(take_new(entries, self._heard), _kind):
            several = list(group)
            last = several[-1]
            if text := self._sentence(number, what, cores, several):
                lines.append(self.line(last["at"], text))
        return lines

    def line(self, at: float, text: str) -> str:
        """Return the line of an event at a time (unix seconds)."""
        return f"{at - self.begin:6.1f} s  {text}"

    def _sentence(self, number: int, what: str, cores: int | None, entries: list[dict[str, Any]]) -> str:
        job, at, detail = self.jobs[number], entries[-1]["at"], entries[-1]["detail"]
        name = f"{job.name} (job {number})"
        if what == "submitted":
            self._submitted[number] = at
            return f"{name} is submitted: {counted(job.nodes, 'node')}, {job.limit} s at most"
        if what == "placed":
            mates = [self.jobs[mate].name for mate in detail.get("mates", [])]
            make = f"make{'s' if len(mates) == 1 else ''} room"
            return f"{name} need not wait: {_and(mates)} {make} on {_and(sorted(detail['shares']))}" if mates else ""
        if what == "started":
            self._started[number] = at
            waited = at - self._submitted[number]
            return f"{name} starts{f' after {waited:.1f} s in the queue' if waited >= AT_ONCE else ' at once'}"
        if what == "resized":
            nodes = _and(sorted(entry["detail"]["node"] for entry in entries))
            has = f"all {cores} cores of {nodes} again" if cores == self.cores else f"{cores} cores of {nodes} now"
            return f"{name} has {has}"
        if what in ENDS:
            took = f" after {at - self._started[number]:.1f} s" if number in self._started else ""
            return f"{name} {ENDS[what]}{took}{_why(detail)}"
        return "" if what in ("ordered", "limit", "ending") else f"{name}: {what}{_why(detail)}"


def take_new(entries: Iterable[dict[str, Any]], heard: Counter[int]) -> list[dict[str, Any]]:
    """Return the new entries in the order of time, and count them in `heard`, the number of those known by job.

    Entries of a job are in their order, those of several jobs in any order.
    """
    new, count = [], Counter[int]()
    for entry in entries:
        count[entry["job"]] += 1
        if count[entry["job"]] > heard[entry["job"]]:
            new.append(entry)
    heard.update(entry["job"] for entry in new)
    return sorted(new, key=itemgetter("at"))


def _kind(entry: dict[str, Any]) -> tuple[int, str, int | None]:
    return entry["job"], entry["what"], entry["detail"].get("cores")


def _why(detail: Mapping[str, Any]) -> str:
    return f" ({detail['reason']})" if detail.get("reason") else ""


def _and(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


Steps = dict[tuple[int, str, int], int]
"""The steps that each rank has made, by number of its job, node, and pid there."""


def progress_between(before: Steps, after: Steps, names: Mapping[int, str]) -> list[str]:
    """Return the progress of the last rank of each job between two checks, in words."""
    words = []
    for number in sorted({rank[0] for rank in before}):
        ranks = [rank for rank in before if rank[0] == number]
        if all(rank in after for rank in ranks):
            first, last = (min(steps[rank] for rank in ranks) for steps in (before, after))
            words.append(f"{names[number]} from step {first} to {last}")
        else:
            words.append(f"{names[number]} to its end")
    return words


# --- checks ---


def double(tasks: Iterable[Mapping[str, Any]]) -> str:
    """Return a sentence about a CPU that several tasks of a node hold at once; empty if there is none."""
    holders: Counter[int] = Counter()
    for task in tasks:
        mask = parse_cpulist(task["held"])
        holders.update(bit for bit in range(mask.bit_length()) if mask >> bit & 1)
    several = [cpu for cpu, count in holders.items() if count > 1]
    return f"CPU {several[0]} is held by {holders[several[0]]} tasks at once." if several else ""


def judge(submission: Submission, job: Mapping[str, Any], output: str) -> list[str]:
    """Return sentences on the errors of a job that is over."""
    name, found = f"{submission.name} (job {job['job']})", []
    if job["state"] != COMPLETED or job["status"] != 0:
        found.append(f"{name} is {job['state']} with status {job['status']}: {job['reason'] or 'no reason given'}.")
    if job["attempt"] != 1:
        found.append(f"{name} was started {job['attempt']} times.")
    where, wanted = Counter(_RANK.findall(output)), dict.fromkeys(job["shares"], submission.tasks)
    if job["state"] == COMPLETED and where != wanted:
        found.append(f"the ranks of {name} were on {dict(where)}, not on {wanted}.")
    if job["state"] == COMPLETED and not output.rstrip().endswith(" ok"):
        found.append(f"{name} did not find its answer right: {output.rstrip().splitlines()[-1:]}.")
    return found


# --- pictures ---


def chart(schedule: Schedule, names: Sequence[str], nodes: Sequence[str], width: int) -> list[str]:
    """Return a chart of jobs' cores over time: a line per core of each node, a letter per job, time to the right."""
    span = span_of(schedule)
    sizes = {node.name: node.cores for node in schedule.shared} or dict.fromkeys(nodes, schedule.cores)
    margin = max(map(len, sizes)) + 2
    columns = max(10, width - margin)
    seconds = max(1, -(-(span.end - span.begin) // columns))
    rows = [["."] * -(-(span.end - span.begin) // seconds) for _ in range(schedule.nodes * schedule.cores)]
    for box in boxes(schedule, span):
        for row in rows[round(box.low * schedule.cores) : round(box.high * schedule.cores)]:
            low, high = ((at - span.begin) // seconds for at in (box.begin, box.end))
            row[low : max(high, low + 1)] = _LETTERS[box.job % 26] * max(high - low, 1)
    heads = [name if core == 0 else "" for name, cores in sizes.items() for core in range(cores)]
    lines = [f"{head:<{margin}}{''.join(row)}" for head, row in zip(heads, rows, strict=True)]
    legend = "  ".join(f"{_LETTERS[number % 26]}\xa0{name}" for number, name in enumerate(names))
    words = [line.replace("\xa0", " ") for line in wrap(legend, columns)]
    return [*lines, *(f"{'':<{margin}}{text}" for text in [*words, _SCALE.format(seconds)])]


_SCALE = "a column is {} s, a line a core, a dot idle"
