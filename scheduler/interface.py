# SPDX-License-Identifier: Apache-2.0
"""The contract of a policy: ``decide(state, event, options, actions) -> time of the next call``.

A policy is a pure function. It reads `state` and `event`, appends to `actions` through the functions below, and returns
the second at which it must be called again at the latest, or NEVER. A policy that has started a job, or shortened a
limit, may return ``state.now``: it is called again as soon as its answer has been carried out, and sees the result. It
is independent of its driver: a simulator, a live controller, or Slurm. It is plain Python that numba compiles: loops,
whole numbers, arrays. A module that holds a policy may define parameters in ``OPTIONS``, a dictionary of names and
defaults; `options` holds their values in that order. ``WORDS`` may name values of parameters: a dictionary of
dictionaries. With ``POOL = True`` the policy allots numbers of processors instead of nodes, by `allot` alone; `nodes`
and `free` then count processors.

In place of `decide` a module may define ``score(state, job, options) -> float``, which numba compiles too. The
policy then is EASY backfilling with the lowest score first (`drom.scheduler.policies.scored`).

Jobs and nodes are 0-based indices, times and lengths whole seconds, and every array is int64.

The functions that append to `actions` report no errors: the driver checks the rows when it carries them out, in order.
A row that it rejects ends a simulation with SchedulerError; a live scheduler skips the row and logs the fault. A driver
calls a policy from one thread at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
F = TypeVar("F", bound="Callable[..., object]")

NEVER = 1 << 62
NOBODY = -1
MILLION = 1_000_000
"""Parts of a second, or of another 1, where such parts are whole numbers."""

FUTURE, WAITING, RUNNING, ENDED = 0, 1, 2, 3
"""States of a job: not submitted yet, in the queue, on nodes, gone."""

RIGID, MOLDABLE, MALLEABLE = 0, 1, 2
"""The class of a job, which has all cores of its nodes, may start on fewer, or may also be resized while it runs."""

SUBMITTED, JOB_ENDED, TICK = 1, 2, 4
START_REFUSED, RESIZE_FAILED, AGENT_GONE, NODE_DOWN, NODE_UP = 8, 16, 32, 64, 128
DEMAND_CHANGED = 256
"""Kinds of events, and of partial failures; `Event.kinds` is a sum of them. A demand is a job's `least` and `most`."""

SOFT, HARD, PAYOFF, PENALTY = range(4)
"""Columns of `State.contracts`."""

START, PLACE, RESIZE, LIMIT, PLAN, ALLOT = 1, 2, 3, 4, 5, 6
"""Kinds of actions, the first number of a row."""


class Jobs(NamedTuple):
    """A column per property, by job index in order of submission, each of shape ``(jobs,)``.

    The real run time of a job is not among them.
    """

    submit: Ints
    requested: Ints
    """Predicted run time of the job with all its resources; constant once the job has been submitted."""
    nodes: Ints
    cores: Ints
    """All cores that the job requests, over its nodes."""
    cls: Ints
    partition: Ints
    """The row of `Nodes.allowed` with the nodes that a job may use; NOBODY: all nodes."""
    priority: Ints
    """The queue is in order of falling priority, then of submission."""
    state: Ints
    start: Ints
    """NEVER until it has started."""
    limit: Ints
    """How long a job may take from its start; it grows when a running job lends cores. If run times are predicted, it
    ends no job: it is the predicted run time, and grows when that has passed.
    """
    ends: Ints
    """Predicted end of a running job: start + limit."""
    planned: Ints
    """The start that the policy last planned for a waiting job; NEVER without one."""
    lent: Ints
    """How often the job gave up cores for another job."""
    lost: Ints
    """Work that a job did not do because it shared nodes, up to the last change of its shares or its end: in seconds
    times cores of its nodes.
    """
    since: Ints
    """The second up to which `lost` is counted."""
    leaves: Ints
    """How many nodes come free at the predicted end of a running job: those on which no other job is predicted to stay
    longer.
    """
    shared: Ints
    """The number of nodes that a running job shares."""
    least: Ints
    """The fewest processors of a pool that a job can use; without a pool its fewest nodes: all that it asks for, unless
    it may leave some.
    """
    most: Ints
    """The most processors of a pool that a job can use."""
    held: Ints
    """The processors of a pool that a running job has now; otherwise 0."""
    least_cores: Ints
    """The fewest cores that a job needs of each node on which it has some: 1, unless its programs need more."""


class Nodes(NamedTuple):
    """The residents of nodes. The nodes of a started job are ``place[first[job] : first[job] + jobs.nodes[job]]``."""

    first: Ints
    """Shape ``(jobs + 1,)``."""
    place: Ints
    resident: Ints
    """Shape ``(nodes, layers)``: the owner of a node in column 0, then its guests, then NOBODY."""
    share: Ints
    """Shape ``(nodes, layers)``: the cores that each resident has on the node."""
    up: Ints
    """Shape ``(nodes,)``: 1, or 0 for a node that accepts no job."""
    allowed: Ints
    """Shape ``(partitions, nodes)``: 1 for the nodes of a partition, otherwise 0."""


class State(NamedTuple):
    """The cluster at one moment. Policies read it and never write it."""

    now: int
    free: int
    """Nodes that are up and empty."""
    cores: int
    """Cores of each node."""
    queue: Ints
    """Waiting jobs in order."""
    running: Ints
    """Running jobs in order of predicted end, then of start."""
    jobs: Jobs
    nodes: Nodes
    speed: Ints
    """Shape ``(processors + 1,)``: the work per second of a job, by number of processors of a pool; empty for nodes."""
    contracts: Ints
    """Shape ``(jobs, 4)``, empty without contracts: the seconds of soft and hard deadline, pay-off and penalty."""
    rates: Ints
    """Shape ``(jobs, cores + 1)``: the measured work per second of a job, by cores of each of its nodes, in a unit of
    its own; 0: not measured. Empty if rates are not measured.
    """


