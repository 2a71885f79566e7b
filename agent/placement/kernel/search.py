"""The best placement within a budget, and the only entry point, `place`.

Greedy seeds are improved by pairs of leaves (`pairs`), on machines with several memory domains in a socket by socket
first; if that does not meet the bounds the tree is searched (`tree`). The problem is stated in `problem`.
"""

# ruff: noqa: C901, PLR0917 - a call costs what ten lines do in compiled code, and takes its arguments by position

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from drom.agent.placement.kernel.pairs import new_table, pair, polish
from drom.agent.placement.kernel.problem import (
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
    M,
    Problem,
    State,
    bounds,
    copy_state,
    cost_of,
    greedy,
    job_order,
    keep,
    new_state,
    refine,
    reset,
    tie_break,
    weights,
)
from drom.agent.placement.kernel.tree import prepare_search, search

if TYPE_CHECKING:
    from drom.agent.placement.kernel.problem import Bools, Int32s, Ints

SEEDS = 5


def seed(p: Problem, st: State, number: int) -> None:
    """Lay out greedily. `number`: 0 keeps what is held; 1 established jobs first, 2 new ones first, 3 largest first.

    Seed 4 ignores what is held today: if the others split jobs, it packs them whole.
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
    """Copy the placement to `best` if it costs less; return the lowest cost."""
    cost = cost_of(p, st)
    if cost < best_cost:
        best[:] = st.x
    return min(cost, best_cost)


def improve(p: Problem, st: State, best: Ints, best_cost: int, bound: int, work: Ints) -> int:
    """Try the greedy seeds, then improve each by pairs, the best first; return the lowest cost.

    It stops when the bound is met; a spent budget ends only the improvement.
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
    """Place by socket, then lay out each socket in leaves and improve; return the cost of the result in `best`."""
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
    return search(p, st, prepare_search(p, st, least, present), present, x, cost, work)


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


def build_problem(
    leaf: Ints, sock: Ints, job: Int32s, count: Int32s, fixed: Bools, current: Int32s, fresh: Bools
) -> Problem:
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


def assign_units(p: Problem, x: Ints, leaf: Ints, current: Int32s, assign: Int32s) -> None:
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

    Units are sorted by socket, then domain; tasks of a job are adjacent; `current[u]` is the task that has unit u
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
    p = build_problem(leaf, sock, job, count, fixed, current, fresh)
    if p.weight[A] == 0:
        info[STATUS] = TOO_LARGE
        return assign, info
    x, work = np.zeros_like(p.cur), np.zeros(2, np.int64)
    work[1] = budget
    info[EXACT] = solve(p, x, work)
    info[WORK] = work[0]
    assign_units(p, x, leaf, current, assign)
    describe(p, x, info)
    return assign, info
