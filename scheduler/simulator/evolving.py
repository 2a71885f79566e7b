# SPDX-License-Identifier: Apache-2.0
"""Evolving jobs on a pool: their phases (`drom.workloads.evolving`) as the rows that the engine reads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import MALLEABLE, NOBODY
from drom.workloads.evolving import draw_phases, read_phases

if TYPE_CHECKING:
    from drom.scheduler.engine.state import Pool
    from drom.scheduler.interface import Ints
    from drom.workloads.evolving import Phase
    from drom.workloads.workload import Workload


def with_phases(pool: Pool, work: Workload, classes: Ints, said: str, seed: int) -> Pool:
    """Return the pool with evolving jobs: a fraction of the malleable ones, or those of a file.

    A phase that begins at once replaces the initial range of a job. Raises SchedulerError for impossible phases, and
    WorkloadError for a file that cannot be read.
    """
    processors = len(pool.speed) - 1
    share = _fraction(said)
    if share is None:
        phases = read_phases(said)
    else:
        kinds = classes.astype(np.int8)
        phases = draw_phases(work.job, kinds, pool.least, pool.most, processors, share, seed)
    at = {int(number): job for job, number in enumerate(work.job)}
    least, most, rows = pool.least.copy(), pool.most.copy(), list[tuple[int, int, int, int]]()
    upcoming = np.full(len(work), NOBODY, np.int64)
    for number, ahead in sorted(phases.items(), key=lambda item: at.get(item[0], NOBODY)):
        job = at.get(number, NOBODY)
        _check(number, ahead[0], job != NOBODY and classes[job] == MALLEABLE)
        upcoming[job] = len(rows)
        for phase in ahead:
            left = _left(phase, int(work.run_time[job]), int(pool.speed[work.allocated[job]]))
            if phase.most > processors:
                msg = f"{phase.place}: the machine has {processors:,} processors, fewer than {phase.most:,}."
                raise SchedulerError(msg)
            if phase.progress == 0:
                least[job], most[job] = phase.least, phase.most
            elif left > 0:
                rows.append((job, left, phase.least, phase.most))
    upcoming[upcoming == NOBODY] = len(rows)
    table = np.array([*rows, (NOBODY, 0, 0, 0)], np.int64)
    return pool._replace(least=least, most=most, phases=table, upcoming=upcoming)


def _fraction(said: str) -> float | None:
    """Return the fraction that an option gives; None for the name of a file."""
    try:
        share = float(said)
    except ValueError:
        return None
    if not 0 <= share <= 1:
        msg = f"--evolving {said}: give a fraction of the jobs from 0 to 1, or a file."
        raise SchedulerError(msg)
    return share


def _check(number: int, first: Phase, malleable: bool) -> None:  # noqa: FBT001 - a condition
    if not malleable:
        msg = f"{first.place}: there is no malleable job {number} among those simulated: remove its lines."
        raise SchedulerError(msg)


def _left(phase: Phase, run_time: int, rate: int) -> int:
    """Return the work that a job has left when a phase begins; 0 or less if it ends before."""
    if phase.in_seconds:
        return math.ceil((run_time - phase.progress) * rate)
    return math.ceil((1 - phase.progress) * run_time * rate)
