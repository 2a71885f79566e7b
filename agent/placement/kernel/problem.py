"""Decide which cores each task gets, once the number of cores per task is known: problem, greedy placements, bounds.

Nothing here imports numba: `drom.agent.placement.kernel.distributor.kernel` compiles the functions of this module,
`pairs`, `tree` and `search` in place; without numba the same functions run as plain Python.

Constants
    u          unit (a whole core, or a hardware thread), in socket S(u) and in leaf D(u): a memory domain, or the part
               of it in one socket
    c(t)       units that task t gets; j(t) its job; F the fixed tasks; N the new tasks (no unit today)
    h(t, d)    units that task t has today in leaf d
Variables
    x(t, d)    units that task t gets in leaf d, whole, >= 0
Constraints
    sum over d of x(t, d) = c(t)                for each task t
    sum over t of x(t, d) <= units of leaf d    for each leaf d
    x(t, d) = h(t, d)                           for each fixed task t (and it keeps these very units)
Objective, lexicographic, each term minimal
    1. sharing   sum over sockets of max(0, jobs present - 1)
                 = (pairs of a job and a socket it is present in) - (sockets in use)
    2. sockets   sum over tasks of (sockets spanned - 1)
    3. leaves    sum over tasks of (leaves spanned - 1)
    4. moved     sum over tasks not in N, over d, of max(0, x(t, d) - h(t, d))
    Between equals, preferred but never proved: established tasks in the lowest leaves, new tasks in the highest,
    sum over t, d of x(t, d) * (d if t not in N else last leaf - d).
All five are folded into one 64-bit number with weights A > B > C > M > tie, each larger than all that is below it.

What it does not decide: how many cores a task gets, whether the masks are reachable from today's by disjoint steps,
and time.

Method. Two leaves are solved exactly by dynamic programming over the number of units in the first (`pair`): a job lies
in the first, in the second or in both, which generalises the subset-sum question "can sharing be avoided". With more
leaves, greedy seeds are improved by solving every pair of leaves exactly until none improves (`polish`), compared with
a lower bound, and then searched depth-first (`search`) as far as the budget goes; where sockets have several leaves,
whole sockets are laid out first, as one more seed. The answer is `exact` if it meets the bound, came from two leaves,
or if the search was exhausted.
"""

# ruff: noqa: C901, PLR0917 - a call costs what ten lines do in compiled code, and takes its arguments by position

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Int32s = npt.NDArray[np.int32]
    Bools = npt.NDArray[np.bool_]

FEASIBLE, TOO_FEW_UNITS, BAD_COUNT, BAD_FIXED, TOO_LARGE = 0, 1, 2, 3, 4
STATUS, SHARING, SOCKETS, LEAVES, MOVED, EXACT, WORK, INFO = 0, 1, 2, 3, 4, 5, 6, 7
A, B, C, M, TIE = 0, 1, 2, 3, 4
INFINITE = 1 << 62


class Problem(NamedTuple):
    """The input of a placement.

    `cap` excludes fixed units; `first` delimits the tasks of each job; `weight` holds A, B, C, M and tie; `move[t]` is
    what a moved unit of task t costs, `tie[t, d]` what a unit in leaf d costs it by the tie-break.
    """

    cap: Ints
    sock: Ints
    sockets: int
    job: Ints
    first: Ints
    units: Ints
    fixed: Bools
    fresh: Bools
    cur: Ints
    weight: Ints
    move: Ints
    tie: Ints


class State(NamedTuple):
    """A placement, whole or partial: `x[t, d]`, and the sums of it by leaf, socket, job and task."""

    x: Ints
    free: Ints
    room: Ints
    load: Ints
    job_on: Ints
    task_on: Ints


def weights(units: int, leaves: int) -> Ints:
    """Return A, B, C, M and tie; A is 0 if no such weights fit in 64 bits, tie is 0 if it has to be left out."""
    w = np.zeros(5, np.int64)
    for tie in (1, 0):
        w[TIE] = tie
        w[M] = tie * units * leaves + 1
        size = float(w[M])
        for i in range(C, -1, -1):
            size *= units + 1.0
            w[i] = w[i + 1] * (units + 1) if size < INFINITE else 0
        if size * (2 * units + 2.0) < INFINITE:
            return w
    w[A] = 0
    return w


def tie_break(fresh: Bools, leaves: int, weight: Ints) -> Ints:
    """Return the tie-break's price of a unit by task and leaf: established tasks prefer low leaves, new ones high."""
    tie = np.empty((fresh.size, leaves), np.int64)
    for d in range(leaves):
        for t in range(fresh.size):
            tie[t, d] = weight[TIE] * (leaves - 1 - d if fresh[t] else d)
    return tie


