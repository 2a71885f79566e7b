# SPDX-License-Identifier: Apache-2.0
"""Messages of agents: they introduce themselves, and report on their nodes and on the parts of jobs there. Pure."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

from drom.agent.execution import protocol as say
from drom.agent.observe.job_rates import Rates
from drom.agent.text import NODE, counted
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster.jobs import COMPLETED, FAILED, REQUEUE, TIMEOUT, Node, how_it_ended
from drom.scheduler.live.cluster.placements import ABSENT, Placement

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drom.scheduler.live.cluster.executions import Executions
    from drom.scheduler.live.cluster.fillers import Fillers
    from drom.scheduler.live.cluster.membership import Membership
    from drom.scheduler.live.cluster.state import ClusterState

NO_HANDLER = "SIGUSR1 ended its program, which has no handler for it, or had none yet."
_OfJob = say.Started | say.Refused | say.Ended | say.Resized | say.NotResized | say.NotSaved | say.Vacated | say.Wants


class Agents:
    """The agents of all nodes."""

    def __init__(self, state: ClusterState, executions: Executions, fillers: Fillers, members: Membership) -> None:
        self._state = state
        self._executions = executions
        self._fillers = fillers
        self._members = members
        self._outbox = state.outbox
        self._placements = state.placements

    # --- introductions --------------------------------------------------------------------------------------------

    def hello(self, message: say.Hello, now: float) -> None:
        """Add a node, or one that comes back. Raises SchedulerError with the reason if it may not join."""
        controller, settings = self._state.controller, self._state.settings
        if message.protocol != say.PROTOCOL:
            raise SchedulerError(say.other_version(message.protocol))
        if not re.fullmatch(NODE, message.node):
            msg = f"{message.node[:64]!r} is not a name of a node: set one of letters, digits, . _ and - with --node."
            raise SchedulerError(msg)
        if controller and not self._state.policy.shares_nodes and message.cores != controller.cores:
            has = counted(controller.cores, "core")
            msg = (
                f"node {message.node} has {counted(message.cores, 'core')}, the nodes of this cluster have {has}: "
                f"policy {self._state.policy.name} needs equal ones; --policy resources takes any."
            )
            raise SchedulerError(msg)
        node = self._members.join(message, now)
        self._outbox.send(node.name, say.Welcome(settings.name, settings.heartbeat))
        self._reconcile(node, message.jobs, now)
        self._fillers.joined(node, message.images, now)
        self._members.refresh(node)

    def _reconcile(self, node: Node, there: Iterable[say.Known], now: float) -> None:
        """Compare the jobs that a node reports with those that the scheduler has recorded on it."""
        found = [(one, self._part(node, one.job, one.attempt)) for one in there]
        known = {one.job for one, part in found if part}
        strangers = [one for one, part in found if not part and one.state == "running"]
        self._members.strangers[node.name] = {(one.job, one.attempt) for one in strangers}
        for one in strangers:
            self._kill_unknown(node, one.job, one.attempt)
            self._outbox.warn("job_unknown", node=node.name, job=one.job, reason="the job was given up: it is killed.")
        for one, part in found:
            if part and one.state == "running":
                self._placements.holds(part, one.cores)
                self._executions.holds(part, one.cores, now)
                self._executions.started(part, now)
                if part.job.verdict:
                    self._executions.kill(node.name, part.job)
                else:
                    self._executions.repeat_notice(node.name, part.job)
                    if part.job.ranks:
                        self._executions.ranks.order(part.job)
        for part in self._placements.on(node.index):
            if part.job.number not in known and not self._placements.is_unsure(part.job.number):
                self._executions.missing(part, now)
        for part in self._placements.on(node.index):
            if part.state != ABSENT and self._placements.is_unsure(part.job.number):
                self._executions.confirm_start(part, now, is_there=part.job.number in known)

    def _kill_unknown(self, node: Node, number: int, attempt: int) -> None:
        self._outbox.send(node.name, say.Signal(number, attempt, signal.SIGKILL, None))

    def _part(self, node: Node, number: int, attempt: int) -> Placement | None:
        """Return the part of a job on a node, if this attempt of the job belongs there."""
        part = self._placements.get(number, node.index)
        return part if part and part.job.attempt == attempt else None

    # --- reports --------------------------------------------------------------------------------------------------

    def on_message(self, name: str, message: say.FromAgent, now: float) -> None:
        """Handle a message of an agent that has been welcomed."""
        node = self._state.nodes[name]
        node.heard = now
        if isinstance(message, say.Post):
            self._forward(name, message)
        elif isinstance(message, say.Alive):
            node.skew = message.time - now
            self._measured(node, message.paces)
        elif isinstance(message, say.Offered):
            self._fillers.offered(name, message, now)
        elif not isinstance(message, say.Hello):
            self._on_job_message(node, message, now)

    def _on_job_message(self, node: Node, message: _OfJob, now: float) -> None:
        part = self._part(node, message.job, message.attempt)
        if part is None:
            self._on_unknown_attempt(node, message)
            return
        match message:
            case say.Started():
                self._executions.started(part, now)
                self._fillers.started(part, now)
            case say.Refused():
                self._refused(part, message, now)
            case say.NotSaved():
                self._fillers.not_saved(part, message.reason, now)
            case say.Ended(saved=number) if number:
                self._fillers.saved(part, message, now)
            case say.Ended():
                self._ended(part, message, now)
            case say.Resized():
                self._placements.resized(part, message.cores)
                self._executions.holds(part, message.cores, now)
            case say.NotResized():
                self._executions.not_resized(part, message, now)
            case say.Wants() | say.Vacated():
                self._executions.adapts(part, message, now)

    def _on_unknown_attempt(self, node: Node, message: _OfJob) -> None:
        """Kill or forget an attempt that does not belong on a node; its cores are not free until it has left."""
        attempt, strangers = (message.job, message.attempt), self._members.strangers.setdefault(node.name, set())
        if isinstance(message, say.Started) and attempt not in strangers:
            strangers.add(attempt)
            self._kill_unknown(node, *attempt)
            reason = "the job has left the node: it is killed."
            self._outbox.warn("job_unknown", node=node.name, job=message.job, reason=reason)
        elif isinstance(message, (say.Ended, say.Refused)):
            strangers.discard(attempt)
            self._outbox.send(node.name, say.Forget(*attempt))
        self._members.refresh(node)

    def _measured(self, node: Node, paces: Iterable[say.Pace]) -> None:
        """Record the progress of jobs; it counts for jobs that have equally many cores on all their nodes."""
        for pace in paces:
            part = self._part(node, pace.job, pace.attempt)
            if part and pace.seconds and set(part.job.shares.values()) == {pace.cores}:
                rates = self._executions.rates.setdefault(pace.job, Rates())
                rates.add(pace.cores, pace.seconds, pace.work)
                if self._state.controller:
                    self._state.controller.measured(pace.job, rates.known())

    def _forward(self, name: str, post: say.Post) -> None:
        """Relay a post to another node of its job. None is sent to a silent node; the sender will repeat it."""
        job = self._state.jobs.get(post.job)
        if not job or job.attempt != post.attempt or not {name, post.to} <= set(job.left):
            self._outbox.send(name, say.Lost(post.job, post.attempt, post.to, post.body))
        elif self._state.nodes[post.to].speaks:
            self._outbox.send(post.to, say.Post(post.job, post.attempt, name, post.to, post.body))

    def _refused(self, part: Placement, message: say.Refused, now: float) -> None:
        """Handle a node's refusal to start a job: the job fails, or waits again; the node may be drained or put off."""
        node, job = part.node, part.job
        if job.verdict in ("", FAILED):
            job.reason = f"node {node.name}: {message.reason}"
        if message.fault == "node":
            self._members.drain(node.name, message.reason)
            self._outbox.warn("node_drained", node=node.name, job=job.number, reason=message.reason)
        if message.fault == "busy":
            self._members.put_off(node, message.reason, now)
        if message.fault == "room":
            self._fillers.no_room(part, message.reason, now)
        if self._executions.ranks.may_leave(part):
            self._executions.ranks.left(part, now)
            return
        job.losses += message.fault == "image"
        again = message.fault != "job" and (job.spec.requeue or node.name == job.launcher)  # else it may have started
        self._executions.leave(part)
        self._executions.end(job, REQUEUE if again else FAILED, now)

    def _ended(self, part: Placement, message: say.Ended, now: float) -> None:
        node, job = part.node, part.job
        job.cpu_seconds += message.cpu_seconds
        job.max_rss = max(job.max_rss, message.max_rss)
        if self._executions.ranks.may_leave(part):
            self._executions.ranks.left(part, now)
            return
        launcher, at = node.name == job.launcher, message.time - node.skew
        if launcher and job.started is None and message.began:  # while no scheduler was there
            job.started = min(now, max(job.submitted, message.began - node.skew))
            self._outbox.record(job, job.started, "started")
        if launcher and job.verdict == TIMEOUT and at < (job.started or 0.0) + job.limit:
            job.verdict = ""  # it had ended in time, but its agent could not report that
        job.over = min(now, max(job.started or 0.0, job.over or 0.0, at))
        if launcher:
            job.status = message.status
        if launcher and self._fillers.was_ended_by_request(job):
            self._executions.leave(part)
            self._fillers.not_saved(part, NO_HANDLER, now)
            return
        if launcher or message.over_memory:
            job.reason = job.reason or message.note or self._fillers.why_not_saved(job)
        lost = message.note and not job.verdict if launcher else message.note or not job.verdict
        if lost and not message.over_memory:
            self._executions.lose(job, message.note or _how_its_part_ended(node, message.status), now)
        self._executions.leave(part)
        self._executions.end(job, job.verdict or (COMPLETED if message.status == 0 else FAILED), now)


def _how_its_part_ended(node: Node, status: int) -> str:
    """Return how a part of a job ended on a node that should have kept it until the job's launcher ended."""
    return f"its part on {node.name} {how_it_ended(status)}"
