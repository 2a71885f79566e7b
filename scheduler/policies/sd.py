# SPDX-License-Identifier: Apache-2.0
"""SD-Policy: backfilling that starts a malleable job on running ones that shrink for it, if it then ends earlier.

The policy of D'Amico, Jokanovic and Corbalan (ICPP 2019). It is `slurm` with a second trial for each job, right after
the first (Listing 1): the job starts now, as guest on the nodes of its mates, if it then ends earlier than if it waits
for its reservation. `sd_mates` chooses the mates (Listing 2). If there are none, jobs that can run on fewer nodes may
leave some of theirs (`sd_nodes`). docs/reproduction.md lists all decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.interface import (
    MALLEABLE,
    NEVER,
    NOBODY,
    RIGID,
    Actions,
    Event,
    Floats,
    State,
    lean,
    nodes_of,
    place,
    resize,
    routine,
    set_limit,
)
from drom.scheduler.policies import slurm
from drom.scheduler.policies.backfill import (
    Plan,
    get_start,
    reserve_for,
    reserve_numbers,
    smallest_from,
    start_heads,
    start_now,
    table_of,
)
from drom.scheduler.policies.nodesets import count, fill, keep_lowest, members
from drom.scheduler.policies.profile import least_free, take
from drom.scheduler.policies.sd_feedback import share_of
from drom.scheduler.policies.sd_mates import (
    LEFT,
    Reach,
    Rules,
    extend,
    filter_and_sort,
    longest_guest,
    loss,
    may_find,
    may_host,
    nodes_of_all,
    pick_mates,
    reach_of,
    spares_reserved,
    stretch,
    stretched,
)
from drom.scheduler.policies.sd_nodes import (
    delay_by,
    increase_by,
    leavers_of,
    nodes_left,
    pick_leavers,
    spare_at_most,
    spare_of_running,
)
from drom.scheduler.policies.sd_parameters import FAR, OPTIONS, RECOMPUTE, TEST, WORDS, check, rules_of, with_share
from drom.scheduler.policies.timetable import FREE, USABLE, Timetable, available, counts_of, has_sets, narrow

if TYPE_CHECKING:
    from drom.scheduler.interface import Ints

__all__ = ["OPTIONS", "WORDS", "check", "decide"]
"""What makes a module a policy."""


class Pass(NamedTuple):
    """The values that a pass uses beside the state."""

    rules: Rules
    test: bool
    """Whether a job shares nodes only if it then ends earlier."""
    far: bool
    """Whether a start beyond the window counts as predicted."""
    plan: Plan
    queue: Ints
    """The jobs to try, in order."""
    least: Ints
    """For each place of the queue, the node count of the smallest job from there on."""
    guarded: Timetable
    """Free nodes, less the reservations that mates may not delay; with sets of nodes, the profile of the plan."""
    reach: Reach
    spare: Ints
    """How many nodes each running job may leave."""
    latest: int
    """The job that started last in this second; NOBODY if none did."""
    tally: Ints
    """Started jobs of this pass, reservations, the last place of the queue whose job may find mates."""


FRESH, RESERVED, HOPE = range(3)
"""Places in `Pass.tally`."""

STARTED, WAITS, ANEW, TRIES = range(4)
"""What comes of a job in a pass: it has started on free nodes; it has a reservation; it has started, and the pass is to
be made anew; its malleable trial is due."""


def decide(state: State, _event: Event, options: Floats, actions: Actions) -> int:
    """Make a pass when one is due, with limits corrected first; between passes wait for the next one."""
    if options[RECOMPUTE] > 0 and correct_limits(state, actions):
        return int(state.now)
    interval = int(options[slurm.INTERVAL])
    since = (state.now - int(options[slurm.PHASE])) % interval
    if since == 0:
        return make_pass(state, options, actions)
    started = 0
    if options[slurm.MAIN] > 0:
        started = start_heads(state, int(options[slurm.RESERVATIONS]), int(options[slurm.CONTIGUOUS]), actions)
    return int(state.now - since + interval) if started < len(state.queue) else NEVER


@routine
def make_pass(state: State, options: Floats, actions: Actions) -> int:
    """Schedule the first `depth` jobs one after the other; return the time of the next call.

    A malleable start changes the ends of running jobs, so the pass is repeated after it. Jobs up to the one that
    started last are then tried statically only, as they have been tried already. The pass is also repeated before the
    first malleable trial after a static start, as the started job may be a mate at once: if `may_find` allows the
    trial, by the cut-off of this pass. The new pass has a new cut-off under DynAVGSD (docs/simulate.md has the rule).
    """
    known, i = pass_of(state, options), 0
    while len(known.queue) > 0:
        i, begin, outcome = go_on(state, known, i, actions)
        if i == len(known.queue):
            break
        if outcome == ANEW or known.tally[FRESH] > 0:
            return int(state.now)
        j = known.queue[i]
        if starts_on_shares(state, known, j, begin, actions) or starts_on_left_nodes(state, known, j, begin, actions):
            return int(state.now)
        reserve(state, known, j, begin, actions)
        i += 1
    return NEVER


@routine
def pass_of(state: State, options: Floats) -> Pass:
    """Return the values of a pass before the first trial; the queue is empty if no job can start."""
    rules = rules_of(state, options)
    latest, started = starts_now(state)
    queue = state.queue[: max(0, int(options[slurm.DEPTH]) - started)]
    reach, least, tally = reach_of(state, rules, queue), np.empty(len(queue), np.int64), np.zeros(3, np.int64)
    spare = np.zeros(len(state.running), np.int64) if rules.contiguous else spare_of_running(state)
    reach.used[LEFT] = spare.sum()
    smallest_from(state, queue, least)
    tally[HOPE] = last_candidate(state, rules, reach, latest, queue, -1)
    if len(queue) > 0 and state.free < least[0] and tally[HOPE] < 0:
        queue = queue[:0]
    table = table_of(state, int(options[slurm.RESERVATIONS]), len(queue))
    guarded = counts_of(state, len(queue)) if rules.guard > 0 and not has_sets(table) else table
    known = slurm.plan_with(table, options)
    return Pass(rules, options[TEST] > 0, options[FAR] > 0, known, queue, least, guarded, reach, spare, latest, tally)


@lean
def go_on(state: State, known: Pass, place: int, actions: Actions) -> tuple[int, int, int]:
    """Try the jobs from a place of the queue on, up to the first that does more than start or wait.

    Return its place, when it could start on free nodes, and its result; the length of the queue if there is none.
    """
    queue, tally = known.queue, known.tally
    for i in range(place, len(queue)):
        if known.plan.table.profile.free[0] < known.least[i] and i > tally[HOPE]:
            break
        begin = get_start(state, known.plan, queue[i])
        outcome = schedule(state, known, queue[i], begin, actions)
        if outcome == STARTED:
            tally[HOPE] = last_candidate(state, known.rules, known.reach, known.latest, queue, tally[HOPE])
        elif outcome != WAITS:
            return i, begin, outcome
    return len(queue), NEVER, WAITS


@lean
def schedule(state: State, known: Pass, j: int, begin: int, actions: Actions) -> int:
    """Start a job on free nodes; otherwise report that it may start on mates' nodes, or reserve (Listing 1)."""
    if begin == state.now:
        return run_job(state, known, j, actions)
    if tries_shares(state, known, j, begin) or may_have_left(state, known.reach, known.latest, j):
        return TRIES
    reserve(state, known, j, begin, actions)
    return WAITS


