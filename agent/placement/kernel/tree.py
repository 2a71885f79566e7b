# SPDX-License-Identifier: Apache-2.0
"""Depth-first search of the placements within a budget.

One node of the search is one cell (task, leaf): how many units the task takes there, most first. A branch is cut when
its cost and the bounds of the rest reach the best known cost. Two symmetries are cut: equal tasks of one job take their
units in order, and of equal sockets that no task has units in today the next is used only after the one before. The
problem is stated in `problem`.
"""

# ruff: noqa: C901, PLR0917 - a call costs what ten lines do in compiled code, and takes its arguments by position

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.agent.placement.kernel.problem import A, B, C, M, Problem, State, cost_of, job_order, minor, put

if TYPE_CHECKING:
    from drom.agent.placement.kernel.problem import Bools, Ints


class Tree(NamedTuple):
    """Values computed before the search, by position in the order of tasks, and the choices on its path, by cell."""

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
    """Return whether two tasks are alike: same job, same count, same units per leaf today."""
    if p.job[t] != p.job[u] or p.units[t] != p.units[u] or p.fresh[t] != p.fresh[u]:
        return False
    return np.array_equal(p.cur[t], p.cur[u])


def find_twins(p: Problem, st: State, twin: Ints) -> None:
    """Set `twin[0, d]` (`twin[1, d]`) to the next lower (higher) equal leaf: same socket size, unused today."""
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


def prepare_search(p: Problem, st: State, least: Ints, present: Ints) -> Tree:
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
    """Return a lower bound of the number of further sockets of job `j`."""
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
    """Return the fewest and most units that the task of cell `pos` may take there; `need` is what it lacks."""
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
    """Return a lower bound of the cost to come: the rest of task `i`, later tasks and jobs, less unused sockets."""
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
