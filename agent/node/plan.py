# SPDX-License-Identifier: Apache-2.0
"""The plan of which cores each job gets: the effect of arrivals, ends, orders and lost CPUs on the jobs of a node.

Every change is all or nothing: a method that raises `Refused` leaves the plan as it was. `drom.agent.node.grants`
decides what may be published of a plan at a given time.
"""

from __future__ import annotations

import heapq
import operator
from collections import Counter, deque
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from itertools import count
from typing import TYPE_CHECKING

from drom.agent.errors import Refused
from drom.agent.model.jobs import Job, Task, is_scheduler_job
from drom.agent.node.ledger import Move
from drom.agent.node.transaction import PlacementRefused, PlanTransaction
from drom.agent.policy import fair_share
from drom.agent.policy.fair_share import Wait
from drom.agent.text import cpus_are, in_words, span_of

from dromlib import layout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drom.agent.policy.fair_share import JobCores
    from drom.agent.policy.site_rules import SiteRules

MANY_OF_ONE_USER = 2
"""Number of running jobs of a user from which on its next job leaves CPUs to users without jobs."""


class Plan(PlanTransaction):
    """The effect of every event on the numbers of cores; `ledger` has the planned holder and the owner of each core.

    `usable` are the CPUs, by whole cores, that may be handed out; jobs that may not move, or would fall below their
    minimum, stay on others. A job with a place elsewhere never stays on cores that are `lost`.
    """

    # --- queries --------------------------------------------------------------------------------------------------

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

    def running_job(self, name: str) -> Job:
        """Return the job of that name if it has cores. Raises `Refused` if there is none."""
        job = self.jobs.get(name)
        if job is None:
            msg = f"there is no job {name}: see `drom ps`."
            raise Refused(msg)
        if not job.cores:
            msg = f"job {name} still waits for its first cores: it can be resized once it runs."
            raise Refused(msg)
        return job

    def why_kept(self, job: Job) -> str:
        """Return a sentence that says why a job is on CPUs to be avoided; empty if it is on none."""
        if not job.planned & self.avoided:
            return ""
        if (lost := job.planned & self.lost) and self._must_leave(job):
            needs = self.cores.amount(job.cores if job.frozen else job.task_min * len(job.ranks))
            return (
                f"{cpus_are(lost)} gone, and there is no room elsewhere for the {needs} that job "
                f"{job.name} needs: the kernel chooses its CPUs."
            )
        if job.frozen:
            return f"job {job.name} is {job.job_class}: it keeps its cores until it ends."
        if job.pinned:
            return f"job {job.name} has CPUs by an order: it keeps them until `drom resize {job.name} auto`."
        return f"job {job.name} stays where it is: elsewhere it would have less than its minimum."

    def growable_jobs(self) -> list[str]:
        """Return the jobs that could use another core, may have it, and are not resting."""
        running, total = self.running(), self.total()
        rooms = {
            user: fair_share.user_headroom(user, running, total, self.cap) for user in {job.user for job in running}
        }
        able = [job for job in running if not job.fixed and job.cores < job.maximum]
        return [job.name for job in able if rooms[job.user] and self.jobs[job.name].rest_until is None]

    def reclaimable_cores(self, now: float) -> int:
        """Return how many free cores are kept for resting owners: no job may grow into them."""
        owed = self._owed_to()
        if not owed:
            return 0
        running = self.running_at(now)
        after_rest = [replace(job, rests=not job.rests) if job.name in owed else job for job in running]
        cores = fair_share.return_to_owners(after_rest, owed, self.total(), self.cap)
        return sum(cores[job.name] - job.cores for job in after_rest)

    def target(self, task: Task) -> int:
        """Return the task's planned CPUs without those that are gone; all of them if every one is gone."""
        target = self.jobs[task.job].targets.get(task.rank, 0)
        return target & ~self.gone or target

    def owned(self, task: Task) -> int:
        """Return the CPUs that the task's job owns: its tasks own them together."""
        return self.ledger.owned.get(task.job, 0)

    # --- events ---------------------------------------------------------------------------------------------------

    def queue(self) -> list[Job]:
        """Return the waiting jobs in the order of admission, computed as if each were admitted with its minimum.

        The next job is always the first one of the user whose jobs have the fewest cores. The jobs of one user are in
        the order of arrival, which also decides between users with equally many cores.
        """
        jobs = [job for job in self.jobs.values() if not job.cores]
        if len(jobs) < 2:
            return jobs
        has: Counter[int] = Counter()
        for view in self.running():
            has[view.user] += view.cores
        waiting: dict[int, deque[tuple[int, Job]]] = {}
        for place, job in enumerate(jobs):
            waiting.setdefault(job.user, deque()).append((place, job))
        heap = [(has[user], theirs[0][0], user) for user, theirs in waiting.items()]
        heapq.heapify(heap)
        found: list[Job] = []
        while heap:
            had, _, user = heapq.heappop(heap)
            job = waiting[user].popleft()[1]
            found.append(job)
            if waiting[user]:
                heapq.heappush(heap, (had + job.task_min * len(job.ranks), waiting[user][0][0], user))
        return found

    def admit_waiting(self, now: float) -> None:
        """Admit waiting jobs in order: a job never overtakes another one that waits for a resource that both need."""
        ahead: list[tuple[Job, Wait]] = []
        tried: set[str] = set()
        queue = deque(self.queue())
        while queue:
            job = queue.popleft()
            tried.add(job.name)
            if behind := self._behind(job, ahead):
                job.waits_for = behind
                continue
            wait = self._wait_for_memory(job) or self._admit(job, now)
            job.waits_for = wait.reason if wait else ""
            if wait:
                ahead.append((job, wait))
            elif queue:
                queue = deque(job for job in self.queue() if job.name not in tried)
        self._reasons = None

    def why_waits(self, job: Job) -> str:
        """Return a sentence that says what a job waits for, by current numbers; empty if it has cores."""
        if self._reasons is None:
            self._reasons, ahead = {}, list[tuple[Job, Wait]]()
            for one in self.queue():
                behind = self._behind(one, ahead)
                if not behind:
                    wait = self._wait_for_memory(one)
                    counts = wait or self._counts_with(self.view(one))
                    ahead.append((one, counts if isinstance(counts, Wait) else Wait(one.waits_for)))
                self._reasons[one.name] = behind or ahead[-1][1].reason
        return self._reasons.get(job.name, "")

    def _behind(self, job: Job, ahead: Sequence[tuple[Job, Wait]]) -> str:
        """Return a sentence that says why a job must wait behind the waiting jobs `ahead`; empty if it need not."""
        first = next((first for first, wait in ahead if _waits_behind(job, first, wait)), None)
        if first is None:
            return ""
        if first.arrived < job.arrived:
            return "others arrived before it."
        has = {user: sum(view.cores for view in self.running() if view.user == user) for user in (first.user, job.user)}
        fewer = has[first.user] < has[job.user]
        return "users who have fewer CPUs come first." if fewer else "users take turns: a job of another user is next."

    def _admit(self, job: Job, now: float) -> Wait | None:
        """Admit a job, with fewer cores if strict layouts leave no room for more; return why if it has to wait."""
        view, why = self.view(job), ""
        while view.maximum >= view.minimum:
            counts = self._counts_with(view)
            if isinstance(counts, Wait):
                return counts
            try:
                self._replan(counts, "share", now)
            except PlacementRefused as misplaced:
                why = str(misplaced)
                if not misplaced.job:
                    break
                view = replace(view, maximum=counts[job.name] - 1)
            else:
                return None
        return Wait(why)

    def _counts_with(self, new: JobCores) -> dict[str, int] | Wait:
        """Return the cores of every job once the waiting job `new` runs too, or why it has to wait."""
        could, cap = self.total() + self.cores.count(self.busy), self.cap
        if beyond := fair_share.why_never(new, could, cap, told=self.cores):
            return beyond
        counts = fair_share.admit(new, self.running(), self.total(), self.rules.sharing_factor, cap, told=self.cores)
        if not isinstance(counts, Wait) and self._takes_the_last(new, counts):
            return Wait("the last CPUs that running jobs can lend are kept for users without running jobs.", "user")
        return counts

    def _takes_the_last(self, new: JobCores, counts: Mapping[str, int]) -> bool:
        """Return whether an arrival would take cores from other jobs that must be left for users without jobs.

        Free cores are never left idle for such users.
        """
        rules, running = self.rules, self.running()
        if not rules.spare_for_newcomers or new.user in rules.free:
            return False
        if counts[new.name] <= self.total() - sum(job.cores for job in running):
            return False
        if sum(job.user == new.user for job in running) < MANY_OF_ONE_USER:
            return False
        fixed = self.jobs[new.name].job_class != "malleable"
        jobs = [*running, replace(new, fixed=fixed)]
        enough = self.cores.needed_for(rules.spare_for_newcomers)
        return not fair_share.could_lend(enough, counts, jobs, self.total(), rules.sharing_factor)

    def _wait_for_memory(self, job: Job) -> Wait | None:
        if not self.memory or not job.declared:
            return None
        left = self.memory - sum(other.declared for other in self.jobs.values() if other.cores)
        if job.declared <= max(0, left):
            return None
        needs, has = in_words(job.declared), in_words(max(0, left))
        return Wait(f"needs {needs} of memory: running jobs leave {has} of {in_words(self.memory)}.", "memory")

    def hand_out(self, now: float, reason: str = "death") -> None:
        """Hand out free cores: to their owners, to waiting arrivals, then to the smallest jobs that can use them.

        Before that, jobs on CPUs to be avoided are moved, and jobs of users above the cap, except by orders, give up
        what exceeds it: the cap of an earlier agent was higher, or orders have ended.
        """
        if self.avoided:
            self._vacate(now)
        if self.cap:
            ordered = {job.user for job in self.jobs.values() if job.hold is not None or job.pinned}
            self._replan_as_far(partial(fair_share.within_cap, cap=self.cap, but=ordered), "avoid", now)
        self._trim(now)
        if owed := self._owed_to():
            total, cap = self.total(), self.cap
            self._replan_as_far(lambda jobs: fair_share.return_to_owners(jobs, owed, total, cap), "return", now)
        self.admit_waiting(now)
        self._grow(now, reason)

    def _trim(self, now: float) -> None:
        """Take from jobs the cores that their programs report they cannot use."""
        for job in [job for job in self.running() if job.cores > job.maximum and not job.fixed]:
            self._replan_as_far(partial(fair_share.drop_surplus, name=job.name), "wish", now)

    def apply_demand(self, job: Job, now: float) -> None:
        """Replan after a job's wishes have changed: the job competes, once, for cores that it can use again."""
        self.touch(job)
        view = self.view(job)
        if job.cores and not view.fixed and job.cores < self._share(job):
            self._compete(job, "wish", now)
        self.hand_out(now, "wish")

    def _grow(self, now: float, reason: str) -> None:
        rules, before = self.rules, None
        margin = rules.margin if rules.residence else 0.0
        # A job that grows may get cores that were kept for an owner; then as many other cores lose their owner.
        while (spare := self.total() - self.reclaimable_cores(now)) != before:
            before = spare
            self._replan_as_far(partial(fair_share.grow, total=spare, cap=self.cap, margin=margin), reason, now)
        if rules.residence:
            self._set_to_rest(now, idle=spare > sum(job.cores for job in self.running()))

    def set_usable_cpus(self, mask: int, now: float, gone: int = 0) -> None:
        """Hand out only the CPUs in `mask` from now on, and of these only whole cores, not counting CPUs in `gone`."""
        changed, self.gone = self.gone ^ gone, gone
        self.usable = sum(core for core in self.cores if core & ~gone and not core & ~gone & ~mask)
        self._outdated.update(self.jobs)
        self._reasons = None
        for job in [job for job in self.jobs.values() if job.planned & changed]:
            self.touch(job)
        self.hand_out(now, "avoid")

    def apply_rules(self, rules: SiteRules, memory: int, now: float) -> None:
        """Apply new rules and a new memory size (bytes): users above the cap give up what exceeds it."""
        self.rules, self.memory = rules, memory
        for job in self.jobs.values():
            job.rest_until = job.rest_until if rules.residence else None
            self.touch(job)
        self._replan_as_far(partial(fair_share.within_cap, cap=self.cap), "avoid", now)
        self.hand_out(now, "share")

    def _vacate(self, now: float) -> None:
        """Move jobs off the CPUs to be avoided, shrinking jobs as needed: all together, or each one that can."""
        there = [job for job in self.jobs.values() if job.planned & self.avoided and self._must_leave(job)]
        if there and not self._move_off(there, now) and len(there) > 1:
            for job in there:
                self._move_off([job], now)
        self.settle_owners()

    def _must_leave(self, job: Job) -> bool:
        """Return whether a job on cores to be avoided must leave them if it has a place elsewhere.

        An order for exact CPUs remains in effect as long as one of them exists.
        """
        if job.pinned:
            return any(mask and not mask & ~self.gone for mask in job.targets.values())
        return not job.frozen or bool(job.planned & self.lost)

    def _move_off(self, movers: Sequence[Job], now: float) -> bool:
        names = {job.name for job in movers}
        running = [replace(j, fixed=self._fixed(self.jobs[j.name])) if j.name in names else j for j in self.running()]
        leaving = reduce(operator.or_, (job.planned for job in movers))
        counts = fair_share.shrink_to(running, self.total(leaving))
        if isinstance(counts, Wait):
            return False
        try:
            self._replan(counts, "avoid", now, {(job.name, rank): 0 for job in movers for rank in job.ranks})
        except Refused:
            return False
        for job in movers:
            job.hold_by = job.hold_by if job.hold is not None else None  # exact CPUs that are gone end their order
        return True

    def _set_to_rest(self, now: float, *, idle: bool) -> None:
        """End the rest of jobs that is over. If cores are left `idle`, jobs that could use some wait for more."""
        hungry = self.growable_jobs() if idle else []
        for job in self.jobs.values():
            if job.rest_until is not None and job.rest_until <= now:
                job.rest_until = None
        for name in hungry:
            self.jobs[name].rest_until = now + self.rules.residence
            self.timed.add(name)

    def _owed_to(self) -> Counter[str]:
        """Return, for each job, how many free cores it owns."""
        free = self.cores.numbers(self.usable & ~self.cores.whole(self.ledger.planned))
        return Counter(owner for core in free if (owner := self.ledger.owners[core]) is not None)

    def drop_rank(self, job: Job, rank: int) -> None:
        """Remove a rank and its cores from a job; the last rank removes the job too, unless it is a scheduler's."""
        if job.reserved:
            job.ranks[rank] = None
            self.touch(job)
            return
        del job.ranks[rank]
        gone = {rank} if job.present else {rank, *job.targets}  # the last task drops absent ranks too
        before = job.planned
        masks = [job.targets.pop(rank, 0) for rank in gone]
        if any(masks):
            self._note(job, before, "death", self.event)
        self.ledger.move([Move(job.name, mask, 0) for mask in masks])
        job.cores -= sum(map(self.cores.count, masks))
        if not job.present:
            del self.jobs[job.name]
            self.settle_owners()
        elif job.hold is not None:
            job.hold = job.cores
        self.touch(job)

    def drop(self, job: Job) -> None:
        """Remove a job without tasks."""
        self.ledger.move([Move(job.name, mask, 0) for mask in job.targets.values()])
        del self.jobs[job.name]
        self.settle_owners()
        self.touch(job)

    def refuse_memory(self, job: Job) -> None:
        """Raise `Refused` if running jobs leave less memory than a job declares."""
        if wait := self._wait_for_memory(job):
            raise Refused(f"job {job.name} {wait.reason}")

    def adopt_late_ranks(self, job: Job, now: float) -> None:
        """Place ranks that had not started when others of their job had; if there is no place for them, they queue."""
        late = [task for task in job.present if job.cores and task.rank not in job.targets]
        if not late:
            return
        counts = fair_share.hold(job.name, max(job.cores, job.task_min * len(job.ranks)), self.running(), self.total())
        if not job.frozen and not self.why_kept(job) and not isinstance(counts, Wait):
            with suppress(Refused):
                self._replan(counts, "arrival", now)
                return
        name = self.free_name(job.asked)
        ranks: dict[int, Task | None] = {task.rank: task for task in late}
        self.jobs[name] = replace(job, name=name, ranks=ranks, targets={}, cores=0, hold=None, hold_until=None)
        for task in late:
            del job.ranks[task.rank]
            task.job = name
        for changed in (job, self.jobs[name]):
            self.touch(changed)

    # --- orders ---------------------------------------------------------------------------------------------------

    def hold(self, name: str, cpus: int, now: float, until: float | None = None) -> None:
        """Fix a job at `cpus` hardware threads (whole cores, rounded up) until `let_go`. Raises `Refused`.

        `until` is when the caller must call `let_go` (seconds of CLOCK_MONOTONIC).
        """
        job = self._changeable_job(name)
        cores, least, most = self.cores.sure_of(cpus), job.task_min * len(job.ranks), self.most(job)
        if not least <= cores <= most:
            can = span_of(self.cores.cpus(least), self.cores.cpus(most))
            msg = f"job {name} can have {can}, not {cpus}: see its min and max."
            raise Refused(msg)
        self.fix_size(job, cores, now)
        job.hold_until = until
        self.hand_out(now, "order")

    def fix_size(self, job: Job, cores: int, now: float) -> None:
        """Give a job exactly `cores` cores, by an order. Raises `Refused`. The caller then hands out what is left."""
        counts = fair_share.hold(job.name, cores, self.running(), self.total(job.planned), self.cores)
        if isinstance(counts, Wait):
            raise Refused(f"job {job.name} cannot have {self.cores.amount(cores)}: {counts.reason}")
        self._replan(counts, "order", now, {(job.name, rank): 0 for rank in job.ranks})
        job.hold, job.hold_until, job.hold_by = cores, None, self.event.by
        self.touch(job)

    def end_hold(self, name: str, now: float) -> None:
        """End an order: the job competes for its equal share again. Raises `Refused` if it is not running."""
        job = self.running_job(name)
        job.hold = job.hold_until = job.hold_by = None
        for task in job.present:
            task.pin = 0
        self.touch(job)
        if not job.frozen and not self.why_kept(job):
            self._compete(job, "order", now)
        self.hand_out(now, "order")

    def _share(self, job: Job) -> int:
        """Return a running job's equal share in cores, at least its minimum."""
        view = replace(self.view(job), fixed=False)
        others = [other for other in self.running() if other.name != job.name]
        return max(view.minimum, fair_share.equal_shares([*others, view], self.total(), self.cap)[job.name])

    def _compete(self, job: Job, reason: str, now: float) -> None:
        """Give a job its equal share as if it arrived, except that SharingFactor does not bound what it takes."""
        others = [other for other in self.running() if other.name != job.name]
        view = replace(self.view(job), cores=0, maximum=self._share(job))
        counts = fair_share.admit(view, others, self.total(), 1.0, self.cap)
        if not isinstance(counts, Wait):
            with suppress(Refused):
                self._replan(counts, reason, now)

    def pin(self, task: Task, mask: int, now: float) -> None:
        """Give a task exactly the CPUs in `mask` until `let_go`, whatever was ordered before.

        Raises `Refused` if they are not available.
        """
        job = self._changeable_job(task.job)
        if not mask or mask & ~self.cores.all:
            raise Refused("some of these CPUs are not managed here: see `drom topology`.")
        if mask & self.avoided:
            msg = f"{cpus_are(mask & self.avoided)} to be left alone now: choose others."
            raise Refused(msg)
        if mask.bit_count() < self.floor(job) or self.cores.count(mask) > job.task_max:
            can = span_of(self.floor(job), self.cores.cpus(job.task_max))
            msg = f"a task of job {job.name} can have {can}, not {mask.bit_count()}: see its min and max."
            raise Refused(msg)
        if owner := self._immovable_jobs(self.cores.whole(mask), task):
            msg = f"job {owner} may not be moved from CPUs among these: choose others."
            raise Refused(msg)
        rest = sum(self.cores.count(target) for rank, target in job.targets.items() if rank != task.rank)
        total = self.total(job.targets[task.rank])
        counts = fair_share.hold(job.name, self.cores.count(mask) + rest, self.running(), total, self.cores)
        if isinstance(counts, Wait):
            raise Refused(f"these CPUs are not available: {counts.reason}")
        self._replan(counts, "order", now, {(job.name, task.rank): mask})
        job.hold, job.hold_until, job.hold_by = None, None, self.event.by
        self.hand_out(now, "order")

    def _changeable_job(self, name: str) -> Job:
        job = self.running_job(name)
        if job.frozen:
            msg = f"job {name} is {job.job_class}: it keeps its cores until it ends."
            raise Refused(msg)
        return job

    def _immovable_jobs(self, cores: int, asker: Task) -> str | None:
        """Return the name of a job with a task, not `asker`, that must keep some of the CPUs in `cores`, or None."""
        for job in self.jobs.values():
            stays = self.why_kept(job)
            for rank, target in job.targets.items():
                task = job.ranks[rank]
                still = job.frozen or stays or (task is not None and task.pin)
                if still and task is not asker and cores & self.cores.whole(target):
                    return job.name
        return None


def _cut(name: str, room: int) -> str:
    """Return a job's name cut so that it fits into a slot together with a suffix of `room` bytes."""
    return layout.cut_text(name, layout.NAME_SIZE - room).rstrip(b"\0").decode()


def _waits_behind(job: Job, first: Job, wait: Wait) -> bool:
    """Return whether a job must wait because it could take what the earlier job `first` waits for.

    A job that waits for cores holds up all others. A job that waits for memory would never start if others that declare
    memory overtook it, but those that declare none do not delay it. A cap holds up only jobs of the same user. No job
    waits behind one that waits for the rules or the machine to change.
    """
    if wait.resource == "memory":
        return job.memory > 0
    return wait.resource == "cores" or (wait.resource == "user" and job.user == first.user)