@lean
def tries_shares(state: State, known: Pass, j: int, begin: int) -> bool:
    """Return whether a job is to be tried on the nodes of mates that shrink."""
    return ends_earlier(state, known, j, begin, known.rules.most) and may_share(
        state, known.rules, known.reach, known.latest, j
    )


@lean
def ends_earlier(state: State, known: Pass, j: int, begin: int, share: int) -> bool:
    """Return whether a job that starts now with this share ends earlier than if it waited, or need not (D1)."""
    length = state.jobs.requested[j]
    return is_before_reserved(
        state, known, j, begin, state.now + stretch(length, known.rules.cores, share) if share > 0 else NEVER
    )


@lean
def is_before_reserved(state: State, known: Pass, j: int, begin: int, mall_end: int) -> bool:
    """Return whether an end is earlier than that of a job that waits for its reservation, or need not be (D1)."""
    reserved = known.far or begin <= state.now + known.plan.window
    return bool(not known.test or (begin + state.jobs.requested[j] if reserved else NEVER) > mall_end)


@lean
def run_job(state: State, known: Pass, j: int, actions: Actions) -> int:
    """Start a job on free nodes; if nodes are known by number but must be contiguous, the pass is repeated."""
    jobs, rules, until = state.jobs, known.rules, state.now + state.jobs.requested[j]
    start_now(state, known.plan, j, actions)
    if rules.contiguous and not has_sets(known.plan.table):
        return ANEW
    if counts_guard(known):
        take(known.guarded.profile, state.now, until, jobs.nodes[j])
    if jobs.cls[j] == MALLEABLE and rules.share > 0:
        extend(known.reach, jobs.nodes[j], longest_guest(state, rules, j, jobs.limit[j], state.now + jobs.limit[j]))
    if not rules.contiguous:
        known.reach.used[LEFT] += spare_at_most(state, j)
    known.tally[FRESH] += 1
    return STARTED