def new_state(p: Problem) -> State:
    """Return a state with nothing placed."""
    tasks, leaves = p.cur.shape
    jobs = p.first.size - 1
    return State(
        np.zeros((tasks, leaves), np.int64),
        np.zeros(leaves, np.int64),
        np.zeros(p.sockets, np.int64),
        np.zeros(p.sockets, np.int64),
        np.zeros((jobs, p.sockets), np.int64),
        np.zeros((tasks, p.sockets), np.int64),
    )


def put(p: Problem, st: State, t: int, d: int, k: int) -> None:
    """Give task `t` `k` more units of leaf `d` (fewer if negative)."""
    s = p.sock[d]
    st.x[t, d] += k
    st.load[s] += k
    st.job_on[p.job[t], s] += k
    st.task_on[t, s] += k
    if not p.fixed[t]:
        st.free[d] -= k
        st.room[s] -= k


def reset(p: Problem, st: State) -> None:
    """Clear the placement and lay out the fixed tasks."""
    st.x[:] = 0
    st.free[:] = p.cap
    st.room[:] = 0
    st.load[:] = 0
    st.job_on[:] = 0
    st.task_on[:] = 0
    for d in range(p.cap.size):
        st.room[p.sock[d]] += p.cap[d]
    for t in range(p.units.size):
        if p.fixed[t]:
            for d in range(p.cap.size):
                if p.cur[t, d] > 0:
                    put(p, st, t, d, p.cur[t, d])


def copy_state(p: Problem, x: Ints, st: State) -> None:
    """Rebuild the state of placement `x`."""
    reset(p, st)
    for t in range(p.units.size):
        if not p.fixed[t]:
            for d in range(p.cap.size):
                if x[t, d] > 0:
                    put(p, st, t, d, x[t, d])


def minor(k: int, held: int, move: int, tie: int) -> int:
    """Return the cost of movement and tie-break of `k` units of a leaf of which the task has `held` today."""
    return max(0, k - held) * move + k * tie


def cost_of(p: Problem, st: State) -> int:
    """Return the folded objective, every task with all the sockets and leaves it spans, not less one."""
    cost = 0
    for s in range(p.sockets):
        if st.load[s] > 0:
            cost -= p.weight[A]
        for j in range(p.first.size - 1):
            if st.job_on[j, s] > 0:
                cost += p.weight[A]
    for t in range(p.units.size):
        for s in range(p.sockets):
            if st.task_on[t, s] > 0:
                cost += p.weight[B]
        for d in range(p.cap.size):
            if st.x[t, d] > 0:
                cost += p.weight[C] + minor(st.x[t, d], p.cur[t, d], p.move[t], p.tie[t, d])
    return cost


def job_order(p: Problem, rule: int) -> Ints:
    """Return the jobs, largest first: by rule 0 established ones before new ones, by 1 new ones first, by 2 mixed."""
    jobs = p.first.size - 1
    top = np.int64(p.cap.sum() + p.units.sum() + 1)
    keys = np.zeros(jobs, np.int64)
    for j in range(jobs):
        size = np.int64(0)
        new = 1
        for t in range(p.first[j], p.first[j + 1]):
            size += 0 if p.fixed[t] else p.units[t]
            if not p.fresh[t]:
                new = 0
        group = 0 if rule == 2 else new if rule == 0 else 1 - new
        keys[j] = (group * top + top - size) * jobs + j
    keys.sort()
    return keys % jobs


def best_leaf(p: Problem, st: State, t: int, need: int, left: int, held: Ints, scarce: bool) -> int:  # noqa: FBT001
    """Return the leaf for the next units of task `t`, by an estimate of the objective, then by tightness."""
    best, best_score, best_fit = -1, np.int64(INFINITE), np.int64(INFINITE)
    j = p.job[t]
    for step in range(p.cap.size):
        d = p.cap.size - 1 - step if p.fresh[t] else step
        if st.free[d] <= 0:
            continue
        s = p.sock[d]
        score = p.move[t] * max(0, min(need, st.free[d]) - max(0, p.cur[t, d] - st.x[t, d]))
        if st.job_on[j, s] == 0:
            score += p.weight[A]
            if held[s] > 0:
                score -= p.weight[M] * min(left, held[s])
            if st.room[s] < left:
                score += p.weight[A]
            if scarce and st.load[s] > 0:
                score += p.weight[A]
        if st.task_on[t, s] == 0:
            score += p.weight[B]
        if st.room[s] < need:
            score += p.weight[B]
        if st.free[d] < need:
            score += p.weight[C]
        fit = st.room[s] - left if st.room[s] >= left else top_fit(st.room[s], left)
        if score < best_score or (score == best_score and fit < best_fit):
            best, best_score, best_fit = d, score, fit
    return best


def top_fit(room: int, left: int) -> int:
    """Return a tightness above every real one, smaller for larger rooms."""
    return (1 << 40) + left - room


