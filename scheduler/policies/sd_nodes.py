# SPDX-License-Identifier: Apache-2.0
"""Which running jobs leave whole nodes for a new one, where none can share nodes with it: the second level of `sd`.

The paper (ICPP 2019) resizes jobs within their nodes, and leaves malleability of MPI to future work. Here a malleable
job that can run on fewer nodes than it asks for (``least < nodes``) may also leave nodes, on which it then rests. A
guest that requests W nodes and L seconds starts on f free nodes and on W - f that its mates leave, with all their
cores. A mate gets its nodes back when the guest ends.

While k of its n nodes are left, a mate is slower by at most k / n. With d the seconds until its data have moved to its
other nodes, and r those until they have moved back, it takes

    ceil((d + L) k / n) + d + r

seconds longer: r at most as from its fewest nodes to k more, as other guests may have nodes of it then. Its penalty is
that of Equation 4 with this increase. The guest starts after d, with several mates the longest d, and is started so
only if it then ends earlier than if it waited.

One mate gives all nodes if any can: the one with the lowest penalty. Otherwise those that can leave most give all that
they can, up to `mates` of them. A job is a mate only if its penalty with the most nodes that it would leave is below
the cut-off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.interface import MALLEABLE, NOBODY, lean, routine
from drom.scheduler.policies.change_cost import change_cost, seconds_of
from drom.scheduler.policies.nodesets import contains
from drom.scheduler.policies.sd_mates import Rules, penalty_of
from drom.scheduler.policies.timetable import USABLE, Timetable, has_sets

if TYPE_CHECKING:
    from drom.scheduler.interface import Floats, Ints, State


class Leavers(NamedTuple):
    """Jobs that may leave nodes, or are to leave them."""

    jobs: Ints
    counts: Ints
    """How many nodes each may leave, or is to leave."""
    present: Ints
    """On how many nodes each has cores."""
    penalty: Floats
    """The predicted slowdown of each if it leaves as many as it may."""


@lean
def spare_at_most(state: State, job: int) -> int:
    """Return how many nodes a job may leave if it has cores on all of them."""
    jobs = state.jobs
    return int(jobs.nodes[job] - jobs.least[job]) if jobs.cls[job] == MALLEABLE else 0


@routine
def spare_of_running(state: State) -> Ints:
    """Return how many nodes each running job may leave, in the order of these jobs."""
    spare = np.zeros(len(state.running), np.int64)
    for i, job in enumerate(state.running):
        if spare_at_most(state, job) > 0:
            spare[i] = spare_nodes(state, job)
    return spare


@lean
def spare_nodes(state: State, job: int) -> int:
    """Return how many nodes a job may leave: 0 unless it owns all its nodes, and shares none on which it has cores."""
    jobs, house, present = state.jobs, state.nodes, 0
    if jobs.start[job] > state.now:
        return 0
    for node in house.place[house.first[job] : house.first[job] + jobs.nodes[job]]:
        if house.resident[node, 0] != job or not house.up[node]:
            return 0
        if house.share[node, 0] > 0:
            if house.share[node, 0] != state.cores or house.resident[node, 1] != NOBODY:
                return 0
            present += 1
    return int(present - jobs.least[job])


@lean
def is_usable(state: State, table: Timetable, node: int) -> bool:
    """Return whether a guest may have a node if its owner, which has cores there, leaves it."""
    return bool(state.nodes.share[node, 0] > 0 and (not has_sets(table) or contains(table.sets[USABLE], node)))


@lean
def usable_nodes(state: State, table: Timetable, job: int) -> int:
    """Return how many nodes of a job a guest may have if the job leaves them."""
    house, count = state.nodes, 0
    for node in house.place[house.first[job] : house.first[job] + state.jobs.nodes[job]]:
        count += is_usable(state, table, node)
    return count


@lean
def delay_by(state: State, rules: Rules, job: int, present: int, count: int) -> int:
    """Return how many seconds it takes until the data of a job are off `count` of the nodes on which it has cores."""
    return seconds_of(change_cost(rules.stall, rules.transfer * state.jobs.nodes[job], present, present - count))


@lean
def increase_by(  # noqa: PLR0917 - numba wants them by position
    state: State, rules: Rules, job: int, present: int, count: int, seconds: int
) -> int:
    """Return how much longer a mate takes at most that leaves `count` nodes and has them back after `seconds`."""
    size, least = state.jobs.nodes[job], state.jobs.least[job]
    back = seconds_of(change_cost(rules.stall, rules.transfer * size, least, least + count))
    return int(-(-seconds * count // size) + delay_by(state, rules, job, present, count) + back)


@routine
def leavers_of(  # noqa: PLR0917 - numba wants them by position
    state: State, rules: Rules, table: Timetable, spare: Ints, need: int, length: int
) -> Leavers:
    """Return the running jobs that may leave nodes for a guest that needs `need` of them for `length` seconds.

    `spare` is how many nodes each running job may leave. The jobs are in order of submission.
    """
    found, most = np.argsort(state.running), np.minimum(spare, need)
    present, penalty, count = np.empty(len(found), np.int64), np.empty(len(found), np.float64), 0
    for i in found:
        job = state.running[i]
        if most[i] > 0 and has_sets(table):
            most[i] = min(most[i], usable_nodes(state, table, job))
        if most[i] == 0:
            continue
        here = state.jobs.least[job] + spare[i]
        gone = delay_by(state, rules, job, here, most[i]) + length
        p = penalty_of(state, job, increase_by(state, rules, job, here, most[i], gone))
        if p < rules.max_slowdown:
            found[count], present[count], penalty[count] = i, here, p
            count += 1
    found = found[:count]
    return Leavers(state.running[found], most[found], present[:count], penalty[:count])


@routine
def pick_leavers(leavers: Leavers, need: int, most: int) -> Leavers:
    """Return at most `most` of these jobs that leave `need` nodes together; none if none can."""
    order, used = np.argsort(leavers.penalty, kind="mergesort"), 0
    order = order[np.argsort(-leavers.counts[order], kind="mergesort")][:most]
    counts = leavers.counts[order]
    for i in range(len(order)):
        counts[i] = min(counts[i], need)
        need -= counts[i]
        used += counts[i] > 0
    order = order[: used if need == 0 else 0]
    return Leavers(leavers.jobs[order], counts[: len(order)], leavers.present[order], leavers.penalty[order])


@routine
def nodes_left(state: State, table: Timetable, job: int, count: int) -> Ints:
    """Return the nodes that a job leaves: the last of those that it got."""
    house, found = state.nodes, np.empty(count, np.int64)
    for node in house.place[house.first[job] : house.first[job] + state.jobs.nodes[job]][::-1]:
        if count > 0 and is_usable(state, table, node):
            count -= 1
            found[count] = node
    return found
