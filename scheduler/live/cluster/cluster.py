# SPDX-License-Identifier: Apache-2.0
"""The state machine of a live cluster: users' orders, agents' messages and times in, messages and records out.

No I/O: times are unix seconds that never decrease, and come in as arguments.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
from drom.agent.execution import protocol as say
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import NEVER
from drom.scheduler.live.cluster import admission, fair_share, launch
from drom.scheduler.live.cluster.dispatch import Resize, Start
from drom.scheduler.live.cluster.jobs import (
    CANCELLED,
    ENDING,
    ON_NODES,
    PENDING,
    REQUEUE,
    RUNNING,
    STARTING,
    TIMEOUT,
    Job,
    Node,
    User,
)
from drom.scheduler.live.cluster.lifecycle import STEPS
from drom.scheduler.live.cluster.nodes import NodeMembership
from drom.scheduler.live.cluster.spec import Spec, name_of, sized

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drom.scheduler.live.cluster.controller import Controller


ARRANGE = 10.0
"""Seconds after which the queue is reordered by shares even if nothing happens: running jobs change them."""
HUNG = "its program had not begun by then: check that another process opens the pipes in --input, --output and --error"


class Cluster(NodeMembership):
    """Jobs, nodes, and the policy that places the jobs on the nodes. Raises SchedulerError as `Controller`."""

    # --- users ----------------------------------------------------------------------------------------------------

    def submit(self, spec: Spec, user: User, now: float) -> Job:
        """Add a job and return it. Raises SchedulerError for one that can never run here."""
        (job,) = self.submit_many(spec, user, now, 1)
        return job

    def submit_many(self, spec: Spec, user: User, now: float, count: int) -> list[Job]:
        """Add `count` equal jobs and return them. Raises SchedulerError for jobs that can never run here."""
        if self.controller is None:
            raise SchedulerError("no node has joined yet: start one with drom agent --scheduler, then submit again.")
        spec = sized(spec, self.controller.cores)
        admission.check(spec, self._hosts(spec), self.nodes.values(), self.settings, self.policy)
        launch.check(spec, user)
        admission.check_dependencies(spec, self.state_of)
        return [self._take_in(spec, user, now) for _ in range(count)]

    def _take_in(self, spec: Spec, user: User, now: float) -> Job:
        job = Job(self._next, spec, user, now, priority=spec.priority, held=spec.hold)
        job.limit = self.settings.limit(spec.time)
        self._next += 1
        self.jobs[job.number] = job
        self.holdings.add(job)
        self._record(job, now, "submitted", name=name_of(spec))
        self._enqueue(job, now)
        return job

    def discard(self, jobs: Sequence[Job]) -> None:
        """Undo the submission of the newest jobs, which could not be stored."""
        if not jobs:
            return
        self._next = jobs[0].number
        for job in reversed(jobs):
            self._withdraw(job)
            if not job.is_final:
                self.holdings.remove(job)
            del self.jobs[job.number]
            self._dependencies.leave(job)
            self.unsaved.pop(job.number)
        self.entries = [entry for entry in self.entries if entry.job < self._next]
        self._affected = deque(one for one in self._affected if one[0] < self._next)

    def cancel(self, number: int, now: float, reason: str) -> None:
        """End a job. Raises SchedulerError for one that is over or never existed."""
        job = self._living(number)
        if job.state == PENDING:
            self._withdraw(job)
            self._finish(job, CANCELLED, now, reason)
        elif job.verdict in ("", REQUEUE):
            job.reason, job.verdict = reason, CANCELLED
            self._end(job, CANCELLED, now)

    def hold(self, number: int, now: float, by: str, *, held: bool) -> None:
        """Hold or release a waiting job, on the order of the user `by`. Raises SchedulerError if it does not wait."""
        job = self._living(number)
        if job.state != PENDING:
            msg = f"job {number} has started: only waiting jobs can be held or released."
            raise SchedulerError(msg)
        if held != job.held:
            job.held, job.losses, job.holder = held, 0, by if held else ""
            self._record(job, now, "held" if held else "released", by=by)
            if held:
                self._withdraw(job)
            else:
                self._enqueue(job, now)

    # --- time -----------------------------------------------------------------------------------------------------

    def turn(self, now: float) -> None:
        """Do what is due: check for silent agents, call the policy, and give orders for its decisions."""
        self._look_at_nodes(now)
        self._look_for_survivors(now)
        self._steps = STEPS
        self._follow(now)
        controller = self.controller
        if controller is None:
            return
        for number in self.turns.ready():
            self._admit(self.jobs[number], now)
        self._share_out(controller, now)
        for number in controller.turn(int(now)):
            self._placed(self.jobs[number], now)
        self._end_late(controller, now)
        self._warn_of_faults(controller)
        for index, residents in controller.changes().items():
            self.dispatch.want(index, residents)
            for number, cores in residents.items():
                job = self.jobs[number]
                if job.shares.get(self._names[index], cores) != cores:
                    job.shares[self._names[index]] = cores
                    self._note_limit(job, controller.limit(number), now)
                    self.unsaved[number] = job
                    if number in self.dispatch.placed:  # its mate ended before it had shrunk
                        self.dispatch.place(number, self.dispatch.placed[number] | {index: cores})
        self._give_orders(now)

    def _warn_of_faults(self, controller: Controller) -> None:
        """Warn of decisions of the policy that could not be carried out, unless its previous call had the same."""
        for fault in controller.faults:
            if fault not in self._faults:
                about = {} if fault.job is None else {"job": fault.job}
                self._warn("policy_fault", **about, reason=f"{fault.text}: this action was not carried out.")
        self._faults = controller.faults

    def _share_out(self, controller: Controller, now: float) -> None:
        """Order the queue by shares, if users have shares: after each event, and when `ARRANGE` seconds have passed."""
        if self.usage is None or not (controller.has_news or now - self._arranged >= ARRANGE):
            return
        self._arranged = now
        on_nodes = [self.jobs[number] for number in controller.running]
        self.usage.advance(now, [(job.user.uid, sum(job.sizes.values())) for job in on_nodes])
        numbers = sorted(controller.waiting)
        jobs = [self.jobs[number] for number in numbers]
        charges = [job.spec.nodes * controller.cores * self.settings.limit(job.spec.time) for job in jobs]
        found = fair_share.order(
            np.array([job.priority for job in jobs], np.int64),
            np.array([job.user.uid for job in jobs], np.int64),
            np.array(charges, np.float64),
            np.array([self.usage.of(job.user.uid) for job in jobs], np.float64),
        )
        controller.arrange([numbers[place] for place in found])

    def _end_late(self, controller: Controller, now: float) -> None:
        """End jobs that have reached their limits; the controller reports each within the second of its limit."""
        late, controller.late = controller.late, []
        for number in late:
            job = self.jobs.get(number)
            if not job or not (job.state == RUNNING or self._hangs(job)):
                continue
            if self._due(controller, job) > now:
                controller.late.append(number)
                continue
            if job.state == STARTING:
                job.reason = HUNG
            self._note_limit(job, controller.limit(number), now)
            self._end(job, TIMEOUT, now)

    def _due(self, controller: Controller, job: Job) -> float:
        """Return when a late job is to be ended; for a job that has not started that is always in the past."""
        return (job.started or 0.0) + controller.limit(job.number)

    def _hangs(self, job: Job) -> bool:
        """Return whether all nodes of a starting job were asked to start it and none of them is silent."""
        asked = job.state == STARTING and job.number not in self.dispatch.placed
        return asked and all(self.nodes[name].speaks for name in job.left)

    def next_look(self) -> float:
        """Return the time by which `turn` must be called again."""
        if self.is_behind:
            return 0.0
        looks = [self.dispatch.wake, self._nodes_due, self.survivors.next_look]
        if controller := self.controller:
            late = [job for number in controller.late if (job := self.jobs.get(number)) and job.state == RUNNING]
            looks += [self._due(controller, job) for job in late]
            looks += [] if controller.wake == NEVER else [controller.wake]
        return min(looks)

    def _placed(self, job: Job, now: float) -> None:
        """Record where the policy has placed a job, before any node is asked to start it."""
        controller = self.controller
        assert controller is not None  # noqa: S101 - it placed the job
        nodes = controller.nodes_of(job.number)
        cores = {node: controller.cores_on(job.number, node) for node in nodes}
        job.shares = {self._names[node]: amount for node, amount in cores.items()}
        job.state, job.attempt, job.reason = STARTING, job.attempt + 1, ""
        self._add_to_node(job, job.shares)
        job.acknowledged, job.sizes, job.over = [], dict(job.shares), None
        mates = sorted({mate for node in nodes for mate in controller.residents(node)} - {job.number})
        self._record(job, now, "placed", shares=job.shares, **({"mates": mates} if mates else {}))
        self._note_limit(job, controller.limit(job.number), now)
        self.unsaved[job.number] = job
        self.dispatch.place(job.number, cores)

    def _note_limit(self, job: Job, limit: int, now: float) -> None:
        """Record how long a job may take, with a history entry if that has changed."""
        if job.limit != limit:
            job.limit = limit
            self._record(job, now, "limit", seconds=limit)

    def _give_orders(self, now: float) -> None:
        for order in self.dispatch.orders(now):
            job = self.jobs[order.job]
            if isinstance(order, Start):
                self._count_from(job, now)
                for name in job.shares:
                    self._start_on(name, job)
                continue
            name = self._names[order.node]
            self.messages.append((name, say.Resize(job.number, job.attempt, order.cores, self.settings.shrink_within)))
            self._record(job, now, "ordered", node=name, cores=order.cores, **self._guest_of(order))

    def _guest_of(self, order: Resize) -> dict[str, int]:
        """Return the job for which a job shrinks, if it does: the newest that waits for room on its node."""
        share = self.dispatch.share(order.node, order.job)
        waiting = [number for number, cores in self.dispatch.placed.items() if order.node in cores]
        return {"for": waiting[-1]} if waiting and share and share.held > order.cores else {}

    # --- restart --------------------------------------------------------------------------------------------------

    def restore(self, nodes: Iterable[Node], jobs: Iterable[Job], next_number: int, now: float) -> None:
        """Restore the state that an earlier scheduler stored: jobs in order of number, nodes in order of index."""
        self._next, self._began = next_number, now
        for node in nodes:
            node.heard, node.gone_since = None, None
            node.busy, node.pause, node.again = "", 0.0, None
            self.nodes[node.name] = node
            self._names += [""] * (node.index - len(self._names)) + [node.name]
            self._open(node.cores, now)
        self.jobs = {job.number: job for job in jobs}
        for job in self.jobs.values():
            self.holdings.add(job)
        for job in sorted(self.jobs.values(), key=lambda job: (job.started or math.inf, job.number)):
            if job.state in ON_NODES:
                self.turns.place(job)
                self._resume(job, now)
        for job in list(self.jobs.values()):
            if job.state == PENDING:
                self._enqueue(job, now)
        self._regroup()

    def _resume(self, job: Job, now: float) -> None:
        """Put a job back on its nodes, as far as they are known."""
        controller = self.controller
        assert controller is not None  # noqa: S101 - it is on nodes
        left, job.left = job.left, []
        self._add_to_node(job, left)
        cores = {self.nodes[name].index: amount for name, amount in job.shares.items()}
        started = int(job.started or now)
        controller.restore(job.number, self._demand(job), cores, started, job.limit)
        for name in job.left:
            self.dispatch.holds(self.nodes[name].index, job.number, job.shares[name])
        if job.state == ENDING:
            self.survivors.ends(job.number, now)
        if job.state == STARTING and not job.acknowledged:
            self._unsure[job.number] = set(job.left)