def greedy(p: Problem, st: State, order: Ints) -> None:
    """Place the rest, job after job, each task where `best_leaf` says."""
    held = np.zeros(p.sockets, np.int64)
    for q in range(order.size):
        j = order[q]
        left = np.int64(0)
        held[:] = 0
        for t in range(p.first[j], p.first[j + 1]):
            if not p.fixed[t]:
                left += p.units[t] - st.x[t].sum()
                for d in range(p.cap.size):
                    held[p.sock[d]] += p.cur[t, d]
        empty = 0
        for s in range(p.sockets):
            if st.load[s] == 0 and st.room[s] > 0:
                empty += 1
        for t in range(p.first[j], p.first[j + 1]):
            need = np.int64(0) if p.fixed[t] else p.units[t] - st.x[t].sum()
            while need > 0:
                d = best_leaf(p, st, t, need, left, held, empty >= order.size - q)
                k = min(need, st.free[d])
                put(p, st, t, d, k)
                need -= k
                left -= k


def keep(p: Problem, st: State) -> None:
    """Give every task the units it has, up to its count; it gives up those in its smallest leaves first."""
    for t in range(p.units.size):
        need = np.int64(0) if p.fixed[t] or p.fresh[t] else p.units[t]
        while need > 0:
            best, most = 0, np.int64(0)
            for d in range(p.cap.size):
                if p.cur[t, d] - st.x[t, d] > most:
                    best, most = d, p.cur[t, d] - st.x[t, d]
            if most == 0:
                break
            put(p, st, t, best, min(need, most))
            need -= min(need, most)


def refine(p: Problem, st: State, y: Ints) -> None:
    """Lay out in leaves a placement `y[t, s]` by socket: largest parts first, where they fit and were."""
    tasks = p.units.size
    keys = np.zeros(tasks, np.int64)
    reset(p, st)
    for s in range(p.sockets):
        for t in range(tasks):
            keys[t] = -(y[t, s] * tasks) + t
        keys.sort()
        for key in keys:
            t = key % tasks
            need = np.int64(0) if p.fixed[t] else y[t, s]
            while need > 0:
                best, best_score = -1, np.int64(INFINITE)
                for step in range(p.cap.size):
                    d = p.cap.size - 1 - step if p.fresh[t] else step
                    if p.sock[d] == s and st.free[d] > 0:
                        k = min(need, st.free[d])
                        score = p.move[t] * max(0, k - p.cur[t, d]) + p.weight[C] * max(0, need - st.free[d])
                        score += st.free[d] - need if st.free[d] >= need else p.weight[C] - st.free[d]
                        if score < best_score:
                            best, best_score = d, score
                k = min(need, st.free[best])
                put(p, st, t, best, k)
                need -= k


def span(ordered: Ints, n: int) -> int:
    """Return how few places, their room given in ascending order, hold `n` units (all places, if they do not)."""
    k = ordered.size
    while n > 0 and k > 0:
        k -= 1
        n -= ordered[k]
    return ordered.size - k


def task_bound(p: Problem, leaf_room: Ints, socket_room: Ints, t: int) -> int:
    """Return the least cost of task `t` alone on the machine, sockets and leaves counted as `cost_of` counts them."""
    need = p.units[t]
    leaves = span(leaf_room, need)
    least = need
    for d in range(p.cap.size):
        if p.cap[d] >= need:
            least = min(least, max(0, need - p.cur[t, d]))
    if leaves > 1:
        least = max(0, need - p.cur[t].sum())
    return p.weight[B] * span(socket_room, need) + p.weight[C] * leaves + p.move[t] * least  # type: ignore[no-any-return]


def job_bound(p: Problem, st: State, socket_room: Ints, j: int) -> int:
    """Return in how many sockets job `j` must be present at least; `st` holds the fixed tasks alone."""
    need, present = np.int64(0), 0
    for t in range(p.first[j], p.first[j + 1]):
        if not p.fixed[t]:
            need += p.units[t]
    for s in range(p.sockets):
        if st.job_on[j, s] > 0:
            present += 1
    return present if present > 0 else span(socket_room, need)


def bounds(p: Problem, st: State, least: Ints, present: Ints) -> int:
    """Fill the bounds of each task and job, and return the bound of the whole; `st` holds the fixed tasks alone."""
    total = cost_of(p, st)
    leaf_room, socket_room = np.sort(p.cap), np.sort(st.room)
    used, unused, need = 0, 0, np.int64(0)
    for s in range(p.sockets):
        if st.load[s] > 0:
            total += p.weight[A]
            used += 1
        elif st.room[s] > 0:
            unused += 1
    for t in range(p.units.size):
        least[t] = 0 if p.fixed[t] else task_bound(p, leaf_room, socket_room, t)
        need += 0 if p.fixed[t] else p.units[t]
        total += least[t]
    jobs = np.int64(0)
    for j in range(present.size):
        present[j] = job_bound(p, st, socket_room, j)
        jobs += present[j]
        for s in range(p.sockets):
            if st.job_on[j, s] > 0:
                total -= p.weight[A]
    return total + p.weight[A] * max(0, jobs - used - min(unused, need))  # type: ignore[no-any-return]
