# SPDX-License-Identifier: Apache-2.0
"""The whole state of a simulation as arrays: the part that policies see, and the part that only the simulator uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.interface import (
    FUTURE,
    MALLEABLE,
    NEVER,
    NOBODY,
    Actions,
    Event,
    Ints,
    Jobs,
    Nodes,
    State,
    lean,
)
from drom.scheduler.predictors.knowledge import RuntimeKnowledge, knowledge_of

if TYPE_CHECKING:
    from drom.workloads.workload import Workload

NOW, FREE, CORES, QUEUED, RUNNERS, SUBMISSIONS, WAKE, STARTS = range(8)
PENDING, CHANGES, MODEL, RULE, EVENTS, FAULT, CULPRIT, BUSY, RESIZES, SLOT, RESIDUAL, RESIDUES, FORESEES = range(8, 21)
SHORTENED, OUTAGE, DOWN, FAILURES, CHECKPOINT, RESTART, LOSES = range(21, 28)
OFF_AFTER, WAKE_UP, OFF_TIME, WAKES = range(28, 32)
NODE_GUESTS, NODE_CHANGES, DATA_MOVED = range(32, 35)
SCALARS = 35
"""Places in `World.scalars`. PENDING: ends in the heap; CHANGES: jobs in `changed`; CULPRIT: whom FAULT is about;
BUSY: node seconds with a job on the node; RESIZES: changes of the cores or processors of running jobs; SLOT: the policy
is called at multiples of so many seconds; RESIDUAL, RESIDUES: as `residues` says; FORESEES: 1 with predicted run
times; SHORTENED: limits that a policy has made shorter; OUTAGE: the next row of `outages`; DOWN: nodes that are down;
FAILURES: rows of `failures` in use; CHECKPOINT, RESTART, LOSES: as `Outages` says; OFF_AFTER, WAKE_UP: as `Sleep` says;
OFF_TIME: node seconds for which nodes have been off that were turned on again; WAKES: how many that were; NODE_GUESTS:
starts on nodes that their owners left; NODE_CHANGES: changes of nodes of running jobs; DATA_MOVED: the data that moved
by these, in parts of NODE_UNIT of those of a node."""

(
    NO_FAULT,
    TOO_MANY_ROWS,
    UNKNOWN_ACTION,
    NOT_WAITING,
    NO_ROOM,
    NOT_RUNNING,
    NOT_ITS_NODE,
    BAD_SHARE,
    TOO_SHORT,
    IN_THE_PAST,
    WRONG_CLASS,
    WRONG_PARTITION,
    WRONG_MACHINE,
) = range(13)
"""What a policy can do wrong."""

JOB, LEFT, LEAST, MOST = range(4)
"""Columns of `World.phases`."""
WHEN, NODE, IS_UP = range(3)
"""Columns of `World.outages`."""
FAILED_JOB, BEGUN, FAILED, ON_NODE, WASTED = range(5)
"""Columns of `World.failures`."""

STALL, SHRINK, EXPAND, TRANSFER = range(4)
"""Places in `World.stall`, each in millionths of a second: of any change; per processor of the larger number, when
shrinking and when expanding; of all data of a job of a pool, or of those of a node, through one link."""

NODE_UNIT = 1000
"""Parts of a node in `rate_on_fewer` and `DATA_MOVED`."""
SPEED_UNIT = 1000
"""Speed 1 in `World.node_speed`."""

BLOCK_BITS = 6
BLOCK = 1 << BLOCK_BITS
"""Nodes per block of `free_in_block`."""

UNLIMITED = NEVER >> 1
"""The limit of a job that has none."""

INSTANT, PYSS, CQSIM = 0, 1, 2
EVENT_RULES = {"instant": INSTANT, "pyss": PYSS, "cqsim": CQSIM}
IDEAL, WORST = 0, 1
RUNTIME_MODELS = {"ideal": IDEAL, "worst": WORST}


class Pool(NamedTuple):
    """Settings of a pool of processors: the range of each job, the speeds, and the cost of a change."""

    least: Ints
    most: Ints
    speed: Ints
    """As in `World`."""
    stall: Ints
    """As in `World`."""
    residual: int = 0
    """The part of a processor that a residual process uses, in millionths."""
    phases: Ints = np.zeros((0, 4), np.int64)
    upcoming: Ints = np.zeros(0, np.int64)
    """As in `World`."""


class Outages(NamedTuple):
    """When nodes go down and come back, and what becomes of the jobs on them."""

    table: Ints = np.zeros((0, 3), np.int64)
    """As `outages` in `World`; each node that goes down comes back."""
    checkpoint: int = 0
    """A job is saved each time that it has done so many seconds of work; 0: never."""
    restart: int = 0
    """Seconds of work, not more than `checkpoint`, that a job takes to go on from a checkpoint."""
    loses: bool = False
    """Whether a job whose node goes down is lost; otherwise it joins the queue again."""


class Leaving(NamedTuple):
    """Settings of jobs that may leave whole nodes of theirs."""

    least: Ints
    """The fewest nodes of each job."""
    curve: Ints
    """As `node_curve` in `World`."""
    stall: Ints
    """As in `World`."""


NO_OUTAGES = Outages()
ALIKE: Ints = np.zeros(0, np.int64)
"""The `World.node_speed` of nodes that are all alike."""


class Sleep(NamedTuple):
    """When nodes without jobs are turned off, in seconds."""

    after: int
    """A node is turned off when it has had no job for so long."""
    wake: int
    """The time that it then takes until a job can start on it."""


class World(NamedTuple):
    """The state of a simulation. Arrays are int64, of shape ``(jobs,)`` unless stated otherwise."""

    jobs: Jobs
    nodes: Nodes
    queue: Ints
    running: Ints
    heap: Ints
    """Running jobs as a binary heap by real end, then by order of start."""
    at: Ints
    """The position of a job in the heap; NOBODY if it is not in it."""
    run: Ints
    """Seconds a job needs with all its resources."""
    end: Ints
    """Real end: predicted for running jobs from their present speed, or when their demand changes before it; NEVER
    before the start."""
    order: Ints
    """The number of jobs that had started before this one."""
    left: Ints
    """Work left at `jobs.since`, in seconds times cores of its nodes; with unlike nodes in parts of SPEED_UNIT."""
    rate: Ints
    """Cores that work counts for at present: ``left`` falls by this much each second."""
    cause: Ints
    """Kinds of events at the call that started the job."""
    given: Ints
    """Cores that a job was given of each of its nodes at its start; 0 before it."""
    changed: Ints
    """Jobs marked because their shares have changed since their end was last calculated."""
    free_in_block: Ints
    speed: Ints
    """Shape ``(processors + 1,)``: the work per second of a job, by number of processors of a pool; empty for nodes."""
    stall: Ints
    """The costs of a change of processors or nodes, of shape ``(4,)``."""
    phases: Ints
    """Shape ``(phases + 1, 4)``, empty if no job evolves: a job, how much work it has left when a phase begins, and
    the fewest and most processors it can use from then on. By job, then in order; the last row belongs to no job.
    """
    upcoming: Ints
    """The row of the next phase of each job, or of another job; empty if no job evolves."""
    contracts: Ints
    """As in `State`."""
    rates: Ints
    """As in `State`."""
    foresight: RuntimeKnowledge
    outages: Ints
    """Shape ``(changes, 3)``: a second, a node, and 1 if it comes back, 0 if it goes down; in order of seconds."""
    kept: Ints
    """Seconds of work of each job that are in a checkpoint; empty if no node goes down."""
    failures: Ints
    """Shape ``(most, 5)``: a job, its start and its end by the failure of a node, this node, and the work, in seconds
    times cores of the job's nodes, that is not in a checkpoint.
    """
    empty_since: Ints
    """Shape ``(nodes,)``: since when a node has had no job, if it has none now; empty if nodes stay on."""
    taken: Ints
    """When a job got its nodes, which may be before its start; empty if nodes stay on."""
    node_speed: Ints
    """Shape ``(nodes,)``: the work of a core of each node per second, in parts of SPEED_UNIT; empty if all do 1."""
    node_curve: Ints
    """Shape ``(nodes + 1,)``: the work per second of a job, by number of nodes; empty if no job may leave nodes."""
    away: Ints
    """The number of nodes of a job on which it has no cores; empty if no job may leave nodes."""
    charged: Ints
    """The same, as of the last change of nodes for which the job was charged."""
    scalars: Ints


def make_world(
    work: Workload,
    nodes: int,
    cores: int,
    rule: int,
    *,
    cls: Ints | None = None,
    priority: Ints | None = None,
    layers: int = 2,
    model: int = WORST,
    allowed: Ints | None = None,
    pool: Pool | None = None,
    slot: int = 1,
    contracts: Ints | None = None,
    foresees: bool = False,
    measured: bool = False,
    outages: Outages = NO_OUTAGES,
    sleep: Sleep | None = None,
    node_speed: Ints = ALIKE,
    leaving: Leaving | None = None,
) -> World:
    """Return the world before its first event. `work` is cleaned: its size is `allocated`, in order of submission.

    If the policy is called at multiples of `slot` seconds, requested times count in whole slots. The nodes of a `pool`
    are its processors, of one core each. The simulation does not track which job has which processor, and jobs of a
    pool have no limit, because a job takes longer on few processors. If run times are predicted, a job has as much
    work as it can do in its requested time, and no other limit. `measured`: whether rates are measured.
    """
    count = len(work)
    none = np.zeros(0, np.int64)

    def column(value: int) -> Ints:
        return np.full(count, value, np.int64)

    need = -(-work.allocated // cores)
    ranged = pool or leaving
    requested = -(-work.requested_time // slot) * slot
    expected = -(-work.run_time // slot) * slot if rule == CQSIM else requested
    jobs = Jobs(
        submit=work.submit.copy(),
        requested=expected.copy(),
        nodes=need,
        cores=work.allocated.copy(),
        cls=column(MALLEABLE) if cls is None else cls.astype(np.int64),
        partition=column(NOBODY),
        priority=column(0) if priority is None else priority,
        state=column(FUTURE),
        start=column(NEVER),
        limit=requested.copy() if pool is None else column(UNLIMITED),
        ends=column(NEVER),
        planned=column(NEVER),
        lent=column(0),
        lost=column(0),
        since=column(0),
        leaves=column(0),
        shared=column(0),
        least=need.copy() if ranged is None else ranged.least,
        most=need.copy() if pool is None else pool.most,
        held=column(0),
        least_cores=column(1),
    )
    first = np.zeros(count + 1, np.int64)
    if pool is None:
        np.cumsum(need, out=first[1:])
    house = Nodes(
        first=first,
        place=np.full(int(first[-1]), NOBODY, np.int64),
        resident=np.full((nodes, layers), NOBODY, np.int64),
        share=np.zeros((nodes, layers), np.int64),
        up=np.ones(nodes, np.int64),
        allowed=np.zeros((0, nodes), np.int64) if allowed is None else allowed,
    )
    blocks = np.full(-(-nodes // BLOCK), BLOCK, np.int64)
    blocks[-1] = nodes - BLOCK * (len(blocks) - 1)
    scalars = np.zeros(SCALARS, np.int64)
    scalars[[FREE, CORES, WAKE, MODEL, RULE, SLOT]] = nodes, cores, NEVER, model, rule, slot
    scalars[RESIDUAL] = 0 if pool is None else pool.residual
    scalars[FORESEES] = foresees
    scalars[[CHECKPOINT, RESTART, LOSES]] = outages.checkpoint, outages.restart, outages.loses
    if sleep:
        scalars[[OFF_AFTER, WAKE_UP]] = sleep
    held = min(count, nodes * layers)
    return World(
        jobs=jobs,
        nodes=house,
        queue=column(NOBODY),
        running=np.full(held, NOBODY, np.int64),
        heap=np.full(2 * held, NOBODY, np.int64),
        at=column(NOBODY),
        run=np.minimum(work.run_time, work.requested_time) if foresees else work.run_time.copy(),
        end=column(NEVER),
        order=column(NOBODY),
        left=column(0),
        rate=column(0),
        cause=column(0),
        given=column(0),
        changed=np.full(count, NOBODY, np.int64),
        free_in_block=blocks,
        speed=np.zeros(0, np.int64) if pool is None else pool.speed,
        stall=np.zeros(4, np.int64) if ranged is None else ranged.stall,
        phases=np.zeros((0, 4), np.int64) if pool is None else pool.phases,
        upcoming=np.zeros(0, np.int64) if pool is None else pool.upcoming,
        contracts=np.zeros((0, 4), np.int64) if contracts is None else contracts,
        rates=np.zeros((count, cores + 1) if measured else (0, 0), np.int64),
        foresight=knowledge_of(work if foresees else None),
        outages=outages.table,
        kept=np.zeros(count if len(outages.table) else 0, np.int64),
        failures=np.zeros((layers * len(outages.table) // 2, 5), np.int64),
        empty_since=np.full(nodes if sleep else 0, work.submit.min() if count else 0, np.int64),
        taken=column(NEVER) if sleep else np.zeros(0, np.int64),
        node_speed=node_speed,
        node_curve=leaving.curve if leaving else none,
        away=column(0) if leaving else none,
        charged=column(0) if leaving else none,
        scalars=scalars,
    )


def make_actions(world: World) -> Actions:
    """Return an empty answer of a policy, with room for a few rows for each job and a few places for each node."""
    jobs = len(world.queue)
    return Actions(
        rows=np.zeros((2 * jobs + 4 * len(world.running) + 16, 5), np.int64),
        nodes=np.zeros(8 * world.nodes.resident.size + 16, np.int64),
        used=np.zeros(2, np.int64),
    )


@lean
def is_pool(world: World) -> bool:
    """Return whether jobs share processors rather than have nodes."""
    return len(world.speed) > 0


@lean
def view(world: World) -> State:
    """Return the part of the state that a policy sees."""
    s = world.scalars
    return State(
        s[NOW],
        s[FREE],
        s[CORES],
        world.queue[: s[QUEUED]],
        world.running[: s[RUNNERS]],
        world.jobs,
        world.nodes,
        world.speed,
        world.contracts,
        world.rates,
    )


NOTHING = Event(0, NOBODY)
