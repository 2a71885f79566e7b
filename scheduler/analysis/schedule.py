# SPDX-License-Identifier: Apache-2.0
"""A schedule as a value: the times and nodes of each job; from a run, or read from a file."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from drom.scheduler.engine.node_shares import work_unit
from drom.scheduler.engine.state import CORES, UNLIMITED
from drom.scheduler.interface import ENDED, FUTURE, NOBODY, RUNNING, WAITING
from drom.scheduler.simulator.failures import lost_jobs
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drom.scheduler.interface import Ints
    from drom.scheduler.simulator.simulation import Simulation

Table = dict[str, NDArray[Any]]
"""A column per property, each of shape ``(jobs,)``."""

LOST = ENDED + 1
STATES = {FUTURE: "future", WAITING: "waiting", RUNNING: "running", ENDED: "ended", LOST: "lost"}
"""The states of a job: those of the simulation, and that its nodes have failed and it does not start again."""
UNKNOWN = -1
NAMES = (
    "job_id",
    "submit",
    "start",
    "end",
    "nodes",
    "cores",
    "wait",
    "run_time",
    "full_speed_run_time",
    "requested_time",
    "expected_time",
    "class",
    "limit",
    "lent",
    "share_at_start",
    "state",
)
"""The columns of a table; all but the last are whole numbers."""
NODE_LIST = "node_list"


class SharedNode(NamedTuple):
    """A node of which jobs have cores and GPUs."""

    name: str
    cores: int
    gpus: int


class Schedule(NamedTuple):
    """The table of jobs, the machine they ran on, and their nodes."""

    table: Table
    nodes: int
    cores: int
    until: int
    """The second up to which the schedule is known: that of the last event."""
    first: Ints
    """Shape ``(jobs + 1,)``: the nodes of a job are ``runs[first[job] : first[job + 1]]``."""
    runs: Ints
    """Shape ``(runs, 2)``: consecutive nodes, from a first to a last one."""
    shared: tuple[SharedNode, ...] = ()
    """The nodes, if they may be unlike and jobs share them: then the schedule counts each core, node after node, as a
    node of one core. GPUs, node after node, have the numbers after those of all cores."""

    def jobs(self, which: NDArray[np.bool_]) -> Schedule:
        """Return the schedule of some of the jobs."""
        count = np.diff(self.first)
        first = np.concatenate(([0], np.cumsum(count[which])))
        table = {name: column[which] for name, column in self.table.items()}
        return self._replace(table=table, first=first, runs=self.runs[np.repeat(which, count)])


def columns(run: Simulation) -> Table:
    """Return the table of jobs, in order of submission; -1 for events that have not happened."""
    jobs, work, state = run.world.jobs, run.work, states(run)
    started, ended = state >= RUNNING, state >= ENDED
    values = (
        work.job,
        work.submit,
        np.where(started, jobs.start, UNKNOWN),
        np.where(ended, run.world.end, UNKNOWN),
        jobs.nodes,
        jobs.cores,
        np.where(started, jobs.start - work.submit, UNKNOWN),
        np.where(ended, run.world.end - jobs.start, UNKNOWN),
        done(run),
        work.requested_time,
        jobs.requested,
        jobs.cls,
        np.where(jobs.limit == UNLIMITED, UNKNOWN, jobs.limit),
        jobs.lent,
        np.where(started, run.world.given, UNKNOWN),
        np.array([STATES[number] for number in range(len(STATES))])[state],
    )
    return dict(zip(NAMES, values, strict=True))


def states(run: Simulation) -> Ints:
    """Return the state of each job, as a number of STATES."""
    jobs = run.world.jobs
    state = np.where((jobs.state == RUNNING) & (jobs.start > run.now), WAITING, jobs.state)  # for a container
    state[lost_jobs(run)] = LOST
    return state


def has_ended(table: Table) -> NDArray[np.bool_]:
    """Return the mask of the jobs that have ended, and were not lost."""
    return np.asarray((table["end"] != UNKNOWN) & (table["state"] != STATES[LOST]), np.bool_)


def done(run: Simulation) -> Ints:
    """Return the seconds that each job takes with all its resources; for a job ended by its limit, those that it did.

    A second that it had only begun does not count.
    """
    world, jobs = run.world, run.world.jobs
    full = world.speed[jobs.nodes] if len(world.speed) else jobs.nodes * world.scalars[CORES] * work_unit(world)
    undone = -(-np.maximum(world.left, 0) // full)
    return np.where(jobs.state == ENDED, world.run - undone, world.run).astype(np.int64)


def schedule_of(run: Simulation) -> Schedule:
    """Return the schedule of a run."""
    first, runs = node_runs(run.world.nodes.first, run.world.nodes.place)
    return Schedule(columns(run), run.machine.nodes, run.machine.cores, run.now, first, runs)


def node_runs(first: Ints, place: Ints) -> tuple[Ints, Ints]:
    """Return runs of consecutive nodes, and where those of each job begin.

    `place` holds the nodes of job after job, those of a job from ``first[job]`` on, NOBODY if it has none yet.
    """
    breaks = np.ones(len(place), np.bool_)
    breaks[1:] = np.diff(place) != 1
    breaks[first[:-1][np.diff(first) > 0]] = True
    begins = np.flatnonzero(breaks & (place != NOBODY))
    ends = np.flatnonzero(np.concatenate((breaks[1:], [True])) & (place != NOBODY))
    return np.searchsorted(begins, first).astype(np.int64), np.stack((place[begins], place[ends]), axis=1)


def node_lists(schedule: Schedule) -> list[str]:
    """Return the nodes of each job as text: ``0-3 8``, empty before its start."""
    lows, highs = schedule.runs.T.tolist()
    texts = {node: str(node) for node in {*lows, *highs}}  # each is made once: there are far fewer than runs
    words = [f"{texts[low]}-{texts[high]}" if low < high else texts[low] for low, high in zip(lows, highs, strict=True)]
    first = schedule.first.tolist()
    return [" ".join(words[begin:end]) for begin, end in itertools.pairwise(first)]


def parse_node_lists(texts: Iterable[str]) -> tuple[Ints, Ints]:
    """Return `first` and `runs` of a schedule from texts of `node_lists`. Raises ValueError for other texts."""
    first, runs = [0], []
    for text in texts:
        for word in text.split():
            low, _, high = word.partition("-")
            runs.append((int(low), int(high or low)))
        first.append(len(runs))
    return np.array(first, np.int64), np.array(runs, np.int64).reshape(-1, 2)
