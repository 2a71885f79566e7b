# SPDX-License-Identifier: Apache-2.0
"""The static trial of a backfilling pass, for `slurm` and `sd`: when a job can start, and what is reserved for it.

Reservations are numbers of nodes, or with ``reservations=nodes`` sets of them (`drom.scheduler.policies.timetable`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from drom.scheduler.interface import NEVER, NOBODY, PLACE, add, lean, place_run, plan, routine, start
from drom.scheduler.policies.nodesets import WORD, ZERO, contains
from drom.scheduler.policies.profile import Profile, earliest, take
from drom.scheduler.policies.timetable import FOUND, Timetable, choose, counts_of, find, has_sets, hold, timetable_of

if TYPE_CHECKING:
    from drom.scheduler.interface import Actions, Ints, State
    from drom.scheduler.policies.nodesets import Words


class Plan(NamedTuple):
    """The reservations of a pass, and its settings."""

    table: Timetable
    """Free nodes, less all reservations of this pass."""
    contiguous: int
    window: int
    resolution: int


@routine
def table_of(state: State, on_nodes: int, reservations: int) -> Timetable:
    """Return a timetable without reservations."""
    return timetable_of(state, reservations) if on_nodes else counts_of(state, reservations)


@lean
def get_start(state: State, known: Plan, j: int) -> int:
    """Return when a job could start on free nodes: now, or the time of its reservation."""
    need, length = state.jobs.nodes[j], state.jobs.requested[j]
    if has_sets(known.table):
        return find(known.table, need, length, state.jobs.partition[j], known.contiguous)
    begin = earliest(known.table.profile, need, length)
    if begin == state.now and known.contiguous and free_run(state, need) == NOBODY:
        return next_end(state)
    return begin


@lean
def start_now(state: State, known: Plan, j: int, actions: Actions) -> None:
    """Start a job on the free nodes found for it."""
    need, until = state.jobs.nodes[j], state.now + state.jobs.requested[j]
    if has_sets(known.table):
        place_set(actions, j, known.table.sets[FOUND], state.cores)
        hold(known.table, state.now, until, state.now, NEVER)
    elif known.contiguous:
        place_run(actions, j, free_run(state, need), need, state.cores)
    else:
        start(actions, j)
        take(known.table.profile, state.now, until, need)


@lean
def reserve_for(  # noqa: PLR0917 - numba wants them by position
    state: State, known: Plan, j: int, begin: int, rank: int, actions: Actions
) -> None:
    """Reserve nodes for a job from its predicted start on, unless it lies beyond the window."""
    if begin > state.now + known.window:
        return
    if state.jobs.planned[j] != begin:
        plan(actions, j, begin)
    if has_sets(known.table):
        end, resolution = begin + state.jobs.requested[j], known.resolution
        hold(known.table, begin - begin % resolution, end - end % resolution, begin, rank)
    else:
        reserve_numbers(state, known, known.table.profile, j, begin)


@lean
def reserve_numbers(state: State, known: Plan, profile: Profile, j: int, begin: int) -> None:
    """Take a job's nodes out of a profile, both ends of its time rounded down, unless it starts beyond the window."""
    if begin <= state.now + known.window:
        end, resolution = begin + state.jobs.requested[j], known.resolution
        take(profile, begin - begin % resolution, end - end % resolution, state.jobs.nodes[j])


@routine
def start_heads(state: State, on_nodes: int, contiguous: int, actions: Actions) -> int:
    """Start heads of the queue while they fit, and return how many."""
    if not on_nodes:
        return start_heads_by_number(state, actions)
    known, started = Plan(timetable_of(state, len(state.queue)), contiguous, 0, 1), 0
    while started < len(state.queue) and starts_at_once(state, known, state.queue[started], actions):
        started += 1
    return started


@lean
def start_heads_by_number(state: State, actions: Actions) -> int:
    """Start heads of the queue while enough nodes are free, and return how many."""
    free, started = state.free, 0
    for job in state.queue:
        if state.jobs.nodes[job] > free:
            break
        start(actions, job)
        free -= state.jobs.nodes[job]
        started += 1
    return started


@lean
def starts_at_once(state: State, known: Plan, j: int, actions: Actions) -> bool:
    """Start a job if there are nodes for it now, and return whether it started."""
    jobs, now = state.jobs, state.now
    if not choose(known.table, jobs.nodes[j], now, now + 1, jobs.partition[j], known.contiguous):
        return False
    start_now(state, known, j, actions)
    return True


@lean
def place_set(actions: Actions, job: int, nodes: Words, cores: int) -> None:
    """Start a job on these nodes with `cores` cores of each."""
    offset = actions.used[1]
    for i in range(len(nodes)):
        if nodes[i] == ZERO:
            continue
        for node in range(i * WORD, (i + 1) * WORD):
            if contains(nodes, node):
                if actions.used[1] < len(actions.nodes):
                    actions.nodes[actions.used[1]] = node
                actions.used[1] += 1
    add(actions, PLACE, job, offset, actions.used[1] - offset, cores)


@lean
def smallest_from(state: State, queue: Ints, least: Ints) -> None:
    """Store for each place of the queue the node count of the smallest job from there on."""
    smallest = NEVER
    for place in range(len(queue) - 1, -1, -1):
        smallest = min(smallest, state.jobs.nodes[queue[place]])
        least[place] = smallest


@lean
def free_run(state: State, count: int) -> int:
    """Return the first node of the first run of `count` consecutive free nodes; NOBODY if there is none."""
    run = 0
    for node in range(len(state.nodes.up)):
        run = run + 1 if state.nodes.up[node] and state.nodes.resident[node, 0] == NOBODY else 0
        if run == count:
            return node - count + 1
    return NOBODY


@lean
def next_end(state: State) -> int:
    """Return the next predicted end of a running job after now; NEVER if there is none."""
    for job in state.running:
        if state.jobs.ends[job] > state.now:
            return int(state.jobs.ends[job])
    return NEVER
