# SPDX-License-Identifier: Apache-2.0
"""The numbers of CPUs that programs report they can use (wishes), and how far the policy follows them. Pure.

A wish is not an order: it gives a program nothing that it could not have requested at its launch. It counts within the
bounds of its job, its least number also within the site's cap (`Rules.max_min`), and equally for all tasks:

    accepts = tasks * max over tasks of most     (all that the job may have if any task does not report it)
              of a job whose tasks may rest only as many tasks count as can use cores
    keeps   = tasks * max over tasks of least    (left to the job by arrivals that can start without these cores)

in whole cores, rounded up. A contradictory wish is ignored. Of a job whose tasks may rest only those that have to have
cores count for `keeps`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.agent.model.jobs import NO_DEMAND, Demand

if TYPE_CHECKING:
    from drom.agent.model.cores import Cores
    from drom.agent.model.jobs import Job, Task

PATIENCE = 1.0
"""Least seconds from one applied wish of a task to the next; of the wishes in between only the last one counts."""


def max_useful_cores(job: Job, cores: Cores) -> int:
    """Return the most cores that the programs of a job report they can use, within the job's own bounds."""
    most = [wish.most for wish in _of(job)]
    wanted = cores.sure_of(max(most)) if all(most) else job.task_max
    return max(job.task_min, min(wanted, job.task_max)) * job.most_ranks


def protected_cores(job: Job, cores: Cores, max_min: int) -> int:
    """Return the cores that arrivals leave to a job if they can start without them, by the wishes of its programs.

    `max_min`: the most CPUs that a job may insist on, 0 for any number.
    """
    wanted = cores.sure_of(max(wish.least for wish in _of(job)))
    least = max(job.task_min, min(wanted, job.task_max)) * job.least_ranks
    return max(job.least, min(least, cores.within(max_min))) if max_min else least


def applies_at(task: Task, job: Job) -> float:
    """Return when the newest wish of a task takes effect: at its turn, a larger one only after its job has rested."""
    if job.rest_until is not None and task.said.is_met_by_more_than(task.wish):
        return max(task.heeds_from, job.rest_until)
    return task.heeds_from


def _of(job: Job) -> list[Demand]:
    said = [task.wish if task else NO_DEMAND for task in job.ranks.values()]
    return [NO_DEMAND if wish.is_contradictory else wish for wish in said]
