# SPDX-License-Identifier: Apache-2.0
"""Jobs on nodes: they are placed, started, resized and ended, and are done once they have left all nodes. Pure."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from drom.agent.execution import protocol as say
from drom.agent.text import counted, duration
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster.controller import Controller
from drom.scheduler.live.cluster.dispatch import Join, Resize, Start
from drom.scheduler.live.cluster.jobs import (
    ENDING,
    FAILED,
    NODE_FAIL,
    PENDING,
    REQUEUE,
    RUNNING,
    STARTING,
    TIMEOUT,
    Job,
    Node,
)
from drom.scheduler.live.cluster.launch import start_of
from drom.scheduler.live.cluster.notices import Notices
from drom.scheduler.live.cluster.placements import ABSENT, ASKED, STARTED, UNSURE, WAITING, Placement
from drom.scheduler.live.cluster.pool_controller import PoolController
from drom.scheduler.live.cluster.ranks import Ranks
from drom.scheduler.live.cluster.spec import Notice, notice_of
from drom.scheduler.live.cluster.survivors import Survivors

if TYPE_CHECKING:
    from drom.agent.observe.job_rates import Rates
    from drom.scheduler.live.cluster.controller import Fault
    from drom.scheduler.live.cluster.driver import Driver
    from drom.scheduler.live.cluster.job_queue import JobQueue
    from drom.scheduler.live.cluster.state import ClusterState


SOON = 600.0
"""Seconds after a job's start within which a loss counts."""
MOST_LOSSES = 5
"""Losses soon after its start after which a job is held: it may have caused them itself."""
HUNG = "its program had not begun by then: check that another process opens the pipes in --input, --output and --error"


