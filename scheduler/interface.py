# SPDX-License-Identifier: Apache-2.0
"""What a policy is: ``decide(state, event, options, actions) -> when to be called again``.

A policy is a pure function. It reads `state` and `event`, appends to `actions` through the functions below, and returns
the second at which it wants to be called at the latest, or NEVER. One that has started a job, or shortened a limit, may
return ``state.now``: it is called again as soon as its answer has been carried out, and sees what came of it. It does
not know who drives it: a simulator, a live controller, or Slurm. It is plain Python that numba compiles: loops, whole
numbers, arrays. A module that holds one may name parameters in ``OPTIONS``, a dictionary of names and defaults;
`options` holds their values in that order. ``WORDS`` may name values of parameters: a dictionary of dictionaries. One
that says ``POOL = True`` allots numbers of processors instead of nodes, by `allot` alone; `nodes` and `free` then count
processors.

Jobs and nodes are 0-based indices, times and lengths whole seconds, and every array is int64.
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

FUTURE, WAITING, RUNNING, ENDED = 0, 1, 2, 3
"""States of a job: not submitted yet, in the queue, on nodes, gone."""

RIGID, MOLDABLE, MALLEABLE = 0, 1, 2
"""Classes of jobs: has all cores of its nodes; may start on fewer; may also be resized while it runs."""

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

    What a job will really need is not among them.
    """

    submit: Ints
    requested: Ints
    """How long the job is expected to run with all its resources; never changes once it has been submitted."""
    nodes: Ints
    cores: Ints
    """All cores the job asks for, over its nodes."""
    cls: Ints
    partition: Ints
    """The row of `Nodes.allowed` that has the nodes a job may be on; NOBODY: all."""
    priority: Ints
    """The queue is in order of falling priority, then of submission."""
    state: Ints
    start: Ints
    """NEVER until it has started."""
    limit: Ints
    """How long a job may take from its start; of a running one it grows when it lends cores. Where run times are
    predicted it ends nobody: it is how long the job is expected to take, and grows when that has passed."""
    ends: Ints
    """Predicted end of a running job: start + limit."""
    planned: Ints
    """The start that the policy last planned for a waiting job; NEVER without one."""
    lent: Ints
    """How often the job gave up cores for another one."""
    lost: Ints
    """Work that a job did not do because it shared, up to the last change of its shares or its end: in seconds times
    cores of its nodes."""
    since: Ints
    """The second up to which `lost` is counted."""
    leaves: Ints
    """How many nodes come free at the predicted end of a running job: those on which nobody is predicted to stay
    longer."""
    shared: Ints
    """On how many of its nodes a running job is not alone."""
    least: Ints
    """The fewest processors of a pool that a job can use."""
    most: Ints
    """The most processors of a pool that a job can use."""
    held: Ints
    """The processors of a pool that a running job has now; else 0."""


class Nodes(NamedTuple):
    """Who is where. The nodes of a started job are ``place[first[job] : first[job] + jobs.nodes[job]]``."""

    first: Ints
    """Shape ``(jobs + 1,)``."""
    place: Ints
    resident: Ints
    """Shape ``(nodes, layers)``: the owner of a node in column 0, then its guests, then NOBODY."""
    share: Ints
    """Shape ``(nodes, layers)``: the cores that each resident has on the node."""
    up: Ints
    """Shape ``(nodes,)``: 1, or 0 for a node that takes no job."""
    allowed: Ints
    """Shape ``(partitions, nodes)``: 1 for the nodes of a partition, else 0."""


class State(NamedTuple):
    """The cluster at one moment. Policies read it and never write."""

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
    """Shape ``(processors + 1,)``: what a job does in a second on so many processors of a pool; empty for nodes."""
    contracts: Ints
    """Shape ``(jobs, 4)``, empty without contracts: the seconds of soft and hard deadline, pay-off and penalty."""
    rates: Ints
    """Shape ``(jobs, cores + 1)``: what a job was measured to do in a second with so many cores of each of its nodes,
    in a unit of its own; 0: not measured. Empty where nobody measures."""


class Event(NamedTuple):
    """What happened since the last call."""

    kinds: int
    """Sum of the kinds."""
    subject: int
    """The job or node, where one thing happened; else NOBODY."""


class Actions(NamedTuple):
    """What a policy wants done, in this order; the driver checks each."""

    rows: Ints
    """Shape ``(capacity, 5)``: kind, job, and three numbers that depend on the kind."""
    nodes: Ints
    """The nodes that rows refer to by offset and count."""
    used: Ints
    """Shape ``(2,)``: how many rows, how many nodes."""


def compilable(function: F) -> F:
    """Mark a function that policies call: plain Python there, machine code when they are compiled."""
    register_jitable(forceinline=True)(function)
    return function


def routine(function: F) -> F:
    """Mark one that is called rather than copied to where it is used: long ones compile faster so."""
    register_jitable(function)
    return function


def lean(function: F) -> F:
    """Mark a compilable one that neither makes nor returns arrays: it counts no references, and is far faster."""
    register_jitable(forceinline=True, _nrt=False)(function)
    return function


def rare(function: F) -> F:
    """Mark a part that few simulations need: not copied to where it is called, so that the others have a lean loop."""
    register_jitable(_nrt=False)(function)
    return function


@lean
def add(  # noqa: PLR0917 - a row by position
    actions: Actions, kind: int, job: int, first: int, second: int, third: int
) -> None:
    """Append a row; a row beyond the capacity is counted, and the driver refuses the whole answer."""
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
    """Start a job with all its cores on free nodes, which the driver chooses (the lowest numbers)."""
    add(actions, START, job, 0, 0, 0)


@lean
def place(actions: Actions, job: int, nodes: Ints, cores: int) -> None:
    """Start a job on these nodes with so many cores of each; residents must have given up as many before."""
    add(actions, PLACE, job, append(actions, nodes), len(nodes), cores)


@lean
def place_run(actions: Actions, job: int, first: int, count: int, cores: int) -> None:
    """Start a job on so many nodes that follow each other, as `place` does."""
    offset = actions.used[1]
    actions.used[1] = offset + count
    if actions.used[1] <= len(actions.nodes):
        for i in range(count):
            actions.nodes[offset + i] = first + i
    add(actions, PLACE, job, offset, count, cores)


@lean
def resize(actions: Actions, job: int, nodes: Ints, cores: int) -> None:
    """Let a running job have so many cores on each of these nodes of its own: shrink it, or expand it."""
    add(actions, RESIZE, job, append(actions, nodes), len(nodes), cores)


@lean
def allot(actions: Actions, job: int, processors: int) -> None:
    """Let a job have so many processors of a pool, which the driver chooses: start it, shrink it, or expand it."""
    add(actions, ALLOT, job, 0, 0, processors)


@lean
def set_limit(actions: Actions, job: int, limit: int) -> None:
    """Let a running job take so many seconds from its start; its predicted end moves."""
    add(actions, LIMIT, job, limit, 0, 0)


@lean
def plan(actions: Actions, job: int, when: int) -> None:
    """Note when a waiting job is expected to start, for the policy's next call and for people."""
    add(actions, PLAN, job, when, 0, 0)


@lean
def append(actions: Actions, nodes: Ints) -> int:
    """Copy nodes into the answer and return their offset; what does not fit is only counted."""
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
