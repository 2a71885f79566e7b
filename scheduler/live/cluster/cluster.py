# SPDX-License-Identifier: Apache-2.0
"""The state machine of a live cluster: users' orders, agents' messages and times in, messages and records out.

No I/O: times are unix seconds that never decrease, and come in as arguments.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from drom.agent.text import LONGEST
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import NEVER
from drom.scheduler.live.cluster import admission, launch, ranges, units
from drom.scheduler.live.cluster.agents import Agents
from drom.scheduler.live.cluster.executions import Executions
from drom.scheduler.live.cluster.fillers import Fillers
from drom.scheduler.live.cluster.job_queue import JobQueue
from drom.scheduler.live.cluster.jobs import (
    CANCELLED,
    ENDING,
    FINAL,
    ON_NODES,
    PENDING,
    REQUEUE,
    RUNNING,
    Job,
    Node,
    User,
)
from drom.scheduler.live.cluster.loans import Loans
from drom.scheduler.live.cluster.membership import Membership
from drom.scheduler.live.cluster.partitions import partition_of
from drom.scheduler.live.cluster.spec import MOST_DEPENDENCIES, Dependency, Spec, array_of, changed, name_of, sized
from drom.scheduler.live.cluster.state import ClusterState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.live.cluster.driver import Driver
    from drom.scheduler.live.cluster.fair_share import Usage
    from drom.scheduler.live.cluster.settings import Settings
    from drom.scheduler.live.cluster.spec import Notice


class Cluster:
    """Jobs, nodes, and the policy that places the jobs on the nodes. Raises SchedulerError as `Controller`.

    `queue` has the jobs that wait, `executions` those on nodes, `members` the nodes, and `loans` those that are lent
    or borrowed; `agents` takes the messages of all. `past` returns the final state of a job that is no longer kept, or
    None, and `former` that job; `usage` is what users have used as far as it was stored.
    """

    def __init__(
        self,
        policy: Policy,
        settings: Settings,
        past: Callable[[int], str | None] = lambda _: None,
        usage: Usage | None = None,
        former: Callable[[int], Job | None] = lambda _: None,
    ) -> None:
        self.state = ClusterState(policy, settings, past, usage)
        self.queue = JobQueue(self.state)
        self.executions = Executions(self.state, self.queue)
        self.fillers = Fillers(self.state, self.queue, self.executions)
        self.members = Membership(self.state, self.queue, self.executions, self.fillers)
        self.loans = Loans(self.state, self.queue, self.executions, self.members)
        self.agents = Agents(self.state, self.executions, self.fillers, self.members)
        self.policy, self.settings, self.usage = policy, settings, self.state.usage
        self.jobs, self.nodes, self.outbox = self.state.jobs, self.state.nodes, self.state.outbox
        self.placements, self.dispatch = self.state.placements, self.state.dispatch
        self.holdings = self.state.holdings
        self._former = former
        self._next = 1

    @property
    def controller(self) -> Driver | None:
        """The driver of the policy; None before the first node."""
        return self.state.controller

    @property
    def cores_of_nodes(self) -> int:
        """The cores of each node; 0 before the first one, and if nodes may be unlike."""
        return self.controller.cores if self.controller else 0

    # --- users ----------------------------------------------------------------------------------------------------

    def submit(self, spec: Spec, user: User, now: float) -> Job:
        """Add a job and return it. Raises SchedulerError for one that can never run here."""
        (job,) = self.submit_many(spec, user, now, 1)
        return job

    def submit_many(self, spec: Spec, user: User, now: float, count: int) -> list[Job]:
        """Add `count` equal jobs, or those of an array, and return them.

        Raises SchedulerError for jobs that can never run here.
        """
        spec = self._checked(self._naming_all(spec), user)
        first, indices = self._next, array_of(spec.array).indices if spec.array else ()
        jobs = [Job(number, spec, user, now, array=first, index=index) for number, index in enumerate(indices, first)]
        jobs = jobs or [Job(number, spec, user, now) for number in range(first, first + count)]
        for job in jobs:
            self._take_in(job, now)
        return jobs

    def _checked(self, spec: Spec, user: User) -> Spec:
        """Return a specification with its size. Raises SchedulerError for a job that can never run here."""
        if self.controller is None:
            raise SchedulerError("no node has joined yet: an administrator adds one with drom agent --scheduler.")
        partition = partition_of(spec.partition, self.settings.partitions)
        usual = self.settings.limit(0)
        if partition:
            usual = partition.limit(usual)
            spec = replace(spec, partition=partition.name)
        time = spec.time or (LONGEST if spec.saving else usual)
        spec = replace(self._sized(spec, self.controller.cores), time=time)
        if partition:
            partition.check(spec)
        self.queue.check(spec)
        launch.check(spec, user)
        admission.check_dependencies(spec, self.state.state_of)
        return spec

    def _sized(self, spec: Spec, cores: int) -> Spec:
        """Return a specification with what its size leaves open; `cores` are those of each node, if all are equal."""
        nodes = self.nodes.values()
        if self.policy.pooled:
            return ranges.sized(spec, nodes, self.policy)
        ranges.refuse(spec, self.policy)
        if self.policy.divides_nodes:
            return units.sized(spec, nodes)
        spec = sized(spec, cores)
        ranges.check_nodes(spec)
        return spec

    def _naming_all(self, spec: Spec) -> Spec:
        """Return a specification in which dependencies on arrays, or on jobs in arrays, name single jobs by number.

        Raises SchedulerError if these are too many, and for a job that is not in its array.
        """
        after = list(islice((single for one in spec.after for single in self._singles(one)), MOST_DEPENDENCIES + 1))
        if len(after) > MOST_DEPENDENCIES:
            msg = f"the job waits for more than {MOST_DEPENDENCIES} jobs, the most for one: name fewer arrays."
            raise SchedulerError(msg)
        return replace(spec, after=tuple(dict.fromkeys(after)))

    def _singles(self, one: Dependency) -> Iterator[Dependency]:
        """Yield dependencies on single jobs that mean the same as `one`."""
        numbers = self._jobs_of(one)
        array = one.job if one.kind == "afternotok" and len(numbers) > 1 else None
        return (Dependency(one.kind, number, array=array) for number in numbers)

    def _jobs_of(self, one: Dependency) -> Sequence[int]:
        """Return the numbers of the jobs that a dependency names. Raises SchedulerError for one not in its array."""
        first = self.jobs.get(one.job) or self._former(one.job)
        indices = array_of(first.spec.array).indices if first and first.array == one.job else ()
        if one.element is None:
            return range(one.job, one.job + max(1, len(indices)))
        if one.element not in indices:
            msg = f"there is no job {one.job}_{one.element} to wait for: see drom queue --all."
            raise SchedulerError(msg)
        return (one.job + indices.index(one.element),)

    def _take_in(self, job: Job, now: float) -> None:
        spec = job.spec
        job.priority, job.held = self.settings.priority(spec), spec.hold
        job.limit = self.settings.limit(spec.time)
        self._next += 1
        self.jobs[job.number] = job
        self.holdings.add(job)
        self.outbox.record(job, now, "submitted", name=name_of(spec))
        self.queue.enqueue(job, now)

    def discard(self, jobs: Sequence[Job]) -> None:
        """Undo the submission of the newest jobs, which could not be stored."""
        if not jobs:
            return
        self._next = jobs[0].number
        self.queue.discard(jobs)
        for job in jobs:
            if not job.is_final:
                self.holdings.remove(job)
            del self.jobs[job.number]
            self.outbox.jobs.pop(job.number)
        self.outbox.entries = [entry for entry in self.outbox.entries if entry.job < self._next]

    def cancel(self, number: int, now: float, reason: str) -> None:
        """End a job. Raises SchedulerError for one that is over or never existed."""
        job = self.state.living(number)
        if job.state == PENDING:
            self.queue.withdraw(job)
            self.queue.finish(job, CANCELLED, now, reason)
        elif job.verdict in ("", REQUEUE):
            job.reason, job.verdict = reason, CANCELLED
            self.executions.end(job, CANCELLED, now)

    def signal(self, number: int, notice: Notice, now: float, by: str) -> None:
        """Send a signal to a running job at once, by the user `by`. Raises SchedulerError for any other job."""
        job = self.state.living(number)
        if job.state != RUNNING or job.launcher not in job.left:
            msg = f"job {number} is {job.state}: only the program of a running job can be sent a signal."
            raise SchedulerError(msg)
        self.executions.signal(job, notice)
        self.outbox.record(job, now, "signalled", signal=notice.signal, by=by)

    def hold(self, number: int, now: float, by: str, *, held: bool) -> None:
        """Hold or release a waiting job, on the order of the user `by`. Raises SchedulerError if it does not wait."""
        job = self.state.living(number)
        if job.state != PENDING:
            msg = f"job {number} has started: only waiting jobs can be held or released."
            raise SchedulerError(msg)
        if held != job.held:
            job.held, job.losses, job.holder = held, 0, by if held else ""
            self.outbox.record(job, now, "held" if held else "released", by=by)
            if held:
                self.queue.withdraw(job)
            else:
                self.queue.enqueue(job, now)

    def changed(self, number: int, changes: Mapping[str, Any]) -> Spec:
        """Return the specification of a job with other values of fields in `CHANGEABLE`; of one that has started, time.

        Raises SchedulerError for a job that is over or ends, and for one that could never run as changed.
        """
        job = self.state.living(number)
        spec = changed(job.spec, changes)
        if job.state == PENDING:
            spec = self._naming_all(spec) if "after" in changes else spec
            admission.check_order(number, spec)
            return self._checked(spec, job.user)
        if job.state == ENDING or job.verdict:
            msg = f"job {number} is ending: nothing of it can be changed."
            raise SchedulerError(msg)
        if changes.keys() != {"time"}:
            msg = f"job {number} has started: only its --time can be changed."
            raise SchedulerError(msg)
        return replace(spec, time=self.settings.limit(spec.time))

    def update(self, number: int, spec: Spec, now: float, by: str, what: str) -> None:
        """Give a job the specification that `changed` returned; `what` says for its history what the user `by` changed.

        Raises SchedulerError for a job on nodes whose limit would be over.
        """
        job = self.state.living(number)
        if job.state == PENDING:
            self.queue.replace(job, spec, now)
        else:
            self.executions.extend(job, spec.time, now)
        self.outbox.record(job, now, "updated", by=by, changed=what)

    # --- time -----------------------------------------------------------------------------------------------------

    def turn(self, now: float) -> None:
        """Do what is due: check for silent agents, call the policy, and give orders for its decisions."""
        self.members.look(now)
        self.members.look_for_survivors(now)
        self.queue.follow(now)
        if self.controller:
            self.queue.share_out(self.controller, now)
            self.executions.follow_policy(self.controller, now)
            self.fillers.follow_policy(now)

    def next_look(self) -> float:
        """Return the time by which `turn` must be called again."""
        if self.queue.is_behind:
            return 0.0
        looks = [self.dispatch.wake, self.members.next_look, self.executions.survivors.next_look]
        looks.append(self.fillers.next_look())
        if controller := self.controller:
            looks += self.executions.next_looks(controller)
            looks += [] if controller.wake == NEVER else [controller.wake]
        return min(looks)

    # --- restart, and jobs that are over --------------------------------------------------------------------------

    def restore(self, nodes: Iterable[Node], jobs: Iterable[Job], next_number: int, now: float) -> None:
        """Restore the state that an earlier scheduler stored: jobs in order of number, nodes in order of index."""
        self._next = next_number
        self.members.restore(nodes, now)
        self.jobs.update((job.number, job) for job in jobs)
        for job in self.jobs.values():
            self.holdings.add(job)
        for job in sorted(self.jobs.values(), key=lambda job: (job.started or math.inf, job.number)):
            if job.state in ON_NODES:
                self.executions.restore(job, now)
        for job in list(self.jobs.values()):
            if job.state == PENDING:
                self.queue.enqueue(job, now)
        self.queue.regroup()

    def needed(self) -> set[int]:
        """Return the jobs named in dependencies of unfinished jobs; their final states may be needed again."""
        wanted = {id(job.spec): job.spec.after for job in self.jobs.values() if job.spec.after and not job.is_final}
        return {dependency.job for after in wanted.values() for dependency in after}

    def forget(self, numbers: Iterable[int]) -> None:
        """Drop jobs that are over and were deleted from the stored queue."""
        for number in numbers:
            self.jobs.pop(number, None)

    def forget_final(self, keep: int) -> None:
        """Drop all but the newest `keep` of the jobs that are over and stored."""
        over = [number for number, job in self.jobs.items() if job.state in FINAL and number not in self.outbox.jobs]
        for number in over[: max(0, len(over) - keep)]:
            del self.jobs[number]
