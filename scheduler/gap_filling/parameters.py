# SPDX-License-Identifier: Apache-2.0
"""The parameters of gap filling: the policy, the time of saving and restoring, the number of filler jobs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.errors import SchedulerError
from drom.scheduler.gap_filling.containers import Containers, make_containers
from drom.scheduler.interface import MILLION, NEVER
from drom.workloads.choices import number, read_choices

if TYPE_CHECKING:
    from collections.abc import Iterable

POLICIES = ("A", "B")
OF_ONE = {"slot": "A", "migrate": "B", "kill": "B"}
"""Which parameters are of one policy alone."""
OF_JOBS = ("length", "gap")
"""Those of filler jobs that are counted."""
LONGEST = 31_536_000
"""The most seconds that a parameter may have."""
MOST = 10_000_000
"""The most filler jobs."""


class FillingOptions(NamedTuple):
    """The parameters of gap filling; times in whole seconds."""

    policy: str = "A"
    """A: each container runs one time slot and is saved before its end. B: it runs on until a regular job comes."""
    slot: int = 3600
    """A: the scheduler's time slot, T. Regular jobs start at multiples of it."""
    restore: int = 60
    """The time to start a container, from a saved state or anew."""
    save: int = 60
    """The time to save a container; the paper's t is restore + save, over T."""
    efficiency: float = 1.0
    """The speed of a container relative to the bare node: the paper's c."""
    migrate: float = math.inf
    """B: the time of a live migration; infinite: no migration."""
    kill: int = 0
    """B: 1: a regular job does not wait for a container to be saved; its work since the last save is lost."""
    jobs: int = 0
    """The number of filler jobs; 0: the queue is always full of jobs without end."""
    length: int = 86_400
    """Mean of their exponential lengths, on a bare node."""
    gap: int = 0
    """Mean of the exponential times between their arrivals; 0: all arrive at the beginning."""

    @property
    def time_slot(self) -> int:
        """The time slot of the regular scheduler."""
        return self.slot if self.policy == "A" else 1

    @property
    def part(self) -> float:
        """The part of a slot that is left for work, 1 - t in the paper's units."""
        return 1 - (self.save + self.restore) / self.slot

    def containers(self, nodes: int, jobs: int, places: int, begin: int, seed: int) -> Containers:
        """Return the containers that wait for the gaps of a machine, the first from the second `begin` on.

        A queue that is always full needs one per node. `make_containers` says how much room runs need.
        """
        if self.jobs == 0:
            return make_containers(np.full(nodes, begin), np.full(nodes, NEVER), nodes, jobs, places)
        generator = np.random.default_rng(seed)
        need = np.maximum(np.rint(generator.exponential(self.length, self.jobs)), 1).astype(np.int64) * MILLION
        gaps = generator.exponential(self.gap, self.jobs) if self.gap else np.zeros(self.jobs)
        return make_containers(begin + np.cumsum(gaps).astype(np.int64), need, nodes, jobs, places)


def parse_filling(choices: Iterable[str]) -> FillingOptions:
    """Return the parameters set by ``NAME=VALUE``, with defaults for the others.

    Raises SchedulerError for an unknown name or one without meaning beside the others, for an invalid value, and if no
    work fits into a slot.
    """
    chosen = read_choices("--fill-set", choices, FillingOptions._fields, _value, SchedulerError)
    filling = FillingOptions(**chosen)  # type: ignore[arg-type] # each value has the type of its field
    for name in chosen:
        if (policy := OF_ONE.get(name, filling.policy)) != filling.policy:
            msg = f"--fill-set {name} means nothing under policy={filling.policy}: omit it, or choose policy={policy}."
            raise SchedulerError(msg)
        if name in OF_JOBS and not filling.jobs:
            msg = f"--fill-set {name} applies to filler jobs that end: omit it, or set their number with jobs=N."
            raise SchedulerError(msg)
    if filling.kill and filling.migrate < math.inf:
        msg = "--fill-set: with kill=1 containers are killed, not moved: omit kill or migrate."
        raise SchedulerError(msg)
    if filling.policy == "A" and filling.save + filling.restore >= filling.slot:
        msg = (
            f"--fill-set: save and restore take {filling.save + filling.restore} s, no less than the slot of "
            f"{filling.slot} s: nothing is left for work: choose a longer slot."
        )
        raise SchedulerError(msg)
    return filling


def _value(name: str, text: str) -> tuple[str | int | float | None, str]:
    """Return a value, None if it is invalid, and a description of valid values."""
    if name == "policy":
        return (text if text in POLICIES else None), "A or B"
    value = number(text)
    if name == "efficiency":
        return (value if 1e-6 <= value <= 1 else None), "a number above 0, and at most 1"
    if name == "migrate" and value == math.inf:
        return value, ""
    least = 1 if name in {"slot", "length"} else 0
    most = 1 if name == "kill" else MOST if name == "jobs" else LONGEST
    what = "0 or 1" if name == "kill" else f"a whole number from {least} to {most:,}"
    if name == "migrate":
        what += ", or infinite"
    return (int(value) if least <= value <= most and value % 1 == 0 else None), what
