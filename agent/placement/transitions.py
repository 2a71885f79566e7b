# SPDX-License-Identifier: Apache-2.0
"""Which grants may be published now so that held sets stay pairwise disjoint.

A plan gives every task a target; targets are disjoint. A task *holds* every CPU of every grant that no acknowledgement
has superseded, so a CPU passes from one task to another only after the first has acknowledged that it left. `next_step`
is called again at each acknowledgement, end and enforcement until every task has its target.

For task t with target T(t), newest grant G(t), held set H(t) and floor m(t):

    A(t) = T(t) minus the union of H(u) over the other tasks u        (what it may have of its target now)

    * to rest (T(t) empty): grant nothing;
    * not started, or at rest (H(t) empty): grant T(t) once A(t) = T(t), nothing before;
    * |A(t)| >= min(m(t), |T(t)|) and A(t) not empty: grant A(t), which gives up everything outside the target;
    * otherwise: grant G(t) | A(t): grow first, leave later (a move).

Grants of one step never meet: A(t) lies in T(t) and outside the others' held sets, and G(t) lies in H(t).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

K = TypeVar("K", bound="Hashable")


@dataclass(frozen=True, slots=True)
class TaskState:
    """The state of one task: masks over OS CPU numbers, and the least number of CPUs in any grant of it."""

    held: int
    granted: int
    target: int
    floor: int = 1


def next_grants(tasks: Mapping[K, TaskState], outside: int = 0) -> dict[K, int]:
    """Return the grants to publish now, by task: only masks that differ from the newest grant.

    `outside` are the CPUs held by tasks not in `tasks`: a task whose newest grant is its target may be left out.
    """
    everyone = outside
    for standing in tasks.values():
        everyone |= standing.held
    grants = {task: _grant(standing, everyone & ~standing.held) for task, standing in tasks.items()}
    return {task: mask for task, mask in grants.items() if mask != tasks[task].granted}


def _grant(task: TaskState, others: int) -> int:
    available = task.target & ~others
    if not task.target:
        return 0
    if not task.held:
        return task.target if available == task.target else 0
    if available and available.bit_count() >= min(task.floor, task.target.bit_count()):
        return available
    return task.granted | available


def is_reachable(tasks: Mapping[K, TaskState]) -> bool:
    """Return whether acknowledgements alone lead every task to its target.

    Each task changes at most three times (grow, leave, fill up), so the loop ends. A task at its target stays there.
    """
    there = 0
    waiting: dict[K, TaskState] = {}
    for task, standing in tasks.items():
        if standing.granted == standing.target:
            there |= standing.granted
        else:
            waiting[task] = replace(standing, held=standing.granted)
    while grants := next_grants(waiting, there):
        for task, mask in grants.items():
            waiting[task] = replace(waiting[task], held=mask, granted=mask)
            if mask == waiting[task].target:
                there |= mask
                del waiting[task]
    return not waiting
