"""Search the placements depth-first within a budget, and the one entry point, `place`.

One node of the search is one cell (task, leaf): how many units the task takes there, most first. A branch is cut when
its cost and the bounds of what is to come reach the best known. Two symmetries are cut: equal tasks of one job take
their units in order, and of equal sockets where nobody has anything today the next is used only after the one before.
The problem is stated in `distribution_kernel`.
"""

# ruff: noqa: C901, PLR0917 - a call costs what ten lines do in compiled code, and takes its arguments by position

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from agent.distribution_kernel import (
    BAD_COUNT,
    BAD_FIXED,
    EXACT,
    FEASIBLE,
    INFINITE,
    INFO,
    LEAVES,
    MOVED,
    SHARING,
    SOCKETS,
    STATUS,
    TOO_FEW_UNITS,
    TOO_LARGE,
    WORK,
    A,
    B,
    C,
    M,
    Problem,
    State,
    bounds,
    copy_state,
    cost_of,
    greedy,
    job_order,
    keep,
    minor,
    new_state,
    put,
    refine,
    reset,
    tie_break,
    weights,
)
from agent.distribution_pairs import new_table, pair, polish

if TYPE_CHECKING:
    from agent.distribution_kernel import Bools, Int32s, Ints

SEEDS = 5


class Tree(NamedTuple):
    """What the search knows beforehand, by position in the order of tasks, and the choices on its path, by cell."""

    order: Ints
    leaf: Ints
    same: Bools
    later: Ints
    later_jobs: Ints
    twin: Ints
    value: Ints
    cost: Ints
    tight: Bools


def is_same(p: Problem, t: int, u: int) -> bool:
    """Tell whether two tasks are alike: same job, same count, same units per leaf today."""
    if p.job[t] != p.job[u] or p.units[t] != p.units[u] or p.fresh[t] != p.fresh[u]:
        return False
    return np.array_equal(p.cur[t], p.cur[u])


def find_twins(p: Problem, st: State, twin: Ints) -> None:
    """Set `twin[0, d]` (`twin[1, d]`) to the next lower (higher) leaf alike: a socket as large, nobody's today."""
    leaves = p.cap.size
    blank = np.ones(leaves, np.int64)
    for d in range(leaves):
        if st.load[p.sock[d]] > 0 or p.cur[:, d].sum() > 0 or st.room[p.sock[d]] != p.cap[d]:
            blank[d] = 0
    twin[:] = -1
    for d in range(leaves):
        for e in range(d):
            if blank[d] and blank[e] and p.cap[d] == p.cap[e]:
                twin[0, d] = e
                if twin[1, e] < 0:
                    twin[1, e] = d


def prefer(p: Problem, t: int, leaf: Ints) -> None:
    """Order the leaves for task `t`: most of its units today first, then upwards; downwards for a new task."""
    leaves = p.cap.size
    for i in range(leaves):
        d = leaves - 1 - i if p.fresh[t] else i
        k = i
        while k > 0 and p.cur[t, leaf[k - 1]] < p.cur[t, d]:
            leaf[k] = leaf[k - 1]
            k -= 1
        leaf[k] = d


def plant(p: Problem, st: State, least: Ints, present: Ints) -> Tree:
    """Prepare the search, largest jobs first, with bounds of what comes later; `st` holds the fixed tasks alone."""
    leaves = p.cap.size
    order = np.empty(p.units.size, np.int64)
    n = 0
    for j in job_order(p, 2):
        for t in range(p.first[j], p.first[j + 1]):
            if not p.fixed[t]:
                order[n] = t
                n += 1
    tree = Tree(
        order[:n].copy(),
        np.zeros((n, leaves), np.int64),
        np.zeros(n, np.bool_),
        np.zeros(n + 1, np.int64),
        np.zeros(n + 1, np.int64),
        np.zeros((2, leaves), np.int64),
        np.zeros(n * leaves + 1, np.int64),
        np.zeros(n * leaves + 1, np.int64),
        np.ones(n * leaves + 1, np.bool_),
    )
    find_twins(p, st, tree.twin)
    for i in range(n - 1, -1, -1):
        t = order[i]
        prefer(p, t, tree.leaf[i])
        tree.same[i] = i > 0 and is_same(p, t, order[i - 1])
        tree.later[i] = tree.later[i + 1] + least[t]
        new_job = i + 1 < n and p.job[order[i + 1]] != p.job[t]
        tree.later_jobs[i] = tree.later_jobs[i + 1]
        if new_job:
            tree.later_jobs[i] += missing(p, st, present, p.job[order[i + 1]])
    return tree


def missing(p: Problem, st: State, present: Ints, j: int) -> int:
    """Return in how many more sockets job `j` will be, at least."""
    n = present[j]
    for s in range(p.sockets):
        if st.job_on[j, s] > 0:
            n -= 1
    return max(0, n)  # type: ignore[no-any-return]