class Event(NamedTuple):
    """The events since the last call."""

    kinds: int
    """Sum of the kinds of events."""
    subject: int
    """The job or node if there was one event; otherwise NOBODY."""


class Actions(NamedTuple):
    """The answer of a policy: actions in order; the driver checks each."""

    rows: Ints
    """Shape ``(capacity, 5)``: kind, job, and three numbers that depend on the kind."""
    nodes: Ints
    """The nodes that rows refer to by offset and count."""
    used: Ints
    """Shape ``(2,)``: the numbers of rows and of nodes."""


def compilable(function: F) -> F:
    """Mark a function that policies call: plain Python by itself, machine code inside a compiled policy."""
    register_jitable(forceinline=True)(function)
    return function


def routine(function: F) -> F:
    """Mark a compilable function that is called instead of inlined: long functions compile faster so."""
    register_jitable(function)
    return function


def lean(function: F) -> F:
    """Mark a compilable function that neither makes nor returns arrays: without reference counts it is far faster."""
    register_jitable(forceinline=True, _nrt=False)(function)
    return function


def rare(function: F) -> F:
    """Mark a function that few simulations need: it is not inlined, which keeps the loop of the others short."""
    register_jitable(_nrt=False)(function)
    return function


@lean
def add(  # noqa: PLR0917 - a row by position
    actions: Actions, kind: int, job: int, first: int, second: int, third: int
) -> None:
    """Append a row; if there are more rows than the capacity, the driver rejects the whole answer."""
    row = actions.used[0]
    actions.used[0] = row + 1
    if row < len(actions.rows):
        actions.rows[row, 0] = kind
        actions.rows[row, 1] = job
        actions.rows[row, 2] = first
        actions.rows[row, 3] = second
        actions.rows[row, 4] = third


@lean
def start(actions: Actions, job: int) -> None:
    """Start a waiting job with all its cores on free nodes, which the driver chooses (the lowest numbers).

    `job` is its index. The driver rejects the row unless the job waits and ``jobs.nodes[job]`` nodes are free.
    """
    add(actions, START, job, 0, 0, 0)


@lean
def place(actions: Actions, job: int, nodes: Ints, cores: int) -> None:
    """Start a waiting job on these nodes.

    `job` is its index, `nodes` are ``jobs.nodes[job]`` different node numbers, and `cores` is the number of cores that
    it gets of each. Residents must have given up as many cores in earlier rows; otherwise the driver rejects the row.
    """
    add(actions, PLACE, job, append(actions, nodes), len(nodes), cores)


@lean
def place_run(actions: Actions, job: int, first: int, count: int, cores: int) -> None:
    """Start a waiting job on `count` consecutive nodes from `first` on, with `cores` cores of each, as `place` does."""
    offset = actions.used[1]
    actions.used[1] = offset + count
    if actions.used[1] <= len(actions.nodes):
        for i in range(count):
            actions.nodes[offset + i] = first + i
    add(actions, PLACE, job, offset, count, cores)


@lean
def resize(actions: Actions, job: int, nodes: Ints, cores: int) -> None:
    """Shrink or expand a running job on some of its nodes.

    `job` is its index, `nodes` are numbers of nodes that it has, and `cores` is the number of cores that it gets of
    each of them: at least 1, and where it shrinks at least ``jobs.least_cores[job]``; or 0 if it has cores on at least
    ``jobs.least[job]`` others of its nodes. The driver rejects the row if a node lacks these cores, or if the job is
    not malleable.
    """
    add(actions, RESIZE, job, append(actions, nodes), len(nodes), cores)


@lean
def allot(actions: Actions, job: int, processors: int) -> None:
    """Start, shrink or expand a job on a pool; the driver chooses the processors.

    `job` is the index of a waiting or running job, `processors` its new number of processors, at least 1. The driver
    rejects the row if the pool lacks these processors, if the policy lacks ``POOL = True``, if a rigid job gets another
    number than it requests, or if a running job is not malleable.
    """
    add(actions, ALLOT, job, 0, 0, processors)


@lean
def set_limit(actions: Actions, job: int, limit: int) -> None:
    """Set the limit of a running job to `limit` seconds from its start; its predicted end moves accordingly.

    The driver rejects the row if the job does not run, or would already have ended.
    """
    add(actions, LIMIT, job, limit, 0, 0)


@lean
def plan(actions: Actions, job: int, when: int) -> None:
    """Record the second `when` at which a waiting job is expected to start, for the next call and for users."""
    add(actions, PLAN, job, when, 0, 0)


@lean
def append(actions: Actions, nodes: Ints) -> int:
    """Copy nodes into the answer and return their offset; nodes beyond the capacity are only counted."""
    offset = actions.used[1]
    actions.used[1] = offset + len(nodes)
    if actions.used[1] <= len(actions.nodes):
        for i in range(len(nodes)):
            actions.nodes[offset + i] = nodes[i]
    return int(offset)


@compilable
def nodes_of(state: State, job: int) -> Ints:
    """Return the nodes of a started job, in the order in which they were given."""
    first = state.nodes.first[job]
    return state.nodes.place[first : first + state.jobs.nodes[job]]
