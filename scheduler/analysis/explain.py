# SPDX-License-Identifier: Apache-2.0
"""Why a job started when it did, from a schedule: the free nodes, the jobs ahead, the jobs that it overtook."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import NEVER, NOBODY
from drom.scheduler.predictors.knowledge import USER
from drom.workloads.errors import counted

if TYPE_CHECKING:
    from drom.scheduler.interface import Ints
    from drom.scheduler.simulator.simulation import Simulation
    from drom.workloads.workload import Workload
    from numpy.typing import NDArray

_NAMED = 5


def explain(run: Simulation, number: int) -> list[str]:
    """Return sentences about the job with this number. Raises SchedulerError for an unknown job."""
    job, jobs = index_of(run.work, number), run.world.jobs
    submit, start, nodes = int(jobs.submit[job]), int(jobs.start[job]), int(jobs.nodes[job])
    ahead = np.flatnonzero((jobs.submit <= submit) & (jobs.start > submit) & (np.arange(len(jobs.submit)) < job))
    asked = f"Job {number} asks for {counted(nodes, 'node')} for {run.work.requested_time[job]:,} s"
    if run.predictor != USER:
        asked += f", and was expected to take {jobs.requested[job]:,} s"
    room = f"{counted(free_at(run, submit), 'node')} of {run.machine.nodes:,} stayed free and "
    arrival = (
        f"{asked}. It was submitted at {submit}, when {'' if run.policy.pooled else room}"
        f"{counted(len(ahead), 'job')} waited ahead of it."
    )
    told = [arrival]
    if start == NEVER:
        planned = int(jobs.planned[job])
        plan = f"; it is planned to start at {planned}" if planned != NEVER else ""
        return [*told, f"It has not started by {run.now}{plan}."]
    if start == submit:
        told.append("It started at once.")
    else:
        told.append(f"It started at {start}, after {start - submit:,} s, {_cause(run, start)}.")
    told += [allotted(run, job)] if run.policy.pooled else shared(run, job)
    overtaken = ahead[jobs.start[ahead] > start]
    if len(overtaken):
        told.append(
            f"It was backfilled ahead of {counted(len(overtaken), 'job')} submitted before: {_name(run, overtaken)}."
        )
    passed = np.flatnonzero((np.arange(len(jobs.submit)) > job) & (jobs.start < start) & (jobs.submit < start))
    if len(passed):
        told.append(f"{counted(len(passed), 'later job')} started before it: {_name(run, passed)}.")
    return told


def index_of(work: Workload, number: int) -> int:
    """Return the index of the job with this number. Raises SchedulerError if there is none."""
    found = np.flatnonzero(work.job == number)
    if not len(found):
        msg = f"There is no job {number} among those simulated: see job_id in jobs.csv."
        raise SchedulerError(msg)
    return int(found[0])


def allotted(run: Simulation, job: int) -> str:
    """Return a sentence on the processors of a pool with which a job started, and on how often it shrank."""
    jobs = run.world.jobs
    return (
        f"It can use {jobs.least[job]:,} to {jobs.most[job]:,} processors, started with {run.world.given[job]:,} "
        f"and shrank {counted(int(jobs.lent[job]), 'time')}."
    )


def shared(run: Simulation, job: int) -> list[str]:
    """Return sentences on the jobs that shrank for a job, on those for which it shrank, and on the costs."""
    told, cores = [], run.machine.cores
    mates, guests = mates_of(run, job), guests_of(run, job)
    if len(mates):
        prices = ", ".join(
            f"{_name(run, mates[i : i + 1])} {_cost(run, job, int(mates[i]))}" for i in range(len(mates))
        )
        how = f"as a guest with {run.world.given[job]} of {cores} cores of each node. Its mates shrank for it"
        if run.world.given[job] == cores:
            how = f"with all cores of {counted(_common(run, job, mates), 'node')} that its mates left for it"
        told.append(f"It started {how}, which has cost them: {prices}.")
    if len(guests):
        prices = ", ".join(
            f"{_name(run, guests[i : i + 1])} {_cost(run, int(guests[i]), job)}" for i in range(len(guests))
        )
        told.append(f"It shrank for {counted(len(guests), 'guest')}, which has cost it: {prices}.")
    return told


def _common(run: Simulation, job: int, others: Ints) -> int:
    """Return how many nodes of a job other jobs have as well."""
    return sum(int(np.isin(_nodes(run, job), _nodes(run, int(other))).sum()) for other in others)


def mates_of(run: Simulation, job: int) -> Ints:
    """Return the mates of a job: the jobs with nodes on which it started as a guest."""
    return _on_its_nodes(run, job, (run.world.order < run.world.order[job]) & (run.world.order != NOBODY))


def guests_of(run: Simulation, job: int) -> Ints:
    """Return the jobs that started as guests on the nodes of a job."""
    return _on_its_nodes(run, job, (run.world.given > 0) & (run.world.order > run.world.order[job]))


def _on_its_nodes(run: Simulation, job: int, which: NDArray[np.bool_]) -> Ints:
    """Return those jobs among `which` that were on nodes of a job when the later of the two started."""
    start, end = run.world.jobs.start, run.world.end
    then = np.flatnonzero(which & (start < end[job]) & (end > start[job]))
    mine = _nodes(run, job)
    return np.array([other for other in then if np.isin(mine, _nodes(run, int(other))).any()], np.int64)


def _nodes(run: Simulation, job: int) -> Ints:
    first = run.world.nodes.first
    return run.world.nodes.place[first[job] : first[job + 1]]


def _cost(run: Simulation, guest: int, mate: int) -> str:
    """Return the work that a mate lost to a guest, as text: in seconds of the mate running alone.

    If it left whole nodes, that is at linear speedup, without what the changes of nodes cost.
    """
    world = run.world
    together = min(world.end[guest], world.end[mate], run.now) - world.jobs.start[guest]
    part = world.given[guest] / run.machine.cores
    if run.machine.runtime_model == "ideal" or world.given[guest] == run.machine.cores:
        part *= np.isin(_nodes(run, mate), _nodes(run, guest)).mean()
    return f"{together * part:,.10g} s"


def free_at(run: Simulation, time: int) -> int:
    """Return the number of nodes without a job after all events of this instant."""
    jobs = run.world.jobs
    there = (jobs.start <= time) & (run.world.end > time)
    firsts, places = run.world.nodes.first, run.world.nodes.place
    held = [places[firsts[job] : firsts[job + 1]] for job in np.flatnonzero(there)]
    return run.machine.nodes - len(np.unique(np.concatenate(held))) if held else run.machine.nodes


def _cause(run: Simulation, start: int) -> str:
    ended = np.flatnonzero((run.world.end == start) & (run.world.jobs.start < start))
    if not len(ended):
        return "at a pass of the policy, when no job ended"
    cause = f"when {counted(len(ended), 'job')} ended ({_name(run, ended)})"
    return cause if run.policy.pooled else f"{cause}; before, {counted(free_at(run, start - 1), 'node')} were free"


def _name(run: Simulation, which: Ints) -> str:
    names = [f"{run.work.job[job]} ({counted(int(run.world.jobs.nodes[job]), 'node')})" for job in which[:_NAMED]]
    return ", ".join(names) + (" and others" if len(which) > _NAMED else "")