def cell_cost(p: Problem, st: State, t: int, d: int, k: int) -> int:
    """Return what `k` > 0 more units of leaf `d` add for task `t`, which has none there."""
    s = p.sock[d]
    cost = p.weight[C] + minor(k, p.cur[t, d], p.move[t], p.tie[t, d])
    if st.task_on[t, s] == 0:
        cost += p.weight[B]
    if st.job_on[p.job[t], s] == 0:
        cost += p.weight[A]
    if st.load[s] == 0:
        cost -= p.weight[A]
    return cost  # type: ignore[no-any-return]


def cell_range(p: Problem, st: State, tree: Tree, pos: int, need: int) -> tuple[int, int]:
    """Return the least and the most units that the task of cell `pos` may take there, `need` being what it lacks."""
    leaves = p.cap.size
    i, c = pos // leaves, pos % leaves
    t, d = tree.order[i], tree.leaf[i, c]
    low, high = need, min(need, st.free[d])
    for e in range(c + 1, leaves):
        low -= st.free[tree.leaf[i, e]]
    if tree.same[i] and tree.tight[pos]:
        high = min(high, tree.value[pos - leaves])
    twin = tree.twin[1 if p.fresh[t] else 0, d]
    if twin >= 0 and st.load[p.sock[d]] == 0 and st.load[p.sock[twin]] == 0:
        high = np.int64(0)
    return max(np.int64(0), low), high


def to_come(p: Problem, st: State, tree: Tree, present: Ints, i: int, need: int, left: int) -> int:
    """Return the least still to be paid: the rest of task number `i`, later tasks and jobs, less the unused sockets."""
    t = tree.order[i]
    cost = tree.later[i] if need == p.units[t] else tree.later[i + 1] + (p.weight[C] if need > 0 else 0)
    unused = 0
    for s in range(p.sockets):
        if st.load[s] == 0 and st.room[s] > 0:
            unused += 1
    jobs = tree.later_jobs[i] + missing(p, st, present, p.job[t])
    return cost + p.weight[A] * (jobs - min(unused, left))  # type: ignore[no-any-return]


def search(p: Problem, st: State, tree: Tree, present: Ints, best: Ints, best_cost: int, work: Ints) -> bool:
    """Improve placement `best` of cost `best_cost` within the budget; return whether nothing better can exist."""
    leaves = p.cap.size
    cells = tree.order.size * leaves
    prune = best_cost // p.weight[M] * p.weight[M]
    left = np.int64(0)
    for t in tree.order:
        left += p.units[t]
    if cells == 0:
        return True
    need = p.units[tree.order[0]]
    low = np.zeros(cells, np.int64)
    tree.cost[0] = cost_of(p, st)
    low[0], high = cell_range(p, st, tree, 0, need)
    tree.value[0] = high + 1
    pos = 0
    while pos >= 0:
        i, c = pos // leaves, pos % leaves
        t, d = tree.order[i], tree.leaf[i, c]
        had = st.x[t, d]
        if had > 0:
            put(p, st, t, d, -had)
            need += had
            left += had
        tree.value[pos] -= 1
        k = tree.value[pos]
        if k < low[pos]:
            pos -= 1
            if c == 0 and pos >= 0:
                need = np.int64(0)
            continue
        work[0] += 1
        if work[0] >= work[1]:
            return False
        tree.cost[pos + 1] = tree.cost[pos]
        if k > 0:
            tree.cost[pos + 1] += cell_cost(p, st, t, d, k)
            put(p, st, t, d, k)
            need -= k
            left -= k
        if tree.cost[pos + 1] + to_come(p, st, tree, present, i, need, left) >= prune:
            continue
        if pos + 1 == cells:
            best[:] = st.x
            prune = tree.cost[cells] // p.weight[M] * p.weight[M]
            continue
        tight = not tree.same[i] or (tree.tight[pos] and k == tree.value[pos - leaves])
        if c + 1 == leaves:
            need = p.units[tree.order[i + 1]]
            tight = True
        pos += 1
        tree.tight[pos] = tight
        low[pos], high = cell_range(p, st, tree, pos, need)
        tree.value[pos] = high + 1
    return True


def seed(p: Problem, st: State, number: int) -> None:
    """Lay out greedily: 0 keeping what is held; 1 established jobs first, 2 new ones first, 3 the largest first.

    Seed 4 is blind to what is held today: where the others end with jobs cut in pieces, it packs them whole.
    """
    reset(p, st)
    if number == 0:
        keep(p, st)
    order = job_order(p, min(2, max(0, number - 1)))
    if number < SEEDS - 1:
        greedy(p, st, order)
        return
    cur, move = np.where(p.fixed.reshape(-1, 1), p.cur, 0), np.zeros_like(p.move)
    q = Problem(p.cap, p.sock, p.sockets, p.job, p.first, p.units, p.fixed, p.fresh, cur, p.weight, move, p.tie)
    greedy(q, st, order)


