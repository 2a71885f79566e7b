"""Divide the units of two leaves exactly: dynamic programming over the number of units in the first.

`tb.jobs[q, i]` is the least cost of the first q jobs with i units in leaf a. A job may lie in a, in b or in both; for
the last, its tasks are added one by one in `tb.tasks`. Units in other leaves stay, and affect the cost of a presence: a
job already in the socket by another leaf pays nothing. So today's division is one of those compared, and the answer is
never worse. The problem is stated in `problem`.
"""

# ruff: noqa: PLR0917 - compiled functions take their arguments by position

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.agent.placement.kernel.problem import INFINITE, A, B, C, Problem, State, minor, put

if TYPE_CHECKING:
    from drom.agent.placement.kernel.problem import Ints

STEPS_PER_WORK = 256  # inner steps of the dynamic programme that count as one node of the search


# Columns of `Table.task`: units in the pair, and of these in a; units today in a and in b; what being in a, and in b,
# costs; what a moved unit costs; what a unit in a, and in b, costs by the tie-break.
UNITS, NOW_A, HELD_A, HELD_B, IN_A, IN_B, MOVE, TIE_A, TIE_B, TASK_COLUMNS = range(10)
# Columns of `Table.job`: end of its tasks in `ids`; its units; what its presence in the socket of a, and of b, costs;
# the cost of its tasks with all units in a, and all in b.
END, SIZE, PRESENT_A, PRESENT_B, ALL_A, ALL_B, JOB_COLUMNS = range(7)


class Table(NamedTuple):
    """Working room of `pair`: best cost by units in a after each job and task; the pair's tasks, and jobs (from 1)."""

    jobs: Ints
    tasks: Ints
    ids: Ints
    task: Ints
    job: Ints


def new_table(p: Problem) -> Table:
    """Return the working room of `pair`."""
    tasks, jobs = p.units.size, p.first.size - 1
    width = p.cap.max() + 1
    return Table(
        np.empty((jobs + 1, width), np.int64),
        np.empty((tasks + jobs + 1, width), np.int64),
        np.zeros(tasks, np.int64),
        np.zeros((tasks, TASK_COLUMNS), np.int64),
        np.zeros((jobs + 1, JOB_COLUMNS), np.int64),
    )


def part_cost(task: Ints, n: int, k: int) -> int:
    """Return the cost of task number `n` with `k` of its units in leaf a and the rest in leaf b."""
    rest = task[n, UNITS] - k
    cost = minor(k, task[n, HELD_A], task[n, MOVE], task[n, TIE_A])
    cost += minor(rest, task[n, HELD_B], task[n, MOVE], task[n, TIE_B])
    return cost + (task[n, IN_A] if k > 0 else 0) + (task[n, IN_B] if rest > 0 else 0)


def gather(p: Problem, st: State, tb: Table, a: int, b: int) -> int:
    """List the movable tasks present in `a` or `b`, job by job; return the number of jobs."""
    task, job, ids, x = tb.task, tb.job, tb.ids, st.x
    sa, sb = p.sock[a], p.sock[b]
    n, jobs, last = 0, 0, -1
    for t in range(p.units.size):
        in_a, in_b = x[t, a], x[t, b]
        if in_a + in_b == 0 or p.fixed[t]:
            continue
        if p.job[t] != last:
            last = p.job[t]
            jobs += 1
            job[jobs, :] = 0
        ids[n] = t
        task[n, UNITS], task[n, NOW_A] = in_a + in_b, in_a
        task[n, HELD_A], task[n, HELD_B] = p.cur[t, a], p.cur[t, b]
        task[n, IN_A] = p.weight[C] + (p.weight[B] if sa != sb and st.task_on[t, sa] == in_a else 0)
        task[n, IN_B] = p.weight[C] + (p.weight[B] if sa != sb and st.task_on[t, sb] == in_b else 0)
        task[n, MOVE], task[n, TIE_A], task[n, TIE_B] = p.move[t], p.tie[t, a], p.tie[t, b]
        job[jobs, SIZE] += in_a + in_b
        job[jobs, PRESENT_A] += in_a
        job[jobs, PRESENT_B] += in_b
        job[jobs, ALL_A] += part_cost(task, n, in_a + in_b)
        job[jobs, ALL_B] += part_cost(task, n, 0)
        n += 1
        job[jobs, END] = n
    return jobs