@routine
def starts_on_shares(state: State, known: Pass, j: int, begin: int, actions: Actions) -> bool:
    """Start a job on the nodes of mates that shrink for it; return whether it has any."""
    if not tries_shares(state, known, j, begin):
        return False
    s_mates, share = select_nodes(state, known, j, begin)
    if len(s_mates) > 0:
        update_stats_and_run(state, known, j, s_mates, share, actions)
    return len(s_mates) > 0


@routine
def select_nodes(state: State, known: Pass, j: int, begin: int) -> tuple[Ints, int]:
    """Return the best mates of a job (Listing 2), none if it has no mates, and the share that they give."""
    jobs, rules, table = state.jobs, known.rules, known.plan.table
    spare, length = 0, jobs.requested[j]
    if rules.mix:
        spare = min(jobs.nodes[j] - 1, count_free(state, table, j, stretched(rules, length)))
    if has_sets(table):
        fill(table.sets[USABLE])
        narrow(table, table.sets[USABLE], state.now, state.now + length, jobs.partition[j])
    if rules.feedback:
        return select_measured(state, known, j, begin)
    mates = filter_and_sort(state, rules, length, table)
    choice = pick_mates(state, rules, mates, jobs.nodes[j], spare, length, known.guarded)
    return mates.jobs[choice.picked], rules.share


@routine
def select_measured(state: State, known: Pass, j: int, begin: int) -> tuple[Ints, int]:
    """Return the mates with the largest gain of their nodes by measurements, and the cores that each gives on a node.

    Tries each number of cores that is best for some mate, the largest first, and the usual one with all mates.
    """
    jobs, best, share = state.jobs, NEVER, known.rules.usual
    impact, s_mates = np.inf, np.empty(0, np.int64)
    wanted = np.zeros(state.cores + 1, np.int64)
    wanted[share] = 1
    for job in state.running:
        if jobs.nodes[job] <= jobs.nodes[j] and may_host(state, known.rules, job):
            wanted[share_of(state, job, known.rules.usual, known.rules.least, known.rules.most)] = 1
    for cores in range(state.cores, 0, -1):
        if wanted[cores] == 0 or not ends_earlier(state, known, j, begin, cores):
            continue
        rules = with_share(known.rules, cores)
        mates = filter_and_sort(state, rules, jobs.requested[j], known.plan.table)
        choice = pick_mates(state, rules, mates, jobs.nodes[j], 0, jobs.requested[j], known.guarded)
        better = choice.waste < best or (choice.waste == best and choice.impact < impact)
        if len(choice.picked) > 0 and better:
            best, impact, share, s_mates = choice.waste, choice.impact, cores, mates.jobs[choice.picked]
    return s_mates, share


