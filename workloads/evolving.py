# SPDX-License-Identifier: Apache-2.0
"""Evolving jobs: programs that can use a different number of processors in each of their phases.

A phase begins at a progress, a fraction of the job's work, and gives the fewest and most processors that the job can
use from then on. Phases come from a table with the columns ``job,progress,least,most``, or with ``seconds`` of the run
time in the log instead of the progress. Or they are drawn: a fraction of the malleable jobs has three phases, at
uniformly distributed progresses, each with half, one or two times the processors that the job could use at first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.workloads.classes import JobClass, uniform
from drom.workloads.errors import WorkloadError
from drom.workloads.rows import read_rows, whole

if TYPE_CHECKING:
    import os

    from drom.workloads.workload import Ints
    from numpy.typing import NDArray

COLUMNS = (("job", "progress", "least", "most"), ("job", "seconds", "least", "most"))
PHASES = 3
FACTORS = (0.5, 1.0, 2.0)
_CHOICE_SALT = 0x45564F4C5645
_PHASE_SALT = 0x5048415345


class Phase(NamedTuple):
    """The processors that a job can use from some progress on."""

    progress: float
    """From 0 to 1; or seconds of its run time."""
    least: int
    most: int
    place: str = ""
    """The file and line of the phase."""
    in_seconds: bool = False


Phases = dict[int, list[Phase]]
"""The phases by job number, in order of progress."""


def read_phases(path: str | os.PathLike[str]) -> Phases:
    """Return the phases of a table. Raises WorkloadError with file and line of an error."""
    found: Phases = {}
    for row in read_rows(path, COLUMNS):
        in_seconds = "seconds" in row.values
        at = row.values["seconds" if in_seconds else "progress"]
        phase = Phase(at, whole(row, "least", 1), whole(row, "most", 1), row.place, in_seconds)
        if at < 0 or (at >= 1 and not in_seconds):
            wanted = "seconds: {} is less than 0" if in_seconds else "progress: {} is not a fraction from 0 to below 1"
            msg = f"{row.place}, {wanted.format(f'{at:g}')}."
            raise WorkloadError(msg)
        if phase.least > phase.most:
            msg = f"{row.place}: the least {phase.least} is above the most {phase.most}: exchange them."
            raise WorkloadError(msg)
        before = found.setdefault(whole(row, "job"), [])
        if before and before[-1].progress >= at:
            msg = f"{row.place}: {at:g} is not after {before[-1].progress:g}: write the phases of a job in their order."
            raise WorkloadError(msg)
        before.append(phase)
    return found


def draw_phases(  # noqa: PLR0917 - columns by position
    job: Ints, cls: NDArray[np.int8], least: Ints, most: Ints, processors: int, share: float, seed: int
) -> Phases:
    """Return phases for a share of the malleable jobs, by job number and seed; columns have shape ``(jobs,)``."""
    chosen = np.flatnonzero((cls == JobClass.MALLEABLE) & (uniform(job, seed ^ _CHOICE_SALT) < share))
    number = job[chosen, None] * (2 * PHASES) + np.arange(2 * PHASES)
    points = uniform(number, seed ^ _PHASE_SALT)
    at, factor = np.sort(points[:, :PHASES]), np.array(FACTORS)[(points[:, PHASES:] * len(FACTORS)).astype(int)]
    low = np.clip(np.ceil(least[chosen, None] * factor), 1, processors).astype(int)
    high = np.clip(np.floor(most[chosen, None] * factor), low, processors).astype(int)
    return {
        int(number): [Phase(*values) for values in zip(*columns, strict=True)]
        for number, *columns in zip(job[chosen], at.tolist(), low.tolist(), high.tolist(), strict=True)
    }