def price(p: Problem, st: State, tb: Table, jobs: int, a: int, b: int) -> tuple[int, int]:
    """Turn each job's units in a and b into the price of being there; return today's cost, and the least sharing."""
    sa, sb = p.sock[a], p.sock[b]
    job = tb.job
    cost, bound = np.int64(0), np.int64(0)
    for q in range(1, jobs + 1):
        j = p.job[tb.ids[job[q, END] - 1]]
        in_a, in_b = job[q, PRESENT_A], job[q, PRESENT_B]
        job[q, PRESENT_A] = p.weight[A] if sa != sb and st.job_on[j, sa] == in_a else 0
        job[q, PRESENT_B] = p.weight[A] if sa != sb and st.job_on[j, sb] == in_b else 0
        bound += min(job[q, PRESENT_A], job[q, PRESENT_B])
        cost += (job[q, PRESENT_A] if in_a > 0 else 0) + (job[q, PRESENT_B] if in_b > 0 else 0)
    for n in range(job[jobs, END]):
        cost += part_cost(tb.task, n, tb.task[n, NOW_A])
    if sa != sb and st.load[sa] == p.cap[a] - st.free[a]:
        bound -= p.weight[A]
        cost -= p.weight[A] if st.load[sa] > 0 else 0
    if sa != sb and st.load[sb] == p.cap[b] - st.free[b]:
        bound -= p.weight[A]
        cost -= p.weight[A] if st.load[sb] > 0 else 0
    return cost, bound


def shift_min(new: Ints, old: Ints, k: int, cost: int) -> None:
    """Lower `new[i + k]` to `old[i] + cost` wherever that is less."""
    target = new[k:]
    for i in range(target.size):
        target[i] = min(target[i], old[i] + cost)


def chain(tb: Table, q: int, size: int) -> int:
    """Add the tasks of job number `q` one by one, each divided in any way; return the steps taken."""
    steps = 0
    lo, hi = tb.job[q - 1, END], tb.job[q, END]
    tb.tasks[lo + q, :size] = tb.jobs[q - 1, :size]
    for n in range(lo, hi):
        new, old = tb.tasks[n + q + 1, :size], tb.tasks[n + q, :size]
        new[:] = INFINITE
        units = tb.task[n, UNITS]
        steps += units * size
        for k in range(min(units + 1, size)):
            shift_min(new, old, k, part_cost(tb.task, n, k))
    return steps


def sweep(tb: Table, jobs: int, size: int, split: bool) -> int:  # noqa: FBT001 - numba takes positions only
    """Fill the table; unless `split`, only jobs that pay nothing for it may lie in both leaves. Return the steps."""
    steps = 0
    job = tb.job
    tb.jobs[0, :size] = INFINITE
    tb.jobs[0, 0] = 0
    for q in range(1, jobs + 1):
        new, old = tb.jobs[q, :size], tb.jobs[q - 1, :size]
        new[:] = INFINITE
        shift_min(new, old, 0, job[q, ALL_B] + job[q, PRESENT_B])
        if job[q, SIZE] < size:
            shift_min(new, old, job[q, SIZE], job[q, ALL_A] + job[q, PRESENT_A])
        steps += 2 * size
        if split or job[q, PRESENT_A] + job[q, PRESENT_B] == 0:
            steps += chain(tb, q, size)
            shift_min(new, tb.tasks[job[q, END] + q, :size], 0, job[q, PRESENT_A] + job[q, PRESENT_B])
    return steps


