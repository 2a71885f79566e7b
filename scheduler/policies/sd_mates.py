# SPDX-License-Identifier: Apache-2.0
"""Which running jobs shrink for a new one: Listing 2 and Equations 1 to 4 of SD-Policy (ICPP 2019).

A *guest* that requests W nodes and L seconds starts on all nodes of its *mates*, with ``floor(SharingFactor * cores)``
cores of each, so it takes ``L * cores / share`` at worst (Equation 6). A mate loses ``L`` by it. Times are rounded up.

The penalty of a mate is ``p = (wait + limit + L) / requested`` (Equation 4): its predicted slowdown with the guest;
`limit` holds what it lost to former guests. Penalties are IEEE doubles, divided once and added in the order of mates.

With `feedback`, L in the penalty is the mate's measured loss, and the mates whose nodes gain most come before all
others (`drom.scheduler.policies.sd_feedback`); limits still grow by L, so that no measurement ends a job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.interface import MALLEABLE, NEVER, NOBODY, lean, nodes_of, routine
from drom.scheduler.policies.nodesets import contains_all, contains_any
from drom.scheduler.policies.profile import Profile, least_free, take
from drom.scheduler.policies.sd_feedback import delay, share_of, waste
from drom.scheduler.policies.timetable import USABLE, Timetable, has_sets

if TYPE_CHECKING:
    from drom.scheduler.interface import Floats, Ints, State

FOREVER = 1 << 40

LEFT = 2
"""The place in `Reach.used` of the nodes that running jobs may leave."""


class Rules(NamedTuple):
    """The parameters of the choice, with the names in `drom.scheduler.policies.sd`."""

    share: int
    """Cores of a node that a guest gets; 0 if nodes cannot be shared."""
    cores: int
    max_slowdown: float
    mates: int
    candidates: int
    weighted: bool
    inside: bool
    guests: int
    mix: bool
    guard: int
    min_cores: int
    contiguous: bool
    feedback: bool
    """Whether mates are judged by their measured losses."""
    usual: int
    """The share that is configured."""
    least: int
    most: int
    """Bounds of the share with feedback; otherwise equal to `share`."""
    stall: int
    """The assumed cost of a change of nodes (`drom.scheduler.policies.change_cost`)."""
    transfer: int
    """The assumed time to send the data of a node, in the same unit."""


class Mates(NamedTuple):
    """Candidates by rising waste, then by rising penalty, then in order of submission."""

    jobs: Ints
    penalty: Floats
    weight: Ints
    """Nodes of each."""
    waste: Ints
    """How far the gain of each node is below the greatest possible gain; 0 without feedback."""


class Choice(NamedTuple):
    """The chosen mates by position, empty if no combination fits; their waste on all nodes; the performance impact."""

    picked: Ints
    waste: int
    impact: float


class Reach(NamedTuple):
    """The possible mates by number of nodes: a step for each number that occurs, in rising order."""

    nodes: Ints
    first: Ints
    """The longest request that a mate with this many nodes may be able to host."""
    second: Ints
    """The longest request that a second such mate may be able to host; 0 if there is none."""
    used: Ints
    """Shape ``(3,)``: the number of steps, the longest request of all, and at most how many nodes jobs may leave."""


@lean
def stretched(rules: Rules, length: int) -> int:
    """Return how long a guest takes at worst for work of `length` seconds on whole nodes."""
    return stretch(length, rules.cores, rules.share)


@lean
def stretch(length: int, cores: int, share: int) -> int:
    """Return how long work of `length` seconds takes on `share` of `cores` cores of each node, rounded up."""
    return -(-length * cores // share)


@lean
def loss(rules: Rules, length: int) -> int:
    """Return how much longer the mates take at worst: the share of the guest over its stretched length."""
    return -(-stretched(rules, length) * rules.share // rules.cores)


@lean
def average_slowdown(state: State) -> float:
    """Return the mean predicted slowdown of running jobs, the cut-off DynAVGSD of a pass; 0 if none runs."""
    jobs, total = state.jobs, 0.0
    for job in state.running:
        total += (jobs.ends[job] - jobs.submit[job]) / jobs.requested[job]
    return total / max(1, len(state.running))


@lean
def may_host(state: State, rules: Rules, job: int) -> bool:
    """Return whether a running job is malleable and shares no node; where nodes take several guests it may share."""
    return bool(state.jobs.cls[job] == MALLEABLE and (rules.guests > 1 or state.jobs.shared[job] == 0))


@routine
def has_room(state: State, rules: Rules, job: int) -> bool:
    """Return whether a job has room for a guest: it owns all its nodes, which are up, with equal cores on each."""
    house, nodes = state.nodes, nodes_of(state, job)
    rest = house.share[nodes[0], 0] - rules.share
    if rest < max(rules.min_cores, state.jobs.least_cores[job]):
        return False
    for node in nodes:
        if not house.up[node] or house.resident[node, 0] != job or house.share[node, 0] != rest + rules.share:
            return False
        if rules.guests >= house.resident.shape[1] or house.resident[node, rules.guests] != NOBODY:
            return False
    return True


@lean
def longest_guest(state: State, rules: Rules, job: int, limit: int, end: int) -> int:
    """Return an upper bound of the requested time of guests that a job can host, by its cut-off and its end.

    With feedback the bound ignores the cut-off: a mate may lose nothing.
    """
    jobs, bound = state.jobs, FOREVER
    if rules.inside:
        bound = (end - state.now + 2) * rules.most // (rules.cores - rules.most) + 1
    if rules.max_slowdown < FOREVER and not rules.feedback:
        waited = max(0, min(jobs.start[job], state.now) - jobs.submit[job])
        bound = min(bound, int(rules.max_slowdown * jobs.requested[job]) + 1 - waited - limit)
    return int(bound)


@lean
def extend(reach: Reach, nodes: int, longest: int) -> None:
    """Add one more possible mate."""
    sizes, first, second, used, i = reach.nodes, reach.first, reach.second, reach.used[0], 0
    while i < used and sizes[i] < nodes:
        i += 1
    if i == used or sizes[i] > nodes:
        for k in range(used, i, -1):
            sizes[k], first[k], second[k] = sizes[k - 1], first[k - 1], second[k - 1]
        sizes[i], first[i], second[i] = nodes, 0, 0
        reach.used[0] = used + 1
    reach.used[1] = max(reach.used[1], longest)
    second[i] = max(second[i], min(first[i], longest))
    first[i] = max(first[i], longest)


@routine
def reach_of(state: State, rules: Rules, queue: Ints) -> Reach:
    """Return the reach of the running jobs, for guests in a queue, with room for jobs of the queue that start."""
    room, most = len(state.running) + len(queue), largest(state, queue)
    reach = Reach(np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64), np.zeros(3, np.int64))
    extend_by_running(state, rules, reach, most)
    return reach


@lean
def largest(state: State, queue: Ints) -> int:
    """Return the number of nodes of the largest job in a queue."""
    most = 0
    for job in queue:
        most = max(most, state.jobs.nodes[job])
    return most


@lean
def extend_by_running(state: State, rules: Rules, reach: Reach, most: int) -> None:
    """Add the running jobs of at most `most` nodes."""
    for job in state.running:
        if state.jobs.nodes[job] <= most and may_host(state, rules, job):
            longest = longest_guest(state, rules, job, state.jobs.limit[job], state.jobs.ends[job])
            extend(reach, state.jobs.nodes[job], longest)


@lean
def may_find(reach: Reach, rules: Rules, need: int, length: int) -> bool:
    """Return whether a guest may find mates; exact for at most two mates, otherwise an upper bound."""
    if reach.used[1] < length:
        return False
    sizes, first = reach.nodes, reach.first
    low, high = 0, reach.used[0] - 1
    while high >= 0 and sizes[high] > need:
        high -= 1
    if rules.mix or rules.mates > 2:
        return longest_up_to(reach, high) >= length
    if high >= 0 and sizes[high] == need and first[high] >= length:
        return True
    while rules.mates > 1 and low <= high:
        both = sizes[low] + sizes[high]
        other = reach.second[low] if low == high else first[low]
        if both == need and first[high] >= length and other >= length:
            return True
        if both <= need:
            low += 1
        if both >= need:
            high -= 1
    return False


@lean
def longest_up_to(reach: Reach, last: int) -> int:
    """Return the longest request that a mate up to this step may be able to host."""
    longest = 0
    for i in range(last + 1):
        longest = max(longest, reach.first[i])
    return longest


@routine
def filter_and_sort(state: State, rules: Rules, length: int, table: Timetable) -> Mates:
    """Return the running jobs that may shrink for a guest of `length` seconds, the best `candidates` of them.

    If nodes are known, only jobs all of whose nodes are usable.
    """
    jobs, count, increase, worst = state.jobs, 0, loss(rules, length), stretched(rules, length)
    found = np.empty(len(state.running), np.int64)
    for job in state.running:
        outlasts = not rules.inside or jobs.ends[job] + increase >= state.now + worst
        hosts = outlasts and may_host(state, rules, job)
        below = hosts and penalty_of(state, job, increase_of(state, rules, job, increase, worst)) < rules.max_slowdown
        if below and is_usable(state, table, job) and may_give(state, rules, job) and has_room(state, rules, job):
            found[count] = job
            count += 1
    found = np.sort(found[:count])
    penalty, wasted = np.empty(count, np.float64), np.zeros(count, np.int64)
    for i in range(count):
        penalty[i] = penalty_of(state, found[i], increase_of(state, rules, found[i], increase, worst))
        if rules.feedback:
            wasted[i] = waste(state, found[i], share_had(state, found[i]), rules.share)
    order = np.argsort(penalty, kind="mergesort")
    if rules.feedback:
        order = order[np.argsort(wasted[order], kind="mergesort")]
    if rules.candidates > 0:
        order = order[: rules.candidates]
    return Mates(found[order], penalty[order], jobs.nodes[found[order]], wasted[order])


@lean
def share_had(state: State, job: int) -> int:
    """Return the cores that a job owns of its first node."""
    return int(state.nodes.share[state.nodes.place[state.nodes.first[job]], 0])


@lean
def increase_of(state: State, rules: Rules, job: int, increase: int, seconds: int) -> int:
    """Return how much longer a mate takes: `increase`, or with feedback its measured loss to `seconds` of the guest."""
    return delay(state, job, share_had(state, job), rules.share, seconds) if rules.feedback else increase


@lean
def may_give(state: State, rules: Rules, job: int) -> bool:
    """Return whether a mate may give this share: the usual one, or up to the best one by its measurements."""
    if not rules.feedback or rules.share == rules.usual:
        return True
    return rules.share <= share_of(state, job, rules.usual, rules.least, rules.most)


@lean
def is_usable(state: State, table: Timetable, job: int) -> bool:
    """Return whether a guest may use the nodes of a running job: in its partition, and free of reservations."""
    first = state.nodes.first[job]
    nodes = state.nodes.place[first : first + state.jobs.nodes[job]]
    return not has_sets(table) or contains_all(table.sets[USABLE], nodes)


@lean
def penalty_of(state: State, job: int, increase: int) -> float:
    """Return the predicted slowdown of a mate with one more guest (Equation 4)."""
    jobs = state.jobs
    return float((jobs.start[job] - jobs.submit[job] + jobs.limit[job] + increase) / jobs.requested[job])


@routine
def pick_mates(  # noqa: PLR0917 - numba wants them by position
    state: State, rules: Rules, mates: Mates, need: int, spare: int, length: int, guarded: Timetable
) -> Choice:
    """Return the mates with the least performance impact (Equation 1) that have `need` nodes together (3), by position.

    Up to `spare` free nodes may be among them. Combinations of one mate, of two, ... are tried in the order of the
    candidates; the first of the best is chosen. Penalties rise, so a branch ends at the first mate that brings no
    improvement. With feedback less waste comes before less impact; it rises as well, and penalties among equals.
    """
    best, wasted, picked = np.inf, NEVER, np.empty(0, np.int64)
    at = np.zeros(rules.mates, np.int64)
    nodes, impact = np.zeros(rules.mates + 1, np.int64), np.zeros(rules.mates + 1, np.float64)
    sums = np.zeros(rules.mates + 1, np.int64)
    for size in range(1, rules.mates + 1):
        depth, at[0] = 0, -1
        while depth >= 0:
            at[depth] += 1
            i, last = at[depth], depth == size - 1
            fewest = max(1, need - spare - nodes[depth]) if last else 1
            if i >= len(mates.jobs):
                depth -= 1
                continue
            least = sums[depth] + mates.waste[i] * max(1, need - spare - nodes[depth])
            lower = impact[depth] + added(rules, mates.penalty[i], fewest)
            if least > wasted or (least == wasted and lower >= best):
                depth -= 1
                continue
            nodes[depth + 1] = nodes[depth] + mates.weight[i]
            impact[depth + 1] = impact[depth] + added(rules, mates.penalty[i], mates.weight[i])
            sums[depth + 1] = sums[depth] + mates.waste[i] * mates.weight[i]
            if nodes[depth + 1] > need or (last and nodes[depth + 1] < need - spare):
                continue
            if not last:
                depth += 1
                at[depth] = i
            elif (sums[size] < wasted or (sums[size] == wasted and impact[size] < best)) and is_allowed(
                state, rules, mates.jobs[at[:size]], loss(rules, length), guarded
            ):
                best, wasted, picked = impact[size], sums[size], at[:size].copy()
    return Choice(picked, wasted, best)


@lean
def added(rules: Rules, penalty: float, nodes: int) -> float:
    """Return the contribution of a mate to the performance impact."""
    return penalty * nodes if rules.weighted else penalty


@routine
def is_allowed(state: State, rules: Rules, mates: Ints, increase: int, guarded: Timetable) -> bool:
    """Return whether a combination delays no guarded reservation and is contiguous if it has to be."""
    if rules.contiguous and not is_contiguous(nodes_of_all(state, mates)):
        return False
    return spares_reserved(state, rules, mates, increase, guarded)


@routine
def spares_reserved(state: State, rules: Rules, mates: Ints, increase: int, guarded: Timetable) -> bool:
    """Return whether no guarded reservation is delayed by mates that stay `increase` seconds longer."""
    if rules.guard == 0:
        return True
    if has_sets(guarded):
        return spares_nodes(state, rules, mates, increase, guarded)
    return spares_numbers(state, mates, increase, guarded.profile)


@lean
def spares_nodes(state: State, rules: Rules, mates: Ints, increase: int, guarded: Timetable) -> bool:
    """Return whether no node on which mates stay longer is part of a guarded reservation then."""
    jobs, house = state.jobs, state.nodes
    for mate in mates:
        begin, end = jobs.ends[mate], jobs.ends[mate] + increase
        nodes = house.place[house.first[mate] : house.first[mate] + jobs.nodes[mate]]
        for i in range(guarded.used[1]):
            then = guarded.begin[i] < end and guarded.end[i] > begin
            if then and guarded.rank[i] < rules.guard and contains_any(guarded.held[i], nodes):
                return False
    return True


@routine
def spares_numbers(state: State, mates: Ints, increase: int, guarded: Profile) -> bool:
    """Return whether guarded reservations keep enough nodes while mates stay longer."""
    jobs = state.jobs
    size = guarded.size[0]
    room = size + 2 * len(mates)
    trial = Profile(np.empty(room, np.int64), np.empty(room, np.int64), np.full(1, size))
    trial.times[:size], trial.free[:size] = guarded.times[:size], guarded.free[:size]
    for mate in mates:
        take(trial, jobs.ends[mate], jobs.ends[mate] + increase, jobs.nodes[mate])
    least = 0
    for mate in mates:
        least = min(least, least_free(trial, jobs.ends[mate], jobs.ends[mate] + increase))
    return bool(least == 0)


@routine
def nodes_of_all(state: State, mates: Ints) -> Ints:
    """Return the nodes of all these jobs."""
    count = 0
    for mate in mates:
        count += state.jobs.nodes[mate]
    nodes, count = np.empty(count, np.int64), 0
    for mate in mates:
        nodes[count : count + state.jobs.nodes[mate]] = nodes_of(state, mate)
        count += state.jobs.nodes[mate]
    return nodes


@routine
def is_contiguous(nodes: Ints) -> bool:
    """Return whether nodes, all different, have consecutive numbers."""
    return bool(nodes.max() - nodes.min() == len(nodes) - 1)
