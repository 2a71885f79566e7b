# SPDX-License-Identifier: Apache-2.0
"""The job that holds each core of a node at this moment, as a cell for each core and as rows of cells. Pure.

The input is the agent's answers to `ps` and to `topology`.
"""

from __future__ import annotations

from collections import Counter
from itertools import count, groupby
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, NamedTuple

from dromlib.cpulist import cpus, parse_cpulist

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

IDLE, LEFT_ALONE, UNMANAGED = ".", "~", "-"
RUN = 8
"""Number of cells without a gap."""


class Cell(NamedTuple):
    """A core, or a CPU if jobs share cores: its package and NUMA node (OS indices), and the job that has it."""

    package: int
    numa: int
    sign: str
    """A job's letter, in lower case while the core is being passed on; or IDLE, LEFT_ALONE, UNMANAGED."""
    job: str
    """Empty if no job has the cell."""


Row = tuple[str, list[Cell | None]]
"""A label and cells, None for a gap."""


def number(jobs: Iterable[str], before: Mapping[str, int]) -> dict[str, int]:
    """Return a number for each job: the one it had before, otherwise the lowest free one."""
    numbers = {job: before[job] for job in jobs if job in before}
    taken = set(numbers.values())
    free = (candidate for candidate in count() if candidate not in taken)
    for job in jobs:
        if job not in numbers:
            numbers[job] = next(free)
    return numbers


def letter(number: int) -> str:
    """Return the letter of a job's number; letters repeat after 26."""
    return ascii_uppercase[number % len(ascii_uppercase)]


def units(machine: dict[str, Any], answer: dict[str, Any]) -> list[tuple[int, int, list[int]]]:
    """Return package, NUMA node and CPUs of each cell: a core, or a CPU if jobs share a core."""
    now = holders(answer["tasks"], "applied")
    found = [(core["package"], core["numa"], cpus_of(core["cpus"])) for core in machine["cores"]]
    if any(len({now[cpu] for cpu in members if cpu in now}) > 1 for _, _, members in found):
        found = [(package, numa, [cpu]) for package, numa, members in found for cpu in members]
    return found


def cells(machine: dict[str, Any], answer: dict[str, Any], numbers: Mapping[str, int]) -> list[Cell]:
    """Return a cell for each of `units`. `numbers` maps each job to its number."""
    now, then = holders(answer["tasks"], "applied"), holders(answer["tasks"], "target")
    allowed = parse_cpulist(machine["allowed"])
    left = parse_cpulist(answer["avoided"]) | parse_cpulist(answer["unavailable"])
    found = []
    for package, numa, members in units(machine, answer):
        here = next((now[cpu] for cpu in members if cpu in now), "")
        next_one = next((then[cpu] for cpu in members if cpu in then), "")
        job, mask = here or next_one, sum(1 << cpu for cpu in members)
        if job:
            sign = letter(numbers[job]) if here == next_one else letter(numbers[job]).lower()
        else:
            sign = UNMANAGED if not mask & allowed else LEFT_ALONE if mask & left else IDLE
        found.append(Cell(package, numa, sign, job))
    return found


def holders(tasks: Sequence[dict[str, Any]], field: str) -> dict[int, str]:
    """Return the job of each CPU by `field` of its tasks: "applied" is in force, "target" is to come."""
    return {cpu: task["job"] for task in tasks for cpu in cpus_of(task[field])}


def cpus_of(cpulist: str) -> list[int]:
    """Return the CPUs of a kernel list."""
    return cpus(parse_cpulist(cpulist))


def rows(found: Sequence[Cell], width: int, height: int) -> tuple[int, list[Row]]:
    """Return how many cells are drawn as one, and rows of at most `width` characters, at most `height` if possible.

    A package begins a row, a NUMA node has a wider gap before it. If there is no room for all, a cell stands for
    neighbours in a node, and shows the job that has most of them.
    """
    together = 1
    while True:
        drawn = list(_packages(_merged(found, together), width))
        if len(drawn) <= height or together >= len(found):
            return together, drawn
        together *= 2


def _merged(found: Sequence[Cell], together: int) -> list[Cell]:
    merged: list[Cell] = []
    for _, group in groupby(found, key=lambda cell: (cell.package, cell.numa)):
        alike = list(group)
        parts = (alike[first : first + together] for first in range(0, len(alike), together))
        merged += [Counter(part).most_common(1)[0][0] for part in parts]
    return merged


def _packages(found: Sequence[Cell], width: int) -> Iterator[Row]:
    """Yield the rows of each package, each with as many runs of cells as fit."""
    for package, group in groupby(found, key=lambda cell: cell.package):
        label, line = f"socket {package}  ", list[Cell | None]()
        for run in _runs(list(group)):
            if line and len(label) + len(line) + len(run) > width:
                yield label, line
                label, line = " " * len(label), []
            line += run if line else [cell for cell in run if cell]
        yield label, line


def _runs(alike: Sequence[Cell]) -> Iterator[list[Cell | None]]:
    """Yield the cells of a package in runs, each preceded by its gap."""
    for _, group in groupby(alike, key=lambda cell: cell.numa):
        node = list(group)
        for first in range(0, len(node), RUN):
            yield [None] * (1 if first else 2) + list(node[first : first + RUN])