def keep_best(p: Problem, st: State, best: Ints, best_cost: int) -> int:
    """Copy the placement to `best` if it costs less; return the cost of the best."""
    cost = cost_of(p, st)
    if cost < best_cost:
        best[:] = st.x
    return min(cost, best_cost)


def improve(p: Problem, st: State, best: Ints, best_cost: int, bound: int, work: Ints) -> int:
    """Try the greedy seeds, then improve each by pairs, the best first; return the cost of the best placement.

    It stops where the bound is met; a spent budget ends the improving only.
    """
    goal = bound // p.weight[M]
    costs = np.zeros(SEEDS, np.int64)
    for number in range(SEEDS):
        seed(p, st, number)
        if p.cap.size <= 2:
            if p.cap.size == 2:
                pair(p, st, new_table(p), 0, 1, work)
            return keep_best(p, st, best, best_cost)
        costs[number] = cost_of(p, st)
        best_cost = keep_best(p, st, best, best_cost)
        if best_cost // p.weight[M] <= goal:
            return best_cost
    tb = new_table(p)
    for number in np.argsort(costs):
        if work[0] < work[1]:
            seed(p, st, number)
            polish(p, st, tb, work)
            best_cost = keep_best(p, st, best, best_cost)
            if best_cost // p.weight[M] <= goal:
                break
    return best_cost


def by_socket(p: Problem) -> Problem:
    """Return the same problem with each socket as one leaf."""
    cap = np.zeros(p.sockets, np.int64)
    cur = np.zeros((p.units.size, p.sockets), np.int64)
    for d in range(p.cap.size):
        cap[p.sock[d]] += p.cap[d]
        cur[:, p.sock[d]] += p.cur[:, d]
    sock, tie = np.arange(p.sockets), tie_break(p.fresh, p.sockets, p.weight)
    return Problem(cap, sock, p.sockets, p.job, p.first, p.units, p.fixed, p.fresh, cur, p.weight, p.move, tie)


def from_sockets(p: Problem, st: State, best: Ints, work: Ints) -> int:
    """Place by socket, then lay out each socket in leaves and improve; return the cost of that, left in `best`."""
    q = by_socket(p)
    by_s = new_state(q)
    y = np.zeros_like(q.cur)
    reset(q, by_s)
    bound = bounds(q, by_s, np.zeros(q.units.size, np.int64), np.zeros(q.first.size - 1, np.int64))
    improve(q, by_s, y, INFINITE, bound, work)
    refine(p, st, y)
    polish(p, st, new_table(p), work)
    best[:] = st.x
    return cost_of(p, st)


def solve(p: Problem, x: Ints, work: Ints) -> bool:
    """Find the placement `x` of least cost within the budget; return whether it is known to be optimal."""
    st = new_state(p)
    least, present = np.zeros(p.units.size, np.int64), np.zeros(p.first.size - 1, np.int64)
    reset(p, st)
    bound = bounds(p, st, least, present)
    cost = np.int64(INFINITE)
    if p.cap.size > p.sockets and p.sockets > 1:
        cost = from_sockets(p, st, x, work)
    if cost // p.weight[M] > bound // p.weight[M]:
        cost = improve(p, st, x, cost, bound, work)
    if p.cap.size <= 2 or cost // p.weight[M] <= bound // p.weight[M]:
        return True
    if work[0] >= work[1]:
        return False
    reset(p, st)
    return search(p, st, plant(p, st, least, present), present, x, cost, work)


def check(count: Int32s, fixed: Bools, held: Ints, units: int) -> int:
    """Return the status of the demand before anything is placed."""
    need, free = np.int64(0), np.int64(units)
    for t in range(count.size):
        if count[t] < 1:
            return BAD_COUNT
        if fixed[t]:
            free -= held[t]
            if held[t] != count[t]:
                return BAD_FIXED
        else:
            need += count[t]
    return TOO_FEW_UNITS if need > free else FEASIBLE