@lean
def count_free(state: State, table: Timetable, j: int, length: int) -> int:
    """Return how many nodes are free for a job for `length` seconds from now on."""
    if has_sets(table):
        available(table, table.sets[FREE], state.now, state.now + length, state.jobs.partition[j])
        return count(table.sets[FREE])
    return max(0, least_free(table.profile, state.now, state.now + length))


@routine
def update_stats_and_run(  # noqa: PLR0917 - numba wants them by position
    state: State, known: Pass, j: int, s_mates: Ints, share: int, actions: Actions
) -> None:
    """Shrink the mates and extend their limits, then start the guest on their nodes with its longer limit."""
    jobs, rules = state.jobs, with_share(known.rules, share)
    increase = loss(rules, jobs.requested[j])
    for mate in s_mates:
        nodes = nodes_of(state, mate)
        resize(actions, mate, nodes, state.nodes.share[nodes[0], 0] - rules.share)
        set_limit(actions, mate, jobs.limit[mate] + increase)
    nodes = nodes_of_all(state, s_mates)
    spare = jobs.nodes[j] - len(nodes)
    if spare > 0:
        nodes = np.concatenate((nodes, first_free(state, known.plan.table, spare)))
    place(actions, j, nodes, rules.share)
    set_limit(actions, j, stretched(rules, jobs.requested[j]))


@routine
def first_free(state: State, table: Timetable, wanted: int) -> Ints:
    """Return the free nodes with the lowest numbers; if nodes are known, of those counted last."""
    if has_sets(table):
        keep_lowest(table.sets[FREE], wanted)
        return members(table.sets[FREE])
    nodes, found, node = np.empty(wanted, np.int64), 0, 0
    while found < wanted:
        if state.nodes.up[node] and state.nodes.resident[node, 0] == NOBODY:
            nodes[found] = node
            found += 1
        node += 1
    return nodes


@routine
def starts_on_left_nodes(state: State, known: Pass, j: int, begin: int, actions: Actions) -> bool:
    """Start a job on nodes that mates leave, and on free ones, with all their cores; return whether it has any."""
    jobs, rules, table, length = state.jobs, known.rules, known.plan.table, state.jobs.requested[j]
    if not may_have_left(state, known.reach, known.latest, j):
        return False
    if has_sets(table):
        fill(table.sets[USABLE])
        narrow(table, table.sets[USABLE], state.now, state.now + length, jobs.partition[j])
    free = min(jobs.nodes[j] - 1, count_free(state, table, j, length))
    need = jobs.nodes[j] - free
    mates, counts, present, _ = pick_leavers(
        leavers_of(state, rules, table, known.spare, need, length), need, rules.mates
    )
    delay, increase = 0, np.empty(len(mates), np.int64)
    for i, mate in enumerate(mates):
        delay = max(delay, delay_by(state, rules, mate, present[i], counts[i]))
    for i, mate in enumerate(mates):
        increase[i] = increase_by(state, rules, mate, present[i], counts[i], delay + length)
    if len(mates) == 0 or not is_before_reserved(state, known, j, begin, state.now + delay + length):
        return False
    stays = free == 0 or count_free(state, table, j, delay + length) >= free
    if not stays or not spares_reserved(state, rules, mates, increase.max(), known.guarded):
        return False
    nodes = first_free(state, table, free)
    for i, mate in enumerate(mates):
        left = nodes_left(state, table, mate, counts[i])
        resize(actions, mate, left, 0)
        set_limit(actions, mate, jobs.limit[mate] + increase[i])
        nodes = np.concatenate((nodes, left))
    place(actions, j, nodes, state.cores)
    return True


