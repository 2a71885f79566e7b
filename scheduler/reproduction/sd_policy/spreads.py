# SPDX-License-Identifier: Apache-2.0
"""The paper's numbers under its readings: medians over phases with least and most, and which numbers are reached."""

from __future__ import annotations

import textwrap
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.agent.text import table
from drom.scheduler.analysis.schedule import schedule_of
from drom.scheduler.errors import SchedulerError
from drom.scheduler.experiments.running import run_cases
from drom.scheduler.reproduction.sd_policy.classes import Classes
from drom.scheduler.reproduction.sd_policy.outcome import note_on, rows_of
from drom.scheduler.reproduction.sd_policy.readings import PHASES, RESOLUTIONS, Place, cases_of
from drom.scheduler.reproduction.sd_policy.settings import EXPERIMENTS, SETTINGS
from drom.scheduler.reproduction.sd_policy.tables import given_text, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from drom.scheduler.experiments.running import Found
    from drom.scheduler.reproduction.sd_policy.logs import Source
    from drom.scheduler.reproduction.sd_policy.readings import Reading
    from drom.scheduler.reproduction.sd_policy.tables import Row
    from drom.scheduler.simulator.simulation import Simulation

SCHEMA = 1
"""The version of the format of readings.json."""
RUNS = "readings"
"""The folder of what is kept of runs, within that of the results."""
CLOSE = 5.0
"""How many percent, or points of a change, a median may be from a number that it reaches."""


class Spread(NamedTuple):
    """A number of the paper and drom's over phases."""

    row: Row
    """It has the median."""
    least: float | None
    most: float | None

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Spread:
        """Return the spread of the same row at several phases."""
        values = [row.here for row in rows if row.here is not None]
        if not values:
            return cls(rows[0], None, None)
        return cls(rows[0]._replace(here=median(values)), min(values), max(values))

    @property
    def reached(self) -> bool | None:
        """Whether the median is close to the paper's number, or within its bound; None if one is missing."""
        deviation = self.row.deviation()
        if deviation is None or self.row.paper is None:
            return None
        return deviation == 0 if self.row.paper.bound else abs(deviation) <= CLOSE

    def text(self) -> str:
        """Return median, least and most as text."""
        if self.row.here is None or self.least is None or self.most is None:
            return "-"
        return f"{text_of(self.row, self.row.here)} ({text_of(self.row, self.least)}, {text_of(self.row, self.most)})"

    def to_json(self) -> dict[str, Any]:
        """Return the spread as JSON values."""
        return self.row.to_json() | {"least": self.least, "most": self.most, "reached": self.reached}


class Readings(NamedTuple):
    """A workload under several readings."""

    number: int
    notes: str
    spreads: dict[Reading, dict[int, list[Spread]]]
    """By reading and resolution."""

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as JSON values."""
        readings = [
            {"name": reading.name, "parameters": [*reading.both, *reading.sd, *reading.rules], "resolutions": found}
            for reading, by in self.spreads.items()
            if (found := {str(key): [spread.to_json() for spread in spreads] for key, spreads in by.items()})
        ]
        return {"number": self.number, "notes": self.notes, "readings": readings}

    def lines(self) -> Iterator[str]:
        """Yield a table for each reading, then how many numbers each reaches."""
        yield f"Workload {self.number}: {EXPERIMENTS[self.number].title}"
        yield from textwrap.wrap(self.notes, 112, initial_indent="  ", subsequent_indent="  ")
        for reading, by in self.spreads.items():
            yield from ("", reading.sentence)
            yield from _table(by)
        counts = [
            (reading.name, *(f"{sum(map(_is_reached, by[one]))} of {sum(map(_is_given, by[one]))}" for one in by))
            for reading, by in self.spreads.items()
        ]
        yield from ("", *table(("READING", *map(_heading, RESOLUTIONS)), counts, " >>"))


def _table(by: Mapping[int, Sequence[Spread]]) -> list[str]:
    cells = []
    for spreads in zip(*by.values(), strict=True):
        row = spreads[0].row
        reached = [str(resolution) for resolution, spread in zip(by, spreads, strict=True) if spread.reached]
        verdict = " and ".join(reached) or "no" if spreads[0].reached is not None else "-"
        cells.append((row.place, row.what, given_text(row), *(spread.text() for spread in spreads), verdict))
    return table(("PLACE", "WHAT", "PAPER", *map(_heading, by), "REACHED"), cells, "  >>>")


def _heading(resolution: int) -> str:
    return f"RESOLUTION {resolution} S"


def _is_given(spread: Spread) -> bool:
    return spread.reached is not None


def _is_reached(spread: Spread) -> bool:
    return bool(spread.reached)


def run_readings(
    sources: Mapping[int, Source],
    readings: list[Reading],
    folder: Path,
    at_once: int | None,
    show: Callable[[float], None],
) -> list[Readings]:
    """Make the simulations of workloads that `folder` does not have, `at_once` at a time; return the numbers.

    `show` gets the fraction that is done. Raises SchedulerError if one fails, or the folder cannot be written.
    """
    cases = {place: case for number in sources for place, case in cases_of(number, sources[number], readings).items()}
    found = dict(zip(cases, run_cases(list(cases.values()), folder / RUNS, at_once, show, classes_of), strict=True))
    for place, run in found.items():
        if "fault" in run:
            msg = f"Workload {place.number}, {place.reading}, {place.setting}: {run['fault']}"
            raise SchedulerError(msg)
    return [
        Readings(
            number,
            f"The jobs run {note_on(source)} Median (least, most) over passes at {len(PHASES)} phases.",
            {reading: {one: _spreads(found, number, reading.name, one) for one in RESOLUTIONS} for reading in readings},
        )
        for number, source in sources.items()
    ]


def classes_of(run: Simulation) -> dict[str, Any]:
    """Return the classes of the jobs of a run as JSON values."""
    return {"classes": Classes.of(schedule_of(run)).to_json()}


def _spreads(found: Mapping[Place, Found], number: int, reading: str, resolution: int) -> list[Spread]:
    tables = []
    for phase in PHASES:
        runs = {s.name: found[Place(number, reading, resolution, phase, s.name)] for s in SETTINGS}
        classes = {name: Classes.from_json(run["classes"]) for name, run in runs.items()}
        tables.append(rows_of(number, {name: run["metrics"] for name, run in runs.items()}, classes))
    return [Spread.of(rows) for rows in zip(*tables, strict=True)]