def pose(leaf: Ints, sock: Ints, job: Int32s, count: Int32s, fixed: Bools, current: Int32s, fresh: Bools) -> Problem:
    """Build the problem from units and tasks."""
    tasks, leaves, units = count.size, sock.size, leaf.size
    cap, cur = np.zeros(leaves, np.int64), np.zeros((tasks, leaves), np.int64)
    for u in range(units):
        t = current[u]
        cap[leaf[u]] += 1 if t < 0 or not fixed[t] else 0
        if t >= 0 and not fresh[t]:
            cur[t, leaf[u]] += 1
    dense, first = np.zeros(tasks, np.int64), np.zeros(tasks + 1, np.int64)
    jobs = 0
    for t in range(tasks):
        if t > 0 and job[t] != job[t - 1]:
            jobs += 1
            first[jobs] = t
        dense[t] = jobs
    first[jobs + 1] = tasks
    weight = weights(units, leaves)
    move = np.where(fresh, 0, weight[M])
    tie, counts = tie_break(fresh, leaves, weight), count.astype(np.int64)
    return Problem(
        cap, sock, sock.max() + 1, dense, first[: jobs + 2].copy(), counts, fixed, fresh, cur, weight, move, tie
    )


def find_leaves(socket: Int32s, domain: Int32s, leaf: Ints) -> Ints:
    """Number the runs of (socket, domain) in `leaf`, by unit, and return the socket of each, numbered from 0 too."""
    units = leaf.size
    sock = np.zeros(units, np.int64)
    n, s = 0, 0
    for u in range(1, units):
        if socket[u] != socket[u - 1]:
            s += 1
        if socket[u] != socket[u - 1] or domain[u] != domain[u - 1]:
            n += 1
        sock[n] = s
        leaf[u] = n
    leaves: Ints = sock[: n + 1].copy()
    return leaves


def hand_out(p: Problem, x: Ints, leaf: Ints, current: Int32s, assign: Int32s) -> None:
    """Choose the units: own ones first, the lowest; then free ones, the lowest, but the highest for new tasks."""
    units = leaf.size
    lack = x.copy()
    assign[:] = -1
    for u in range(units):
        t = current[u]
        if t >= 0 and lack[t, leaf[u]] > 0 and not p.fresh[t]:
            assign[u] = t
            lack[t, leaf[u]] -= 1
    begin = 0
    while begin < units:
        end = begin
        while end < units and leaf[end] == leaf[begin]:
            end += 1
        low, high = begin, end
        for t in range(p.units.size):
            need = np.int64(0) if p.fresh[t] else lack[t, leaf[begin]]
            while need > 0:
                if assign[low] < 0:
                    assign[low] = t
                    need -= 1
                low += 1
        for t in range(p.units.size - 1, -1, -1):
            need = lack[t, leaf[begin]] if p.fresh[t] else np.int64(0)
            while need > 0:
                high -= 1
                if assign[high] < 0:
                    assign[high] = t
                    need -= 1
        begin = end


def describe(p: Problem, x: Ints, info: Ints) -> None:
    """Write the four terms of the objective of placement `x`."""
    st = new_state(p)
    copy_state(p, x, st)
    for s in range(p.sockets):
        info[SHARING] -= st.load[s] > 0
        for j in range(p.first.size - 1):
            info[SHARING] += st.job_on[j, s] > 0
    for t in range(p.units.size):
        info[SOCKETS] -= 1
        info[LEAVES] -= 1
        for s in range(p.sockets):
            info[SOCKETS] += st.task_on[t, s] > 0
        for d in range(p.cap.size):
            info[LEAVES] += st.x[t, d] > 0
            if not p.fresh[t]:
                info[MOVED] += max(0, st.x[t, d] - p.cur[t, d])


def place(
    socket: Int32s,
    domain: Int32s,
    job: Int32s,
    count: Int32s,
    fixed: Bools,
    current: Int32s,
    fresh: Bools,
    budget: int,
) -> tuple[Int32s, Ints]:
    """Return the task of each unit (-1: free) and the row of figures indexed by STATUS, SHARING, ..., WORK.

    Units are sorted by socket, then domain; tasks of a job stand together; `current[u]` is the task that has unit u
    today, or -1.
    `budget` counts nodes of the search (256 inner steps of the dynamic programme take as long as one).
    """
    units, tasks = socket.size, count.size
    assign, info = np.full(units, -1, np.int32), np.zeros(INFO, np.int64)
    held = np.zeros(tasks, np.int64)
    for u in range(units):
        if current[u] >= 0:
            held[current[u]] += 1
    info[STATUS] = check(count, fixed, held, units)
    if info[STATUS] != FEASIBLE or tasks == 0:
        info[EXACT] = 1
        return assign, info
    leaf = np.zeros(units, np.int64)
    sock = find_leaves(socket, domain, leaf)
    p = pose(leaf, sock, job, count, fixed, current, fresh)
    if p.weight[A] == 0:
        info[STATUS] = TOO_LARGE
        return assign, info
    x, work = np.zeros_like(p.cur), np.zeros(2, np.int64)
    work[1] = budget
    info[EXACT] = solve(p, x, work)
    info[WORK] = work[0]
    hand_out(p, x, leaf, current, assign)
    describe(p, x, info)
    return assign, info
