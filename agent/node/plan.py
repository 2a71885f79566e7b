# SPDX-License-Identifier: Apache-2.0
"""The plan of a node: its jobs, the cores planned for each of their tasks, and the jobs as the policy sees them.

Events change a plan through a `drom.agent.node.transaction.Transaction`; `drom.agent.node.grants` decides what may be
published of it at a given time.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from drom.agent.model import layouts
from drom.agent.model.jobs import Job, Task, is_scheduler_job
from drom.agent.node.changes import Changes, Index
from drom.agent.node.ledger import Ledger, Move
from drom.agent.policy import demand
from drom.agent.policy.fair_share import JobCores
from drom.agent.text import cpus_are

from dromlib import layout as binary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drom.agent.model.cores import Cores
    from drom.agent.node.ledger import Owner
    from drom.agent.placement.ranks import PlacementKernel
    from drom.agent.policy.site_rules import SiteRules

MANY = 128
"""Number of tasks beyond which only the tasks of jobs that have to move are placed anew."""


class Plan:
    """The jobs of a node by name in the order of arrival, and their tasks' targets, which `ledger` records by core.

    `usable` are the CPUs, by whole cores, that may be handed out; jobs that may not move, or would fall below their
    minimum, stay on others. A job with a place elsewhere never stays on cores that are `lost`. `gone` are CPUs that do
    not exist any more: a core is handed out with its remaining ones. `busy` and `foreign` are CPUs that are not
    `usable` only because unmanaged programs keep them busy, and because they are left to jobs of a batch system.
    `changes` records the names of jobs of which anything may have changed that their tasks do not record themselves.
    `timed`, `restless`, `laid_out` and `confined` are the jobs that have times,
    that are not settled, that requested a layout, and that have a cpuset. `memory` is the memory of the node (bytes),
    0 if unknown; `layout` is the layout of jobs that request none. `arrivals` counts the jobs that have arrived.
    """

    def __init__(
        self,
        cores: Cores,
        place: PlacementKernel,
        rules: SiteRules,
        memory: int = 0,
        layout: layouts.Layout = layouts.ANY,
    ) -> None:
        self.cores = cores
        self.place = place
        self.rules = rules
        self.memory = memory
        self.layout = layout
        self.arrivals = 0
        self.usable = cores.all
        self.gone = 0
        self.busy = 0
        self.foreign = 0
        self.jobs: dict[str, Job] = {}
        self.ledger = Ledger(cores)
        self.changes: Changes[str] = Changes()
        self.timed = Index(self.changes, self._has_times)
        self.restless = Index(self.changes, self._is_restless)
        self.laid_out = Index(self.changes, self._has_layout)
        self.confined = Index(self.changes, self._has_cpuset)
        self.many = MANY
        self.reasons: dict[str, str] | None = None
        """What each waiting job waits for, by name; None if that must be determined anew."""
        self._views: dict[str, JobCores] = {}
        """The jobs that have cores, in the order of arrival, as the policy saw them at its last call."""
        self._outdated = self.changes.reader()

    # --- CPUs -----------------------------------------------------------------------------------------------------

    @property
    def avoided(self) -> int:
        """The CPUs that must not be handed out."""
        return self.cores.all & ~self.usable

    @property
    def lost(self) -> int:
        """The CPUs of cores that have lost all their CPUs."""
        return sum(core for core in self.cores if not core & ~self.gone) if self.gone else 0

    def target(self, task: Task) -> int:
        """Return the task's planned CPUs without those that are gone; all of them if every one is gone."""
        target = self.jobs[task.job].targets.get(task.rank, 0)
        return target & ~self.gone or target

    def owned(self, task: Task) -> int:
        """Return the CPUs that the task's job owns: its tasks own them together."""
        return self.ledger.owned.get(task.job, 0)

    # --- jobs -----------------------------------------------------------------------------------------------------

    def free_name(self, wanted: str) -> str:
        """Return `wanted`, or `wanted.N` with the first N from 2 that no job has; names of schedulers count as taken.

        A number gets the prefix ``job-``, as orders use numbers for pids of tasks. Names are cut to the slot's field.
        """
        stem = f"job-{wanted}" if wanted.isdecimal() else wanted
        name = _cut(stem, 0)
        if name not in self.jobs and not is_scheduler_job(name):
            return name
        for digits in count(1):
            cut = _cut(stem, 1 + digits)
            for n in range(max(2, 10 ** (digits - 1)), 10**digits):
                name = f"{cut}.{n}"
                if name not in self.jobs:
                    return name
        raise AssertionError(wanted)

    def why_kept(self, job: Job) -> str:
        """Return a sentence that says why a job is on CPUs to be avoided; empty if it is on none."""
        if not job.planned & self.avoided:
            return ""
        if (lost := job.planned & self.lost) and self.must_leave(job):
            needs = self.cores.amount(job.cores if job.frozen else job.least)
            return (
                f"{cpus_are(lost)} gone, and there is no room elsewhere for the {needs} that job "
                f"{job.name} needs: the kernel chooses its CPUs."
            )
        if job.frozen:
            return f"job {job.name} is {job.job_class}: it keeps its cores until it ends."
        if job.pinned:
            return f"job {job.name} has CPUs by an order: it keeps them until `drom resize {job.name} auto`."
        return f"job {job.name} stays where it is: elsewhere it would have less than its minimum."

    def must_leave(self, job: Job) -> bool:
        """Return whether a job on cores to be avoided must leave them if it has a place elsewhere.

        An order for exact CPUs remains in effect as long as one of them exists.
        """
        if job.pinned:
            return any(mask and not mask & ~self.gone for mask in job.targets.values())
        return not job.frozen or bool(job.planned & self.lost)

    def is_fixed(self, job: Job) -> bool:
        """Return whether a job neither lends nor grows, wherever it is."""
        return bool(job.cores) and (job.job_class != "malleable" or job.hold is not None or job.pinned)

    def floor(self, job: Job) -> int:
        """Return the least number of CPUs in any grant of a task of the job."""
        return self.cores.cpus(job.task_min)

    def most(self, job: Job) -> int:
        """Return the most cores that the job can use on this node."""
        least, most = job.least, job.task_max * len(job.ranks)
        if job.cpusets:
            most = sum(min(job.task_max, self.cores.count(self.cpuset(job, rank))) for rank in job.ranks)
        return max(least, min(most, layouts.most(job.layout, self.cores.sizes), self.cores.count(self.cpuset(job))))

    def cpuset(self, job: Job, rank: int | None = None) -> int:
        """Return the CPUs that a job, or one rank of it, may have."""
        cpuset = job.cpuset if rank is None else job.cpusets.get(rank, job.cpuset)
        return cpuset or self.cores.all

    # --- as the policy sees it ------------------------------------------------------------------------------------

    @property
    def cap(self) -> int:
        """The cores that the jobs of one user may have together, 0 for any number."""
        return self.cores.within(self.rules.max_cpus_per_user)

    def view(self, job: Job) -> JobCores:
        """Return the job as the policy sees it."""
        tasks = 1 if job.least_ranks < len(job.ranks) else len(job.ranks)
        fixed = self.is_fixed(job) or bool(job.planned & self.avoided)
        most = min(self.most(job), demand.max_useful_cores(job, self.cores))
        keeps = demand.protected_cores(job, self.cores, self.rules.max_min)
        return JobCores(job.name, job.user, tasks, job.least, most, job.cores, fixed, keeps=keeps)

    def running(self) -> list[JobCores]:
        """Return the jobs that have cores, as the policy sees them."""
        outdated = set(self._outdated)
        self._outdated.clear()
        now = {name: self.view(self.jobs[name]) for name in outdated if name in self.jobs and self.jobs[name].cores}
        for name in outdated - now.keys():
            self._views.pop(name, None)
        if now.keys() <= self._views.keys():
            self._views |= now
        else:
            views = self._views | now
            self._views = {name: views[name] for name in self.jobs if name in views}
        return list(self._views.values())

    # --- bookkeeping ----------------------------------------------------------------------------------------------

    def touch(self, job: Job) -> None:
        """Record that the job or its tasks have changed."""
        self.changes.mark(job.name)
        self.reasons = None

    def _has_times(self, name: str) -> bool:
        return name in self.jobs and bool(self.jobs[name].times)

    def _is_restless(self, name: str) -> bool:
        """Return whether a job is not settled, or has CPUs that are gone, as such grants change without a plan."""
        job = self.jobs.get(name)
        return job is not None and (not job.settled or bool(job.planned & self.gone))

    def _has_cpuset(self, name: str) -> bool:
        return name in self.jobs and bool(self.jobs[name].cpuset or self.jobs[name].cpusets)

    def _has_layout(self, name: str) -> bool:
        return name in self.jobs and self.jobs[name].layout.kind != "default"

    def adopt(self, owners: Sequence[Owner]) -> None:
        """Take over the present targets of the jobs, and the owner of each core."""
        self.ledger.move([Move(job.name, 0, target) for job in self.jobs.values() for target in job.targets.values()])
        self.ledger.own(dict(enumerate(owners)))
        self.settle_owners()
        for job in self.jobs.values():
            self.touch(job)

    def set_usable_cpus(self, mask: int, gone: int, busy: int, foreign: int) -> None:
        """Hand out only the CPUs in `mask` from now on, and of these only whole cores, not counting CPUs in `gone`."""
        self.busy, self.foreign = busy, foreign
        changed, self.gone = self.gone ^ gone, gone
        self.usable = sum(core for core in self.cores if core & ~gone and not core & ~gone & ~mask)
        self._outdated.update(self.jobs)
        self.reasons = None
        for job in [job for job in self.jobs.values() if job.planned & changed]:
            self.touch(job)

    def drop(self, job: Job) -> None:
        """Remove a job without tasks."""
        self.ledger.move([Move(job.name, mask, 0) for mask in job.targets.values()])
        del self.jobs[job.name]
        self.settle_owners()
        self.touch(job)

    def settle_owners(self) -> None:
        """Update the owners from the planned holders; avoided cores without a holder lose their owner."""
        changed = self.ledger.settle(self._has_cores)
        if idle := self.avoided & ~self.cores.whole(self.ledger.planned):
            changed |= self.ledger.own(dict.fromkeys(self.cores.numbers(idle)))
        for name in changed:
            self.touch(self.jobs[name])

    def _has_cores(self, name: Owner) -> bool:
        job = self.jobs.get(name or "")
        return job is not None and bool(job.cores)


def _cut(name: str, room: int) -> str:
    """Return a job's name cut so that it fits into a slot together with a suffix of `room` bytes."""
    return binary.cut_text(name, binary.NAME_SIZE - room).rstrip(b"\0").decode()