def best_end(p: Problem, st: State, tb: Table, jobs: int, a: int, b: int, size: int) -> tuple[int, int]:
    """Return the best number of units in `a` of the filled table, and its cost with the sockets that come into use."""
    sa, sb = p.sock[a], p.sock[b]
    in_a, in_b = p.cap[a] - st.free[a], p.cap[b] - st.free[b]
    gain_a = p.weight[A] if sa != sb and st.load[sa] == in_a else 0
    gain_b = p.weight[A] if sa != sb and st.load[sb] == in_b else 0
    best, best_cost = np.int64(-1), np.int64(INFINITE)
    for i in range(max(0, in_a + in_b - p.cap[b]), min(size, in_a + in_b + 1)):
        cost = tb.jobs[jobs, i] - (gain_a if i > 0 else 0) - (gain_b if i < in_a + in_b else 0)
        if cost < best_cost:
            best, best_cost = np.int64(i), cost
    return best, best_cost


def walk_back(tb: Table, jobs: int, end: int, new: Ints) -> None:
    """Read from the table how many units each task has in a, into `new` (by position in `tb.ids`)."""
    i = end
    task, job = tb.task, tb.job
    for q in range(jobs, 0, -1):
        lo, hi = job[q - 1, END], job[q, END]
        v = tb.jobs[q, i]
        all_b = tb.jobs[q - 1, i] + job[q, ALL_B] + job[q, PRESENT_B] == v
        n = job[q, SIZE]
        if all_b or (i >= n and tb.jobs[q - 1, i - n] + job[q, ALL_A] + job[q, PRESENT_A] == v):
            for e in range(lo, hi):
                new[e] = np.int64(0) if all_b else task[e, UNITS]
                i -= new[e]
            continue
        for e in range(hi - 1, lo - 1, -1):
            for k in range(min(task[e, UNITS], i) + 1):
                if tb.tasks[e + q, i - k] + part_cost(task, e, k) == tb.tasks[e + q + 1, i]:
                    new[e] = k
                    i -= k
                    break


def pair(p: Problem, st: State, tb: Table, a: int, b: int, work: Ints) -> bool:
    """Divide anew what lies in leaves `a` and `b`, at least cost; return whether that improved the placement."""
    jobs = gather(p, st, tb, a, b)
    if jobs == 0:
        return False
    before, bound = price(p, st, tb, jobs, a, b)
    size = min(p.cap[a], p.cap[a] - st.free[a] + p.cap[b] - st.free[b]) + 1
    steps = sweep(tb, jobs, size, False)
    end, cost = best_end(p, st, tb, jobs, a, b, size)
    # With whole jobs and the least sharing there can be, a job in both sockets could only add to it.
    if cost >= bound + p.weight[A]:
        steps += sweep(tb, jobs, size, True)
        end, cost = best_end(p, st, tb, jobs, a, b, size)
    work[0] += steps // STEPS_PER_WORK + jobs
    if cost >= before:
        return False
    new = np.empty(tb.job[jobs, END], np.int64)
    walk_back(tb, jobs, end, new)
    for n in range(new.size):
        k = new[n] - tb.task[n, NOW_A]
        if k != 0:
            put(p, st, tb.ids[n], a, k)
            put(p, st, tb.ids[n], b, -k)
    return True


def polish(p: Problem, st: State, tb: Table, work: Ints) -> None:
    """Solve pairs of leaves until none improves or the budget is spent, skipping pairs that did not change."""
    leaves = p.cap.size
    clock = 1
    changed = np.ones(leaves, np.int64)
    seen = np.zeros((leaves, leaves), np.int64)
    again = True
    while again:
        again = False
        for b in range(leaves - 1, 0, -1):
            for a in range(b):
                if work[0] >= work[1]:
                    return
                if seen[a, b] >= max(changed[a], changed[b]):
                    continue
                clock += 1
                if pair(p, st, tb, a, b, work):
                    changed[a] = changed[b] = clock
                    again = True
                seen[a, b] = clock
