# SPDX-License-Identifier: Apache-2.0
"""Waiting jobs: those that wait for others, for their user's turn, or for the policy to place them. Pure."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from drom.agent.execution import protocol as say
from drom.agent.text import counted
from drom.scheduler.interface import MALLEABLE, NOBODY, RIGID
from drom.scheduler.live.cluster import admission, fair_share, units
from drom.scheduler.live.cluster.controller import ANYWHERE, JobRequest
from drom.scheduler.live.cluster.dependencies import Dependencies
from drom.scheduler.live.cluster.jobs import CANCELLED, CLASSES, PENDING, Job, Node
from drom.scheduler.live.cluster.quotas import Turns
from drom.scheduler.live.cluster.spec import array_of, contract_of, without_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from drom.scheduler.live.cluster.dependencies import Wait
    from drom.scheduler.live.cluster.driver import Driver
    from drom.scheduler.live.cluster.spec import Spec
    from drom.scheduler.live.cluster.state import ClusterState


STEPS = 200
"""Jobs waiting for others that are handled in one turn: no message is read meanwhile."""
ARRANGE = 10.0
"""Seconds after which the queue is reordered by shares even if nothing happens: running jobs change them."""


def _bound_of_array(job: Job) -> tuple[int, int] | None:
    most = array_of(job.spec.array).most if job.array and job.spec.array else 0
    return (job.array, most) if most else None


class JobQueue:
    """The jobs that wait, until the policy places them or they end."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self.turns = Turns(self._bound_of_user)
        """How many jobs of a user run at once."""
        self.throttles = Turns(_bound_of_array)
        """How many jobs of an array run at once."""
        self.dependencies = Dependencies()
        self.too_large: dict[int, None] = {}
        """Jobs that could start but need more nodes than this home partition has; the policy does not know them."""
        self._arranged = 0.0
        """When the queue was last put into the order of users' shares."""
        self._groups: dict[str, Spec] = {}
        """The specification of one job of each group; the jobs of a group may run on the same nodes."""
        self._fitting = admission.Fitting()
        self._changed: deque[int] = deque()
        """Jobs that have started or are over and whose dependents have not been checked yet."""
        self._affected: deque[tuple[int, str]] = deque()
        """Jobs that no longer wait for others, or that never start: then with a clause that gives the reason."""
        self._steps = STEPS
        """The number of jobs waiting for others that may still be handled before the next turn."""

    # --- looking --------------------------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Whether jobs that wait for others have yet to be updated."""
        return bool(self._affected or self._changed)

    def waits_for(self, number: int) -> list[int]:
        """Return the jobs after which a job is to start and for which it still waits."""
        return self.dependencies.of(self._state.jobs[number])

    def image_away(self, job: Job) -> str:
        """Return the node with a filler's image if its agent is silent; empty if it is not, or there is no image."""
        node = self._state.nodes.get(job.image_on)
        return "" if node is None or node.speaks else node.name

    def why_not(self, spec: Spec) -> str:
        """Return why the policy cannot place a job that was accepted before; empty if it can."""
        if why_not := admission.why_not_under(self._state.policy, spec):
            return f"{why_not}, and it requests certain ones: cancel it, or run the scheduler with --policy sd"
        if spec.partition not in ("", *(one.name for one in self._state.settings.partitions)):
            return f"there is no partition {spec.partition} any more: cancel it, or choose another with drom update"
        controller, threads = self._state.controller, max(1, spec.threads)
        if controller and not self._state.policy.shares_nodes and spec.tasks * threads > controller.cores:
            wants = f"{counted(spec.tasks, 'task')} of {counted(threads, 'core')}"
            has = counted(controller.cores, "core")
            return f"its {wants} do not fit on a node, which has {has} now: cancel it, and submit it again"
        return ""

    def check(self, spec: Spec) -> None:
        """Raise SchedulerError, with the reason, for a job that can never run on the nodes that there are."""
        state = self._state
        hosts = self._fitting.hosts(self._placed(spec), state.own)
        admission.check(spec, hosts, state.own, state.settings, state.policy, reach=state.reach)

    def _is_too_large(self, spec: Spec) -> bool:
        state = self._state
        return state.lends and admission.may_span(spec, state.policy) and spec.nodes > state.size

    # --- in and out -----------------------------------------------------------------------------------------------

    def enqueue(self, job: Job, now: float) -> None:
        """Submit a waiting job to the policy if it may start, or end it if it never can."""
        if job.spec.after and not self.dependencies.join(job):
            blocking, hopeless = admission.dependencies(job.spec.after, self._state.state_of)
            if hopeless := hopeless or admission.without_failure(job.spec.after, self._state.state_of):
                self.finish(job, CANCELLED, now, hopeless)
                return
            self.dependencies.begin(job, blocking)
        self.admit(job, now)

    def admit(self, job: Job, now: float) -> None:
        """Submit a waiting job to the policy unless something keeps it from starting."""
        controller = self._state.controller
        could = not job.held and not self.waits_for(job.number) and not self.why_not(job.spec)
        could = could and not self.image_away(job)
        could = could and self.throttles.enter(job) and self.turns.enter(job)
        if not (controller and could) or controller.waits(job.number):
            return
        if self._is_too_large(job.spec):
            self.too_large[job.number] = None
        else:
            controller.submit(job.number, self.request(job), int(now))

    def fit(self, now: float) -> None:
        """Submit jobs to the policy that needed more nodes than there were, and no longer do."""
        for number in [one for one in self.too_large if not self._is_too_large(self._state.jobs[one].spec)]:
            del self.too_large[number]
            self.admit(self._state.jobs[number], now)

    def withdraw(self, job: Job) -> None:
        """Remove a waiting job from the policy's queue, or from those waiting for their user's turn."""
        self._state.outbox.save(job)
        self.has_left(job)
        self.take_out(job)

    def take_out(self, job: Job) -> None:
        """Remove a job from those that wait for nodes."""
        controller = self._state.controller
        self.too_large.pop(job.number, None)
        if controller and controller.waits(job.number):
            controller.withdraw(job.number)

    def is_on_nodes(self, job: Job) -> None:
        """Count a job that an earlier scheduler put on nodes among those of its user and array that run."""
        self.throttles.place(job)
        self.turns.place(job)

    def has_left(self, job: Job) -> None:
        """No longer count a job among those of its user and array that run, so that others may run."""
        self.throttles.leave(job)
        self.turns.leave(job)

    def _bound_of_user(self, job: Job) -> tuple[int, int] | None:
        settings = self._state.settings
        is_bound = settings.max_running and job.user.uid not in settings.operators
        return (job.user.uid, settings.max_running) if is_bound else None

    def replace(self, job: Job, spec: Spec, now: float) -> None:
        """Give a waiting job another specification; it keeps its number, and its place among jobs of its priority."""
        self.withdraw(job)
        self.dependencies.leave(job)
        self._affected = deque(one for one in self._affected if one[0] != job.number)
        self._state.holdings.remove(job)
        job.spec, job.priority = spec, self._state.settings.priority(spec)
        job.limit = self._state.settings.left(spec.time, job.ran)
        self._state.holdings.add(job)
        self.enqueue(job, now)

    def discard(self, jobs: Sequence[Job]) -> None:
        """Forget the newest jobs, as if they had never been submitted."""
        for job in reversed(jobs):
            self.withdraw(job)
            self.dependencies.leave(job)
        self._affected = deque(one for one in self._affected if one[0] < jobs[0].number)

    def finish(self, job: Job, state: str, now: float, reason: str, ended: float | None = None) -> None:
        """Give a job that is on no node its final state, and check the jobs that wait for it.

        Its programs `ended` before if that was while no agent or no scheduler was there to report it.
        """
        self._conclude(job, state, now if ended is None else ended, reason)
        self.tell_dependents(job, now)

    def _conclude(self, job: Job, state: str, now: float, reason: str) -> None:
        self.dependencies.leave(job)
        if not job.is_final:
            self._state.holdings.remove(job)
        self._state.image_room.forget(job.number)
        if job.image_on:
            self._state.outbox.send(job.image_on, say.Discard(job.number, job.saves))
            job.image_on = ""
        job.state, job.reason, job.ended, job.spec = state, reason, now, without_environment(job.spec)
        self._state.outbox.record(job, now, state, **({"reason": reason} if reason else {}))

    # --- jobs that wait for others --------------------------------------------------------------------------------

    def tell_dependents(self, job: Job, now: float) -> None:
        """Check the jobs that wait for a job that has started or is over, and those waiting for jobs that end by it."""
        self._changed.append(job.number)
        self._follow(now)

    def follow(self, now: float) -> None:
        """Begin a turn: update jobs that wait for others, and admit those that limits per user no longer hold back."""
        self._steps = STEPS
        self._follow(now)
        if self._state.controller:
            for number in [*self.throttles.ready(), *self.turns.ready()]:
                self.admit(self._state.jobs[number], now)

    def _follow(self, now: float) -> None:
        """Update jobs that wait for others, as many as a turn allows; the next turn continues."""
        while self._steps > 0 and (self._affected or self._changed):
            if not self._affected:
                other = self._changed.popleft()
                for wait in self.dependencies.on(other):
                    self._look_again(other, wait)
                continue
            self._steps -= 1
            number, hopeless = self._affected.popleft()
            job = self._state.jobs.get(number)
            if job is None or job.state != PENDING:
                continue
            if hopeless:
                self._conclude(job, CANCELLED, now, hopeless)
                self._changed.append(number)
            else:
                self.admit(job, now)

    def _look_again(self, other: int, wait: Wait) -> None:
        """Record which jobs of `wait` may start, or never can, after the job `other` has started or ended."""
        blocking, hopeless = admission.dependencies(wait.open[other], self._state.state_of)
        if blocking:
            return
        numbers = list(wait.jobs)
        if not hopeless:
            if not self.dependencies.met(wait, other, self._state.jobs[numbers[0]]):
                return
            hopeless = admission.without_failure(wait.spec.after, self._state.state_of)
        self._affected.extend((number, hopeless) for number in numbers)

    # --- what the policy knows of waiting jobs --------------------------------------------------------------------

    def request(self, job: Job) -> JobRequest:
        """Return the description of a job for the policy, which from then on knows the nodes of the job's group."""
        state, cpu = self._state, job.cpu if job.image_on else ""
        placed = admission.placed_now(self._placed(job.spec), cpu, state.image_room.lacking(job.number))
        group, length = admission.group_of(placed), state.settings.left(job.spec.time, job.ran)
        if group not in self._groups:
            self._groups[group] = placed
            self._allow(group)
        if state.policy.divides_nodes:
            count, most = units.units(job.spec)
            amounts, expected = tuple(units.amounts(job.spec).items()), state.settings.expected_wait(job.spec)
            home = state.nodes[job.image_on].index if job.image_on else NOBODY
            fills = bool(job.spec.saving)
            request = JobRequest(count, length, RIGID, job.priority, group, most, amounts, expected, fills, home)
            return request._replace(save_times=tuple(job.save_times))
        if state.policy.pooled:
            cls = MALLEABLE if job.spec.least < job.spec.most else RIGID
            contract = contract_of(job.spec.contract).since(job.submitted) if job.spec.contract else ()
            request = JobRequest(job.spec.most, length, cls, job.priority, most=job.most, least=job.least)
            return request._replace(contract=contract)
        cores = state.controller.cores if state.controller else 0
        if any(state.nodes[name].home for name in job.shares):  # others get no part of borrowed nodes
            return JobRequest(job.spec.nodes, length, RIGID, job.priority, group)
        spec, leaves = job.spec, job.spec.leaves_nodes  # its ranks may rest, so that each needs no core
        shares = leaves or self._fitting.may_share(spec, group, state.nodes.values(), state.policy, cores)
        cls = CLASSES[spec.job_class] if shares else RIGID
        least, cores_each = job.fewest_nodes, job.needed_cores
        return JobRequest(spec.nodes, length, cls, job.priority, group, least=least, least_cores=cores_each)

    def _placed(self, spec: Spec) -> Spec:
        """Return a specification with what decides on which nodes its job may be; policies may count amounts."""
        spec = replace(spec, memory=0, resources={}) if self._state.policy.divides_nodes else spec
        return admission.placed(spec)

    def regroup(self) -> None:
        """Recompute the nodes on which jobs may run, and the jobs that may share nodes."""
        self._fitting.clear()
        for group in self._groups:
            self._allow(group)

    def regroup_by(self, node: Node, *, is_there: bool) -> None:
        """Do as `regroup` for one node that has joined, changed or gone."""
        self._fitting.clear()
        if self._state.controller:
            hosted = (group for group, spec in self._groups.items() if is_there and admission.hosts(spec, [node]))
            self._state.controller.allow_on(node.index, hosted)

    def _allow(self, group: str) -> None:
        """Send the policy the nodes on which the jobs of a group may run, unless they may run on any."""
        if self._state.controller and group != ANYWHERE:
            could = [node.index for node in self._fitting.hosts(self._groups[group], self._state.nodes.values())]
            for unused in self._state.controller.allow(group, could):
                self._groups.pop(unused)

    def share_out(self, controller: Driver, now: float) -> None:
        """Order the queue by shares, if users have shares: after each event, and when `ARRANGE` seconds have passed.

        Fillers count for nothing there: they have what nobody else wants. Among them those of the users whose fillers
        have the fewest cores now come first.
        """
        state, usage = self._state, self._state.usage
        if usage is None or not (controller.has_news or now - self._arranged >= ARRANGE):
            return
        self._arranged = now
        has, filled = list[tuple[int, int]](), Counter[int]()
        for job in map(state.jobs.__getitem__, controller.running):
            cores = sum(job.sizes.values())
            if job.spec.saving:
                filled[job.user.uid] += cores
            else:
                has.append((job.user.uid, cores))
        usage.advance(now, has)
        waiting = [state.jobs[number] for number in sorted(controller.waiting)]
        regular = [job for job in waiting if not job.spec.saving]
        fillers = [job for job in waiting if job.spec.saving]
        limit, size = state.settings.limit, controller.size
        charges = [size(job.number) * limit(job.spec.time) for job in regular]
        numbers = _by_share(regular, charges, usage.of)
        numbers += _by_share(fillers, [size(job.number) for job in fillers], filled.__getitem__)
        controller.arrange(numbers)


def _by_share(jobs: Sequence[Job], charges: Sequence[float], used: Callable[[int], float]) -> list[int]:
    """Return the numbers of waiting jobs in the order of `fair_share.order`; `used` is called with users' uids."""
    found = fair_share.order(
        np.array([job.priority for job in jobs], np.int64),
        np.array([job.user.uid for job in jobs], np.int64),
        np.array(charges, np.float64),
        np.array([used(job.user.uid) for job in jobs], np.float64),
    )
    return [jobs[place].number for place in found]