class Executions:
    """The jobs that are on nodes. Those that are lost return to `queue`."""

    def __init__(self, state: ClusterState, queue: JobQueue) -> None:
        self._state = state
        self._queue = queue
        self._outbox = state.outbox
        self._placements = state.placements
        self.survivors = Survivors(state.settings.kill_wait)
        self.ranks = Ranks(state)
        self._notices = Notices(state.jobs)
        self.rates: dict[int, Rates] = {}
        """The measured rates of running jobs, by job, as far as this scheduler has received them."""
        self.offers: dict[int, float] = {}
        """Fillers that start once another node has offered their image, with the time at which it was asked."""
        self._faults: list[Fault] = []
        """Decisions of the policy that could not be carried out and that were reported in the log."""
        self._orphans: set[int] = set()
        """The jobs that have left their first nodes, and were killed on the others for that."""

    def known_rates(self, number: int) -> dict[int, float]:
        """Return the measured work per second of a running job, by its cores on each node, as far as it is known."""
        return self.rates[number].known() if number in self.rates else {}

    # --- the policy's decisions -----------------------------------------------------------------------------------

    def follow_policy(self, controller: Driver, now: float) -> None:
        """Call the policy if it is due, and give the orders that follow from its decisions."""
        if isinstance(controller, PoolController):
            self.ranks.offer(controller)
        for number in controller.turn(int(now)):
            self.place(self._state.jobs[number], controller, now)
        self._notify_due(controller, now)
        self._end_late(controller, now)
        self._warn_of_faults(controller)
        for index, residents in controller.changes().items():
            self._placements.plan(index, residents)
            for number, cores in residents.items():
                job, name = self._state.jobs[number], self._state.node_at[index].name
                if job.shares.get(name, cores) != cores:
                    job.shares[name] = cores
                    self._note_limit(job, controller.limit(number), now)
                    self._outbox.save(job)
        if isinstance(controller, PoolController):
            self.ranks.follow(controller, now)
        self._give_orders(now)

    def place(self, job: Job, controller: Driver, now: float) -> None:
        """Record where a job was placed, before any node is asked to start it."""
        indices = controller.nodes_of(job.number)
        cores = [(self._state.node_at[index], controller.cores_on(job.number, index)) for index in indices]
        job.shares = {node.name: amount for node, amount in cores}
        ranks = controller.ranks_of(job.number) if isinstance(controller, PoolController) else {}
        job.ranks = {self._state.node_at[index].name: count for index, count in ranks.items()}
        job.devices = {node.name: found for node, _ in cores if (found := self._free_devices(job, node))}
        job.state, job.attempt, job.reason = STARTING, job.attempt + 1, ""
        self._placements.place(job, cores)
        job.sizes, job.over, job.notified = dict(job.shares), None, False
        mates = sorted({mate for index in indices for mate in controller.residents(index)} - {job.number})
        self._outbox.record(job, now, "placed", shares=job.shares, **({"mates": mates} if mates else {}))
        self._note_limit(job, controller.limit(job.number), now)

    def _free_devices(self, job: Job, node: Node) -> dict[str, list[int]]:
        """Return the first identities of counted resources that no job on a node has, as many as a job asks for."""
        if not job.spec.resources:
            return {}
        there = [part.job.devices.get(node.name, {}) for part in self._placements.on(node.index)]
        found = {}
        for name, amount in job.spec.resources.items():
            taken = {device for devices in there for device in devices.get(name, ())}
            found[name] = [device for device in range(node.resources.get(name, 0)) if device not in taken][:amount]
        return found

    def _note_limit(self, job: Job, limit: int, now: float) -> None:
        """Record how long a job may take, with a history entry if that has changed."""
        if job.limit != limit:
            job.limit = limit
            self._outbox.record(job, now, "limit", seconds=limit)

    def _warn_of_faults(self, controller: Driver) -> None:
        """Warn of decisions of the policy that could not be carried out, unless its previous call had the same."""
        for fault in controller.faults:
            if fault not in self._faults:
                about = {} if fault.job is None else {"job": fault.job}
                self._outbox.warn("policy_fault", **about, reason=f"{fault.text}: this action was not carried out.")
        self._faults = controller.faults

    def _give_orders(self, now: float) -> None:
        for order in self._state.dispatch.orders(now):
            if isinstance(order, Start):
                job = self._state.jobs[order.job]
                self.count_from(job, now)
                for name in job.shares:
                    self.start_on(name, job, now)
                continue
            if isinstance(order, Join):
                self.start_on(order.part.node.name, order.part.job, now)
                continue
            job, name, cores = order.part.job, order.part.node.name, order.cores
            self._outbox.send(name, say.Resize(job.number, job.attempt, cores, self._state.settings.shrink_within))
            self._outbox.record(job, now, "ordered", node=name, cores=cores, **self._guest_of(order))

    def _guest_of(self, order: Resize) -> dict[str, int]:
        """Return the job for which a job shrinks, if it does: the newest that waits for room on its node."""
        guests = self._placements.guests_of(order.part.node.index)
        return {"for": guests[-1].number} if guests and order.part.held > order.cores else {}

    def count_from(self, job: Job, now: float) -> None:
        """Count the time that a job may take from now on."""
        if self._state.controller:
            self._state.controller.launched(job.number, int(now))

    def start_on(self, name: str, job: Job, now: float) -> None:
        """Send a node the request to start its part of a job; first, another node may have to offer its image."""
        if job.image_on not in ("", name):
            self.offers[job.number] = now
            self._outbox.send(job.image_on, say.Offer(job.number, job.saves))
            return
        shared = job.ranks.get(name, job.shares[name])
        most = shared if self._state.policy.shares_nodes else self._state.nodes[name].cores
        self._outbox.send(name, start_of(job, name, most))

    # --- limits ---------------------------------------------------------------------------------------------------

    def _end_late(self, controller: Driver, now: float) -> None:
        """End jobs that have reached their limits; the controller reports each within the second of its limit."""
        late, controller.late = controller.late, []
        for number in late:
            job = self._state.jobs.get(number)
            if not job or not (job.state == RUNNING or self._hangs(job)):
                continue
            if _due(controller, job) > now:
                controller.late.append(number)
                continue
            if job.state == STARTING:
                job.reason = HUNG
            self._note_limit(job, controller.limit(number), now)
            self.end(job, TIMEOUT, now)

    def extend(self, job: Job, time: int, now: float) -> None:
        """Set the limit of a job on nodes to `time` seconds; what its limit grew by when it shrank stays.

        Raises SchedulerError if its limit would be over.
        """
        controller, limit = self._state.controller, self._state.settings.limit
        assert controller is not None  # noqa: S101 - it is on nodes
        if not controller.extend(job.number, limit(time) - limit(job.spec.time), int(now)):
            over = f"with {duration(limit(time))} the limit of job {job.number} would be over"
            msg = f"{over}: give a longer --time, or cancel the job."
            raise SchedulerError(msg)
        self._state.holdings.remove(job)
        job.spec = replace(job.spec, time=time)
        self._state.holdings.add(job)
        self._note_limit(job, controller.limit(job.number), now)

    # --- signals that do not end a job ----------------------------------------------------------------------------

    def _notify_due(self, controller: Driver, now: float) -> None:
        """Send jobs that near their limits the signals that they asked for."""
        for at, job in self._notices.times(controller):
            if at <= now:
                job.notified = True
                notice = notice_of(job.spec.signal)
                self._outbox.record(job, now, "signalled", signal=notice.signal)
                for name in job.left:
                    self._notify(name, job, notice, once=True)

    def repeat_notice(self, name: str, job: Job) -> None:
        """Send a node the signal that a job got before its limit, as the node's agent may not have received it."""
        if job.notified:
            self._notify(name, job, notice_of(job.spec.signal), once=True)

    def signal(self, job: Job, notice: Notice) -> None:
        """Send a signal to a running job at once."""
        for name in job.left:
            self._notify(name, job, notice, once=False)

    def _notify(self, name: str, job: Job, notice: Notice, *, once: bool) -> None:
        """Send a signal to a job on a node. The commands of a script are on its first; mpirun passes the signal on."""
        if name == job.launcher or not (notice.first or job.spec.script):
            to = "first" if notice.first else "tasks"
            self._outbox.send(name, say.Signal(job.number, job.attempt, notice.signal, to=to, once=once))

    def _hangs(self, job: Job) -> bool:
        """Return whether all nodes of a starting job were asked to start it and none of them is silent."""
        asked = job.state == STARTING and job.number not in self._placements.waiting
        return asked and all(part.node.speaks for part in self._placements.of(job.number))

    def next_looks(self, controller: Driver) -> list[float]:
        """Return the times at which jobs are to get signals, or are late, as are their ranks (unix seconds)."""
        late = [job for number in controller.late if (job := self._state.jobs.get(number)) and job.state == RUNNING]
        ranks = self.ranks.next_looks(controller) if isinstance(controller, PoolController) else []
        return [_due(controller, job) for job in late] + [at for at, _ in self._notices.times(controller)] + ranks

    # --- what nodes report ----------------------------------------------------------------------------------------

    def started(self, part: Placement, now: float) -> None:
        """Record that a node has started its part of a job, which runs once all its nodes have."""
        if part.state == STARTED:
            return
        self._placements.start(part)
        job, part.node.pause = part.job, 0.0
        self._outbox.save(job)
        if job.state == STARTING and len(job.acknowledged) == len(job.shares):
            job.state, job.started = RUNNING, now
            self.count_from(job, now)
            self._notices.expect(job)
            self._outbox.record(job, now, "started")
            self._queue.tell_dependents(job, now)
        elif job.state == RUNNING and job.ranks:
            self.holds(part, part.confirmed, now)
            self.ranks.joined(part, now)

    def holds(self, part: Placement, cores: int, now: float) -> None:
        """Record how many cores of a node a job holds, with a history entry if that differs from the last one."""
        job, name = part.job, part.node.name
        if job.sizes.get(name) != cores:
            job.sizes[name] = cores
            self._outbox.record(job, now, "resized", node=name, cores=cores)

    def not_resized(self, part: Placement, message: say.NotResized, now: float) -> None:
        """Handle a job that could not be resized: jobs that were to start on its node wait again."""
        node, job = part.node, part.job
        self._placements.not_resized(part, message.cores, now)
        self._outbox.record(job, now, "resize_failed", node=node.name, cores=message.cores, reason=message.reason)
        self.holds(part, message.cores, now)
        if job.spec.leaves_nodes and not part.planned and message.cores:
            job.stays = True  # otherwise it could be chosen again at once, for ever
            self._set_needs(job)
        self._refuse_guests(part, message.reason, now)

    def _refuse_guests(self, part: Placement, reason: str, now: float) -> None:
        """Return the jobs to the queue that wait for a job to make room on a node, which it does not."""
        for guest in self._placements.guests_of(part.node.index):
            if self._state.controller:
                self._state.controller.refused(guest.number, int(now))
            self._back_to_queue(guest, f"job {part.job.number} did not make room: {reason}", now)

    def adapts(self, part: Placement, message: say.Wants | say.Vacated, now: float) -> None:
        """Handle what the ranks of an adaptive job on a node report, or have done."""
        if isinstance(message, say.Wants):
            self.ranks.reported(part)
            self._wants(part.job, message, now)
        else:
            self.ranks.vacated(part, message, now)

    def _set_needs(self, job: Job) -> None:
        """Set for the policy how many whole nodes a job needs now, and how many cores of each."""
        controller = self._state.controller
        if isinstance(controller, Controller):
            request = self._queue.request(job)
            controller.keep(job.number, request.least or job.spec.nodes, request.least_cores)
            self._outbox.save(job)

    def _wants(self, job: Job, message: say.Wants, now: float) -> None:
        """Take the range of cores that the programs of a job report: within its ranks, and of what its user asked for.

        Programs that report no most cores, as when they begin, only need as many as they report. A job of whole nodes
        keeps those whose cores are enough. Jobs that wait for cores which it needs wait again.
        """
        controller, spec = self._state.controller, job.spec
        if spec.leaves_nodes and isinstance(controller, Controller):
            each = min(spec.tasks, controller.cores)
            needed = min(spec.nodes, -(-message.least // each)), min(each, -(-message.least // spec.nodes))
            if needed != (job.needed, job.needed_cores):
                job.needed, job.needed_cores = needed
                self._set_needs(job)
                plan = [part.planned for part in self._placements.of(job.number) if part.planned]
                if len(plan) < job.fewest_nodes or min(plan) < job.needed_cores:
                    self._make_no_room(job, message.least, now)
        if not (job.ranks and isinstance(controller, PoolController)):
            return
        most = min(message.most or spec.most, spec.most)
        least = min(most, message.least if message.most else max(spec.least, message.least))
        if [least, most] != [job.least, job.most]:
            job.wants = [least, most]
            controller.set_range(job.number, least, most)
            self._outbox.record(job, now, "range", least=least, most=most)
            if sum(part.planned for part in self._placements.of(job.number)) < least:
                self._make_no_room(job, least, now)

    def _make_no_room(self, job: Job, needed: int, now: float) -> None:
        """Refuse the jobs that wait for cores which a job was to give up and turns out to need."""
        for part in self._placements.of(job.number):
            if part.planned < part.held:
                self._refuse_guests(part, f"its program needs {counted(needed, 'core')}", now)

    def missing(self, part: Placement, now: float) -> None:
        """Handle a node's report that it does not know a job that belongs there."""
        job = part.job
        if self.ranks.may_leave(part) and part.state == STARTED:
            self.ranks.left(part, now)
        elif part.state == STARTED:
            self.lose(job, f"node {part.node.name} has lost it", now)
            self.leave(part)
            self.end(job, job.verdict, now)
        elif job.verdict:  # it ended before it started here
            self.leave(part)
            self.end(job, job.verdict, now)
        elif part.state == ASKED:
            self.count_from(job, now)
            self.start_on(part.node.name, job, now)

    def confirm_start(self, reported: Placement, now: float, *, is_there: bool) -> None:
        """Determine from its nodes' reports whether a job was started before this scheduler was."""
        parts = self._placements.of(reported.job.number)
        if is_there:
            for part in parts:
                if part.state != STARTED:
                    part.state = ASKED
                    if part.node.speaks:
                        self.start_on(part.node.name, part.job, now)
            return
        reported.state = ABSENT
        if not any(part.state == UNSURE for part in parts):
            self._placements.put_back(reported.job.number)

    # --- ends -----------------------------------------------------------------------------------------------------

    def end(self, job: Job, verdict: str, now: float) -> None:
        """End a job on its nodes, with a verdict; the first verdict given counts."""
        job.verdict = job.verdict or verdict
        self._outbox.save(job)
        if job.number in self._placements.waiting or job.number in self.offers:
            self._placements.clear(job)
        self._leave_other_nodes(job)
        begins = job.state != ENDING
        if begins and job.left:
            job.state = ENDING
            self._outbox.record(job, now, "ending", verdict=job.verdict)
        if job.left:
            self.survivors.ends(job.number, now)
        is_orphan = job.launcher not in job.left
        if begins or (is_orphan and job.number not in self._orphans):  # not again at the report of each node
            for name in job.left:
                self.kill(name, job)
        if is_orphan:
            self._orphans.add(job.number)
        if not job.left:
            self._left_all(job, now)

    def _leave_other_nodes(self, job: Job) -> None:
        """Remove a job that may have been started from the nodes that reported that it was not; others will report."""
        for part in self._placements.of(job.number):
            if part.state == ABSENT or (part.state == WAITING and job.number not in self._placements.waiting):
                self._placements.remove(part)
            elif part.state == UNSURE:
                part.state = ASKED

    def kill(self, name: str, job: Job) -> None:
        """End a job on a node: by SIGTERM, then by SIGKILL; by SIGKILL at once if it has left its first node."""
        if name == job.launcher or job.launcher in job.left:
            message = say.Signal(job.number, job.attempt, signal.SIGTERM, self._state.settings.kill_wait)
        else:
            message = say.Signal(job.number, job.attempt, signal.SIGKILL, None)
        self._outbox.send(name, message)

    def leave(self, part: Placement) -> None:
        """Record that a job has left a node, which may forget it."""
        self._placements.remove(part)
        self._outbox.save(part.job)
        self._outbox.send(part.node.name, say.Forget(part.job.number, part.job.attempt))
        if part.job.saves and part.node.name != part.job.image_on:  # it had fetched the image
            self._outbox.send(part.node.name, say.Discard(part.job.number, part.job.saves))

    def _left_all(self, job: Job, now: float) -> None:
        controller = self._state.controller
        if controller and controller.runs(job.number):
            controller.ended(job.number, int(now))
        self.rates.pop(job.number, None)
        self.offers.pop(job.number, None)
        self._orphans.discard(job.number)
        self._queue.has_left(job)
        self.survivors.has_ended(job.number)
        if job.verdict == REQUEUE:
            self._back_to_queue(job, job.reason, now)
            self._hold_if_often_lost(job, now)
            self._queue.enqueue(job, now)
        else:
            self._queue.finish(job, job.verdict, now, job.reason, ended=job.over)

    def _hold_if_often_lost(self, job: Job, now: float) -> None:
        if job.losses >= MOST_LOSSES:
            job.held = True
            self._outbox.record(job, now, "held", reason=f"it was lost {job.losses} times soon after its start")

    def _back_to_queue(self, job: Job, reason: str, now: float) -> None:
        job.state, job.reason, job.verdict, job.started, job.status = PENDING, reason, "", None, None
        self._placements.clear(job)
        job.shares, job.ranks, job.wants, job.awaited, job.leaving, job.devices = {}, {}, [], {}, [], {}
        job.needed, job.needed_cores, job.stays = 0, 1, False
        job.limit = self._state.settings.left(job.spec.time, job.ran)
        self._outbox.record(job, now, "requeued", reason=reason)

    def put_back(self, job: Job, reason: str, now: float) -> None:
        """Return a job to the queue, with the `reason`. No node may have been asked to start it."""
        self._placements.clear(job)
        job.reason, job.verdict = reason, REQUEUE
        self._left_all(job, now)

    def lose(self, job: Job, reason: str, now: float) -> None:
        """Record why a job has lost its part on a node; this also replaces the verdict that its launcher failed."""
        if job.verdict not in ("", FAILED):
            return
        waits = job.number in self._placements.waiting
        job.reason, job.verdict = reason, REQUEUE if job.spec.requeue or waits else NODE_FAIL
        asked = not waits and not self._placements.is_unsure(job.number)
        job.losses += asked and job.verdict == REQUEUE and now - (job.started or now) < SOON

    # --- restart --------------------------------------------------------------------------------------------------

    def restore(self, job: Job, now: float) -> None:
        """Put a job back on its nodes, as far as they are known."""
        controller, nodes = self._state.controller, self._state.nodes
        assert controller is not None  # noqa: S101 - it is on nodes
        is_unsure = job.state == STARTING and not job.acknowledged
        self._queue.is_on_nodes(job)
        left = [nodes[name] for name in job.left]
        there = [name for name in job.shares if name in job.left or not job.ranks]
        cores = {nodes[name].index: job.shares[name] for name in there if job.awaited.get(name) != 0}
        controller.restore(job.number, self._queue.request(job), cores, int(job.started or now), job.limit)
        self._placements.restore(job, left, UNSURE if is_unsure else ASKED)
        if job.state == RUNNING:
            self._notices.expect(job)
            self.ranks.restore(job, now)
        if job.state == ENDING:
            self.survivors.ends(job.number, now)


def _due(controller: Driver, job: Job) -> float:
    """Return when a late job is to be ended; for a job that has not started that is always in the past."""
    return (job.started or 0.0) + controller.limit(job.number)
