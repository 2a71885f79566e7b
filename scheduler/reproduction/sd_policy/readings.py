# SPDX-License-Identifier: Apache-2.0
"""Readings of the SD-Policy paper: what it may mean where it is silent, or where its published code differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from drom.scheduler.cli.setup import Setup
from drom.scheduler.errors import SchedulerError
from drom.scheduler.experiments.design import Case
from drom.scheduler.reproduction.sd_policy.settings import SETTINGS
from drom.workloads.errors import short

if TYPE_CHECKING:
    from drom.scheduler.reproduction.sd_policy.logs import Source
    from drom.scheduler.reproduction.sd_policy.settings import Setting


class Reading(NamedTuple):
    """A reading of the paper as parameters, each as ``NAME=VALUE``."""

    name: str
    what: str
    """What differs from the defaults."""
    sd: tuple[str, ...] = ()
    """Parameters of `sd`."""
    both: tuple[str, ...] = ()
    """Parameters of `slurm` and of `sd`."""
    rules: tuple[str, ...] = ()
    """Cleaning rules."""

    def case(self, setting: Setting, source: Source, phase: int, resolution: int) -> Case:
        """Return the simulation of a setting, with passes at a phase and reservations rounded to a resolution."""
        own = self.sd if setting.policy == "sd" else ()
        setup = Setup(source.nodes, source.cores, runtime_model=setting.model, rule=self.rules)
        choices = (*setting.choices, *self.both, *own, f"phase={phase}", f"resolution={resolution}")
        return Case(None, str(source.log), setup, setting.policy, choices, 0, 0)

    @property
    def sentence(self) -> str:
        """What it is, with its parameters."""
        choices = ", ".join((*self.both, *self.sd, *self.rules))
        return f"{self.name}: {self.what}{f' ({choices})' if choices else ''}"


_RAISE = ("overrun=raise",)
READINGS = {
    one.name: one
    for one in (
        Reading("default", "the decisions of docs/reproduction.md"),
        Reading("raised", "jobs that ran longer than they asked for ask for as long as they ran", rules=_RAISE),
        Reading("code", "as in the published code", ("test=0", "objective=weighted"), ("main=1",)),
        Reading("outlast", "guests may outlast their mates", ("inside=0",)),
        Reading("larger", "the same, with larger shares", ("inside=0", "sharing_factor=0.75")),
        Reading("eager", "guests may outlast their mates, and need not end earlier", ("inside=0", "test=0")),
        Reading("eager-raised", "eager and raised", ("inside=0", "test=0"), rules=_RAISE),
        Reading(
            "eager-main", "eager, and heads of the queue start between passes", ("inside=0", "test=0"), ("main=1",)
        ),
    )
}
ALL = "all"
"""The name that stands for all readings."""
PHASES = (0, 4, 8, 11, 15, 19, 23, 26)
"""Passes are at these seconds, and every 30 s after them."""
RESOLUTIONS = (60, 1)
"""Slurm's default, and reservations that are not rounded."""


class Place(NamedTuple):
    """What a simulation is of."""

    number: int
    """The workload."""
    reading: str
    resolution: int
    phase: int
    setting: str


def parse(names: str) -> list[Reading]:
    """Return the readings in a list of names with commas, each once. Raises SchedulerError for an unknown one."""
    found: dict[str, Reading] = {}
    for name in map(str.strip, names.split(",")):
        if name != ALL and name not in READINGS:
            msg = f"--readings: there is no reading {short(name)}: choose of {', '.join(READINGS)}, or {ALL}."
            raise SchedulerError(msg)
        found |= READINGS if name == ALL else {name: READINGS[name]}
    return list(found.values())


def cases_of(number: int, source: Source, readings: list[Reading]) -> dict[Place, Case]:
    """Return the simulations of a workload under readings."""
    return {
        Place(number, reading.name, resolution, phase, setting.name): reading.case(setting, source, phase, resolution)
        for reading in readings
        for resolution in RESOLUTIONS
        for phase in PHASES
        for setting in SETTINGS
    }
