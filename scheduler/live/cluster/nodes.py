# SPDX-License-Identifier: Apache-2.0
"""The nodes of a cluster: agents that join, report and fall silent, and the consequences for their nodes' jobs."""

from __future__ import annotations

import math
import re
import signal
from typing import TYPE_CHECKING

from drom.agent.execution import protocol as say
from drom.agent.observe.rates import Rates
from drom.agent.text import NODE, counted
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import AGENT_GONE, NODE_DOWN
from drom.scheduler.live.cluster import admission
from drom.scheduler.live.cluster.controller import Controller
from drom.scheduler.live.cluster.dispatch import FIRST_PAUSE, LONGEST_PAUSE, Dispatch
from drom.scheduler.live.cluster.jobs import (
    COMPLETED,
    FAILED,
    PENDING,
    REQUEUE,
    RUNNING,
    STARTING,
    TIMEOUT,
    Job,
    Node,
    how_it_ended,
)
from drom.scheduler.live.cluster.lifecycle import JobLifecycle

if TYPE_CHECKING:
    from collections.abc import Iterable

_OfJob = say.Started | say.Refused | say.Ended | say.Resized | say.NotResized


class NodeMembership(JobLifecycle):
    """Handling of agents' reports on their nodes and jobs, and of agents that send nothing."""

    def hello(self, message: say.Hello, now: float) -> None:
        """Add a node, or one that comes back. Raises SchedulerError with the reason if it may not join."""
        if message.protocol != say.PROTOCOL:
            raise SchedulerError(say.other_version(message.protocol))
        if not re.fullmatch(NODE, message.node):
            msg = f"{message.node[:64]!r} is not a name of a node: set one of letters, digits, . _ and - with --node."
            raise SchedulerError(msg)
        if self.controller and message.cores != self.controller.cores:
            has = counted(self.controller.cores, "core")
            msg = (
                f"node {message.node} has {counted(message.cores, 'core')}, the nodes of this cluster have {has}: "
                "use another scheduler for it."
            )
            raise SchedulerError(msg)
        node = self._join(message, now)
        self.messages.append((node.name, say.Welcome(self.settings.name, self.settings.heartbeat)))
        self._reconcile(node, message.jobs, now)
        self._refresh(node)

    def _join(self, message: say.Hello, now: float) -> Node:
        node = self.nodes.get(message.node)
        if node is None:
            node = self.nodes[message.node] = Node(message.node, self._free_index(), message.cores)
            self._names[node.index] = node.name
        node.cpus_per_core, node.memory, node.host = message.cpus_per_core, message.memory, message.host
        node.resources, node.features = dict(message.resources), list(message.features)
        node.boot, node.emulated = message.boot, message.emulated
        node.heard, node.gone_since, node.down, node.skew = now, None, False, message.time - now
        if abs(node.skew) > self.settings.skew:
            ahead = f"{abs(node.skew):.1f} s {'ahead of' if node.skew > 0 else 'behind'}"
            self._warn("node_clock_off", node=node.name, reason=f"its clock is {ahead} this one: set both by NTP.")
        self.unsaved_nodes[node.name] = node
        self._nodes_due = 0.0
        self._open(message.cores, now)
        self._regroup_by(node, is_there=True)
        return node

    def _free_index(self) -> int:
        """Return an index that no node has."""
        if "" not in self._names:
            self._names.append("")
        return self._names.index("")

    def _open(self, cores: int, now: float) -> None:
        """Start scheduling with the first node: the size of all nodes is known from now on, and jobs may start."""
        if self.controller is not None:
            return
        self.controller, self.dispatch = Controller(self.policy, cores), Dispatch(cores)
        for job in [job for job in self.jobs.values() if job.state == PENDING]:
            self._admit(job, now)

    def _regroup(self) -> None:
        """Recompute the nodes on which jobs may run, and the jobs that may share nodes."""
        self._fitting.clear()
        for group in self._groups:
            self._allow(group)

    def _regroup_by(self, node: Node, *, is_there: bool) -> None:
        """Do as `_regroup` for one node that has joined, changed or gone."""
        self._fitting.clear()
        if self.controller:
            hosted = (group for group, spec in self._groups.items() if is_there and admission.hosts(spec, [node]))
            self.controller.allow_on(node.index, hosted)

    def _refresh(self, node: Node) -> None:
        """Send the policy whether jobs may start on a node."""
        if self.controller and node.state == "up" and not self._strangers.get(node.name):
            self.controller.node_up(node.index)
        elif self.controller:
            self.controller.node_down(node.index, AGENT_GONE if node.state == "gone" else NODE_DOWN)

    def _reconcile(self, node: Node, there: Iterable[say.Known], now: float) -> None:
        """Compare the jobs that a node reports with those that the scheduler has recorded on it."""
        known = {one.job: one for one in there if self._is_on(node, one.job, one.attempt)}
        strangers = [one for one in there if one.state == "running" and not self._is_on(node, one.job, one.attempt)]
        self._strangers[node.name] = {(one.job, one.attempt) for one in strangers}
        for one in strangers:
            self._kill_unknown(node, one.job, one.attempt)
            self._warn("job_unknown", node=node.name, job=one.job, reason="the job was given up: it is killed.")
        for number, found in known.items():
            job = self.jobs[number]
            if found.state == "running":
                self.dispatch.holds(node.index, number, found.cores)
                self._holds(node.name, job, found.cores, now)
                self._acknowledge(node, job, now)
                if job.verdict:
                    self._kill(node.name, job)
        for job in self.jobs_on(node.name):
            if job.number not in known and job.number not in self._unsure:
                self._missing(node, job, now)
        for number in [number for number, nodes in self._unsure.items() if node.name in nodes]:
            self._confirm_start(number, node, is_there=number in known)

    def _kill_unknown(self, node: Node, number: int, attempt: int) -> None:
        self.messages.append((node.name, say.Signal(number, attempt, signal.SIGKILL, None)))

    def _is_on(self, node: Node, number: int, attempt: int) -> bool:
        """Return whether an attempt of a job belongs on a node."""
        job = self.jobs.get(number)
        return job is not None and job.attempt == attempt and node.name in job.left

    def _missing(self, node: Node, job: Job, now: float) -> None:
        """Handle a node's report that it does not know a job that belongs there."""
        if node.name in job.acknowledged:
            self._lost_on(node, job, now)
        elif job.verdict:  # it ended before it started here
            self._leave(node, job)
            self._end(job, job.verdict, now)
        elif job.number not in self.dispatch.placed:
            self._count_from(job, now)
            self._start_on(node.name, job)

    def _confirm_start(self, number: int, node: Node, *, is_there: bool) -> None:
        """Determine from its nodes' reports whether a job was started before this scheduler was."""
        job, waiting = self.jobs[number], self._unsure[number]
        waiting.discard(node.name)
        if is_there:
            del self._unsure[number]
            for name in [name for name in job.left if name not in job.acknowledged and self.nodes[name].speaks]:
                self._start_on(name, job)
        elif not waiting:
            del self._unsure[number]
            for name in job.left:
                self.dispatch.gone(self.nodes[name].index, number)
            self.dispatch.place(number, {self.nodes[name].index: cores for name, cores in job.shares.items()})

    def drain(self, name: str, reason: str) -> None:
        """Drain a node: no job starts there; an empty reason undoes it. Raises SchedulerError for an unknown node."""
        node = self._known(name)
        node.drained = reason
        self.unsaved_nodes[name] = node
        self._refresh(node)

    def forget_node(self, name: str) -> None:
        """Remove a node that is down and has no job. Raises SchedulerError for any other."""
        node = self._known(name)
        if not node.down:
            msg = f"node {name} is {node.state}: stop its agent, and forget it once drom nodes lists it as down."
            raise SchedulerError(msg)
        jobs = [job.number for job in self.jobs.values() if not job.is_final and name in job.shares]
        if jobs:
            msg = f"node {name} has job {jobs[0]}, which has not left its other nodes yet: try again."
            raise SchedulerError(msg)
        del self.nodes[name]
        self._names[node.index] = ""
        self._strangers.pop(name, None)
        self.unsaved_nodes.pop(name, None)
        self.gone_nodes.append(name)
        self._regroup_by(node, is_there=False)

    def _known(self, name: str) -> Node:
        node = self.nodes.get(name)
        if node is None:
            msg = f"there is no node {name[:60]}: see drom nodes."
            raise SchedulerError(msg)
        return node

    def alive(self, name: str, now: float) -> bool:
        """Record that an agent is alive; return whether it is known. An unknown agent has to send Hello."""
        node = self.nodes.get(name)
        if node is None or not node.speaks:
            return False
        node.heard = now
        return True

    def on_message(self, name: str, message: say.FromAgent, now: float) -> None:
        """Handle a message of an agent that has been welcomed."""
        node = self.nodes[name]
        node.heard = now
        if isinstance(message, say.Post):
            self._forward(name, message)
        elif isinstance(message, say.Alive):
            node.skew = message.time - now
            self._measured(name, message.paces)
        elif not isinstance(message, say.Hello):
            self._on_job_message(node, message, now)

    def _on_job_message(self, node: Node, message: _OfJob, now: float) -> None:
        name = node.name
        if not self._is_on(node, message.job, message.attempt):
            self._on_unknown_attempt(node, message)
            return
        job = self.jobs[message.job]
        match message:
            case say.Started():
                self._acknowledge(node, job, now)
            case say.Refused():
                self._refused(node, job, message, now)
            case say.Ended():
                self._ended(node, job, message, now)
            case say.Resized():
                self.dispatch.applied(node.index, job.number, message.cores)
                self._holds(name, job, message.cores, now)
            case say.NotResized():
                self._not_resized(node, job, message, now)

    def _on_unknown_attempt(self, node: Node, message: _OfJob) -> None:
        """Kill or forget an attempt that does not belong on a node; its cores are not free until it has left."""
        attempt, strangers = (message.job, message.attempt), self._strangers.setdefault(node.name, set())
        if isinstance(message, say.Started) and attempt not in strangers:
            strangers.add(attempt)
            self._kill_unknown(node, *attempt)
            self._warn(
                "job_unknown", node=node.name, job=message.job, reason="the job has left the node: it is killed."
            )
        elif isinstance(message, (say.Ended, say.Refused)):
            strangers.discard(attempt)
            self.messages.append((node.name, say.Forget(*attempt)))
        self._refresh(node)

    def _measured(self, name: str, paces: Iterable[say.Pace]) -> None:
        """Record the progress of jobs; it counts for jobs that have equally many cores on all their nodes."""
        for pace in paces:
            if not self._is_on(self.nodes[name], pace.job, pace.attempt) or not pace.seconds:
                continue
            job = self.jobs[pace.job]
            if set(job.shares.values()) == {pace.cores}:
                rates = self.rates.setdefault(job.number, Rates())
                rates.add(pace.cores, pace.seconds, pace.work)
                if self.controller:
                    self.controller.measured(job.number, rates.known())

    def _forward(self, name: str, post: say.Post) -> None:
        """Relay a post to another node of its job. None is sent to a silent node; the sender will repeat it."""
        job = self.jobs.get(post.job)
        if not job or job.attempt != post.attempt or not {name, post.to} <= set(job.left):
            self.messages.append((name, say.Lost(post.job, post.attempt, post.to, post.body)))
        elif self.nodes[post.to].speaks:
            self.messages.append((post.to, say.Post(post.job, post.attempt, name, post.to, post.body)))

    def _acknowledge(self, node: Node, job: Job, now: float) -> None:
        """Record that a node has started its part of a job, which runs once all its nodes have."""
        if node.name in job.acknowledged:
            return
        job.acknowledged.append(node.name)
        node.pause = 0.0
        self.unsaved[job.number] = job
        if job.state == STARTING and len(job.acknowledged) == len(job.shares):
            job.state, job.started = RUNNING, now
            self._count_from(job, now)
            self._record(job, now, "started")
            self._tell_dependents(job, now)

    def _refused(self, node: Node, job: Job, message: say.Refused, now: float) -> None:
        """Handle a node's refusal to start a job: the job fails, or waits again; the node may be drained or put off."""
        if job.verdict in ("", FAILED):
            job.reason = f"node {node.name}: {message.reason}"
        if message.fault == "node":
            self.drain(node.name, message.reason)
            self._warn("node_drained", node=node.name, job=job.number, reason=message.reason)
        if message.fault == "busy":
            self._put_off(node, message.reason, now)
        again = message.fault != "job" and (job.spec.requeue or node.name == job.launcher)  # else it may have started
        self._leave(node, job)
        self._end(job, REQUEUE if again else FAILED, now)

    def _put_off(self, node: Node, reason: str, now: float) -> None:
        """Start no job for a while on a node that could not start one; the pause doubles each time."""
        if node.busy:
            return
        node.pause = min(2 * node.pause, LONGEST_PAUSE) or FIRST_PAUSE
        node.busy, node.again = reason, now + node.pause
        self._nodes_due = min(self._nodes_due, node.again)
        self._warn("node_busy", node=node.name, pause_seconds=node.pause, reason=reason)
        self._refresh(node)

    def _look_for_survivors(self, now: float) -> None:
        """Start no job on nodes where one was killed and does not end, until it has ended."""
        for number in self.survivors.find(now):
            job = self.jobs[number]
            self._record(job, now, "kill_failed", nodes=list(job.left))
        kept = {name: number for number in sorted(self.survivors.jobs) for name in self.jobs[number].left}
        for name in kept.keys() ^ self.survivors.kept.keys():
            node = self.nodes[name]
            node.busy, node.again = "", None
            if name in kept:
                node.busy = f"job {kept[name]} was killed and does not end: see the log of the node's agent"
            self._refresh(node)
        self.survivors.kept = kept

    def _try_again(self, now: float) -> None:
        """Allow jobs to start again on nodes after their pause."""
        for node in self.nodes.values():
            if node.again is not None and node.again <= now:
                node.busy, node.again = "", None
                self._refresh(node)

    def _ended(self, node: Node, job: Job, message: say.Ended, now: float) -> None:
        job.cpu_seconds += message.cpu_seconds
        job.max_rss = max(job.max_rss, message.max_rss)
        launcher = node.name == job.launcher
        if launcher and job.verdict == TIMEOUT and message.time - node.skew < (job.started or 0.0) + job.limit:
            job.verdict = ""  # it had ended in time, but its agent could not report that
        if launcher:
            job.over = min(now, max(job.started or 0.0, message.time - node.skew))
            job.status = message.status
            job.reason = job.reason or message.note
        lost = message.note and not job.verdict if launcher else message.note or not job.verdict
        if lost:
            self._lose(job, message.note or _how_its_part_ended(node, message.status), now)
        self._leave(node, job)
        self._end(job, job.verdict or (COMPLETED if message.status == 0 else FAILED), now)

    def _not_resized(self, node: Node, job: Job, message: say.NotResized, now: float) -> None:
        """Handle a job that could not be resized: jobs that were to start on its node wait again."""
        self.dispatch.refused(node.index, job.number, message.cores, now)
        self._record(job, now, "resize_failed", node=node.name, cores=message.cores, reason=message.reason)
        self._holds(node.name, job, message.cores, now)
        for number in [number for number, cores in self.dispatch.placed.items() if node.index in cores]:
            guest = self.jobs[number]
            self.dispatch.unplace(number)
            if self.controller:
                self.controller.refused(number, int(now))
            self._back_to_queue(guest, f"job {job.number} did not make room: {message.reason}", now)

    # --- silence --------------------------------------------------------------------------------------------------

    def _silence_limit(self, node: Node) -> float:
        """Return the time until which the silence of a node has no consequence."""
        if node.down:
            return math.inf
        if node.gone_since is not None:
            return node.gone_since + self.settings.give_up
        return (self._began if node.heard is None else node.heard) + self.settings.silence

    def _look_at_nodes(self, now: float) -> None:
        """Handle nodes that are silent or put off, once `_nodes_due` has come."""
        if now < self._nodes_due:
            return
        self._look_for_silence(now)
        self._try_again(now)
        dues = [*map(self._silence_limit, self.nodes.values())]
        dues += [node.again for node in self.nodes.values() if node.again is not None]
        self._nodes_due = min(dues, default=math.inf)

    def _look_for_silence(self, now: float) -> None:
        for node in self.nodes.values():
            if node.gone_since is None and self._silence_limit(node) < now:
                node.gone_since = now
                self._warn("node_silent", node=node.name, reason="no job starts there until its agent responds again.")
                self._refresh(node)
            if node.gone_since is not None and self._silence_limit(node) <= now:
                self._give_up(node, now)

    def _give_up(self, node: Node, now: float) -> None:
        node.down = True
        self._warn("node_down", node=node.name, reason="its jobs are requeued or failed, as requested.")
        for job in self.jobs_on(node.name):
            self._lose(job, f"node {node.name} went down", now)
            self._remove_from_node(job, node.name)
            self.dispatch.gone(node.index, job.number)
            self._end(job, job.verdict, now)
            if job.is_final and job.over is not None:
                job.ended = job.over
        self._refresh(node)


def _how_its_part_ended(node: Node, status: int) -> str:
    """Return how a part of a job ended on a node that should have kept it until the job's launcher ended."""
    return f"its part on {node.name} {how_it_ended(status)}"
