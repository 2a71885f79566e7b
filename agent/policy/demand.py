# SPDX-License-Identifier: Apache-2.0
"""What programs say that they can use, and how far the policy goes by it. Pure.

A wish is no order: it gives a program nothing that it could not have asked for at its launch. It counts within the
bounds of its job, what it insists on also within the site's cap on that (`Rules.max_min`), and alike for all tasks:

    accepts = tasks * max over tasks of most     (all that the job may have if any task leaves it unsaid)
    keeps   = tasks * max over tasks of least    (left to the job by arrivals that can start without)

in whole cores, rounded up. A wish that contradicts itself counts for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.agent.model.jobs import UNSAID, Wish

if TYPE_CHECKING:
    from drom.agent.model.cores import Cores
    from drom.agent.model.jobs import Job, Task

PATIENCE = 1.0
"""Least seconds from one wish of a task that is heeded to the next; of those in between the last one counts."""


def accepts(job: Job, cores: Cores) -> int:
    """Return the most cores that the programs of a job say they can use, between its own bounds."""
    most = [wish.most for wish in _of(job)]
    wanted = cores.sure_of(max(most)) if all(most) else job.task_max
    return max(job.task_min, min(wanted, job.task_max)) * len(job.ranks)


def keeps(job: Job, cores: Cores, max_min: int) -> int:
    """Return the cores that arrivals which can start without leave to a job, as its programs say.

    `max_min`: the CPUs that a job may insist on, 0 for any number.
    """
    wanted = cores.sure_of(max(wish.least for wish in _of(job)))
    least = max(job.task_min, min(wanted, job.task_max)) * len(job.ranks)
    return max(job.task_min * len(job.ranks), min(least, cores.within(max_min))) if max_min else least


def due(task: Task, job: Job) -> float:
    """Return when the newest wish of a task is to be heeded: in its turn, and a larger one when its job has rested."""
    if job.rest_until is not None and task.said.is_met_by_more_than(task.wish):
        return max(task.heeds_from, job.rest_until)
    return task.heeds_from


def _of(job: Job) -> list[Wish]:
    said = [task.wish if task else UNSAID for task in job.ranks.values()]
    return [UNSAID if wish.contradicts_itself else wish for wish in said]