@lean
def reserve(state: State, known: Pass, j: int, begin: int, actions: Actions) -> None:
    """Reserve nodes for a job from its predicted start on, as `slurm` does."""
    rank = known.tally[RESERVED]
    reserve_for(state, known.plan, j, begin, rank, actions)
    if counts_guard(known) and rank < known.rules.guard:
        reserve_numbers(state, known.plan, known.guarded.profile, j, begin)
    known.tally[RESERVED] += 1


@lean
def counts_guard(known: Pass) -> bool:
    """Return whether the pass keeps a separate profile of the reservations that mates may not delay."""
    return bool(known.rules.guard > 0 and not has_sets(known.plan.table))


@lean
def starts_now(state: State) -> tuple[int, int]:
    """Return the last job, in the queue's order, of those that started in this second, and how many did."""
    jobs, latest, count = state.jobs, NOBODY, 0
    for job in state.running:
        if jobs.start[job] == state.now:
            count += 1
            if latest == NOBODY or is_behind(state, latest, job):
                latest = job
    return int(latest), count


@lean
def is_behind(state: State, first: int, job: int) -> bool:
    """Return whether a job comes later in the queue's order than another."""
    priority = state.jobs.priority
    return bool((-priority[first], first) < (-priority[job], job))


@lean
def may_share(state: State, rules: Rules, reach: Reach, latest: int, j: int) -> bool:
    """Return whether the malleable trial of a job is still to come and may succeed."""
    if rules.share == 0 or state.jobs.cls[j] == RIGID or had_turn(state, latest, j):
        return False
    return may_find(reach, rules, state.jobs.nodes[j], state.jobs.requested[j])


@lean
def may_have_left(state: State, reach: Reach, latest: int, j: int) -> bool:
    """Return whether the trial of a job on nodes that others leave is still to come and may succeed."""
    left = reach.used[LEFT]
    return bool(left > 0 and state.jobs.nodes[j] <= state.free + left and not had_turn(state, latest, j))


@lean
def had_turn(state: State, latest: int, j: int) -> bool:
    """Return whether a job was tried before the job that started last in this second."""
    return bool(latest != NOBODY and not is_behind(state, latest, j))


@lean
def last_candidate(  # noqa: PLR0917 - numba wants them by position
    state: State, rules: Rules, reach: Reach, latest: int, queue: Ints, known: int
) -> int:
    """Return the position in `queue` of the last job that may find mates; `known` if none after `known` may."""
    for i in range(len(queue) - 1, known, -1):
        if may_share(state, rules, reach, latest, queue[i]) or may_have_left(state, reach, latest, queue[i]):
            return i
    return known


@routine
def correct_limits(state: State, actions: Actions) -> bool:
    """Set the limits of jobs that no longer share and have all their cores to the end of their requested work.

    This is decision D17, an option. Return whether any limit was longer: the state shows the new end from the next
    call on.
    """
    jobs, found = state.jobs, False
    for job in state.running:
        if jobs.limit[job] > jobs.requested[job] and jobs.shared[job] == 0 and has_all(state, job):
            limit = jobs.requested[job] - (-jobs.lost[job] // (jobs.nodes[job] * state.cores))
            limit = max(limit, state.now - jobs.start[job] + 1)
            if limit < jobs.limit[job]:
                set_limit(actions, job, limit)
                found = True
    return found


@routine
def has_all(state: State, job: int) -> bool:
    """Return whether a job has all cores of its nodes."""
    least = state.cores
    for node in nodes_of(state, job):
        least = min(least, state.nodes.share[node, 0])
    return bool(least == state.cores)
