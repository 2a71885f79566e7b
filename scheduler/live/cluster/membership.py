# SPDX-License-Identifier: Apache-2.0
"""The nodes of a cluster and whether jobs may start on them: they join, are drained, busy or silent, and go. Pure."""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING

from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import AGENT_GONE, NODE_DOWN
from drom.scheduler.live.cluster.driver import driver_of
from drom.scheduler.live.cluster.jobs import PENDING, Node
from drom.scheduler.live.cluster.partitions import names_of
from drom.scheduler.live.cluster.placements import FIRST_PAUSE, LONGEST_PAUSE
from drom.scheduler.live.cluster.pool_controller import PoolController

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from drom.agent.execution import protocol as say
    from drom.scheduler.live.cluster.executions import Executions
    from drom.scheduler.live.cluster.fillers import Fillers
    from drom.scheduler.live.cluster.job_queue import JobQueue
    from drom.scheduler.live.cluster.state import ClusterState


class Membership:
    """The nodes, and the consequences of their silence for their jobs."""

    def __init__(self, state: ClusterState, queue: JobQueue, executions: Executions, fillers: Fillers) -> None:
        self._state = state
        self._queue = queue
        self._executions = executions
        self._fillers = fillers
        self._nodes = state.nodes
        self._outbox = state.outbox
        self._began = 0.0
        """When this scheduler took over; the silence of nodes that have sent it nothing yet counts from then."""
        self.next_look = 0.0
        """The earliest time at which the silence of a node has a consequence, or a node is no longer put off."""
        self.strangers: dict[str, set[tuple[int, int]]] = {}
        """Attempts, by node, given up while the node was silent; no job starts there until they are killed."""
        self._lent: Mapping[str, str] = {}
        """The nodes on which this home partition does not schedule: see `FreeList`."""

    # --- coming and going -----------------------------------------------------------------------------------------

    def join(self, message: say.Hello, now: float) -> Node:
        """Add the node of an agent that has introduced itself, or renew what is known of it, and return it."""
        node = self._nodes.get(message.node)
        if node is None:
            node = self._add(message.node, message.cores)
            node.lent = self._lent.get(node.name)
        node.cores, node.cpus_per_core = message.cores, message.cpus_per_core
        node.memory, node.host = message.memory, message.host
        node.resources, node.features = dict(message.resources), list(message.features)
        node.boot, node.emulated, node.limits_memory = message.boot, message.emulated, message.limits_memory
        node.saves, node.cpu = list(message.saves), message.cpu
        node.partitions = names_of(node, self._state.settings.partitions)
        node.heard, node.gone_since, node.down, node.skew = now, None, False, message.time - now
        if abs(node.skew) > self._state.settings.skew:
            ahead = f"{abs(node.skew):.1f} s {'ahead of' if node.skew > 0 else 'behind'}"
            reason = f"its clock is {ahead} this one: set both by NTP."
            self._outbox.warn("node_clock_off", node=node.name, reason=reason)
        self._outbox.nodes[node.name] = node
        self.next_look = 0.0
        self._open(node, now)
        self._queue.regroup_by(node, is_there=True)
        return node

    def _add(self, name: str, cores: int) -> Node:
        index = next(index for index in count() if index not in self._state.node_at)
        node = self._nodes[name] = self._state.node_at[index] = Node(name, index, cores)
        return node

    def _open(self, node: Node, now: float) -> None:
        """Report to the policy what a node has. Scheduling begins with the first node; all may need its size."""
        state = self._state
        is_first = not state.controller
        state.controller = state.controller or driver_of(state.policy, node.cores, state.settings.gaps)
        state.controller.describe(node.index, node.cores, node.memory, node.resources)
        if is_first:
            for job in [job for job in state.jobs.values() if job.state == PENDING]:
                self._queue.admit(job, now)

    def restore(self, nodes: Iterable[Node], now: float) -> None:
        """Add the nodes that an earlier scheduler stored; their agents have sent this one nothing yet."""
        self._began = now
        for node in nodes:
            node.heard, node.gone_since = None, None
            node.busy, node.pause, node.again, node.full, node.lent = "", 0.0, None, "", None
            node.partitions = names_of(node, self._state.settings.partitions)
            self._nodes[node.name] = self._state.node_at[node.index] = node
            if node.home:
                self._state.borrowed.add(node.name)
            self._open(node, now)

    def drain(self, name: str, reason: str) -> None:
        """Drain a node: no job starts there; an empty reason undoes it. Raises SchedulerError for an unknown node."""
        node = self._known(name)
        node.drained = reason
        self._outbox.nodes[name] = node
        self.refresh(node)

    def forget(self, name: str, now: float) -> None:
        """Remove a node that is down and has no job. Raises SchedulerError for any other."""
        self._remove(self.removable(name))
        self._fillers.forgotten(name, now)

    def removable(self, name: str) -> Node:
        """Return a node that is down and has no job. Raises SchedulerError for any other."""
        node = self._known(name)
        if not node.down:
            msg = f"node {name} is {node.state}: stop its agent, and forget it once drom nodes lists it as down."
            raise SchedulerError(msg)
        jobs = [job.number for job in self._state.jobs.values() if not job.is_final and name in job.shares]
        if jobs:
            msg = f"node {name} has job {jobs[0]}, which has not left its other nodes yet: try again."
            raise SchedulerError(msg)
        return node

    def _remove(self, node: Node) -> None:
        del self._nodes[node.name], self._state.node_at[node.index]
        self.strangers.pop(node.name, None)
        self._state.borrowed.discard(node.name)
        self._outbox.nodes[node.name] = None
        self._queue.regroup_by(node, is_there=False)

    def _known(self, name: str) -> Node:
        node = self._nodes.get(name)
        if node is None:
            msg = f"there is no node {name[:60]}: see drom nodes."
            raise SchedulerError(msg)
        return node

    # --- nodes of other home partitions ---------------------------------------------------------------------------

    def follow(self, lent: Mapping[str, str], now: float) -> list[str]:
        """Schedule on no node in `lent`, which is offered or lent; return those that have been given back.

        Their agents have to introduce themselves again.
        """
        if lent is self._lent:
            return []
        self._lent, back = lent, []
        for node in self._nodes.values():
            before, node.lent = node.lent, None if node.home else lent.get(node.name)
            if before and not node.lent:
                node.gone_since, self.next_look = now, 0.0
                back.append(node.name)
            if before != node.lent:
                self.refresh(node)
        return back

    def borrow(self, name: str, home: str, cores: int, now: float) -> None:
        """Add a node that belongs to another home partition; its agent has yet to introduce itself here."""
        node = self._add(name, cores)
        node.home, node.heard = home, now
        self._state.borrowed.add(name)
        self._outbox.nodes[name] = node
        self.next_look = 0.0
        self._open(node, now)

    def give_back(self, node: Node) -> None:
        """Remove a borrowed node that has no job."""
        self._outbox.warn("node_given_back", node=node.name, home=node.home)
        self._remove(node)

    # --- whether jobs may start -----------------------------------------------------------------------------------

    def refresh(self, node: Node) -> None:
        """Send the policy whether jobs may start on a node."""
        controller = self._state.controller
        is_away = node.home or node.lent is not None
        if isinstance(controller, PoolController):
            controller.close(node.index, is_closed=bool(node.drained))
        if controller and node.state == "up" and not is_away and not self.strangers.get(node.name):
            controller.node_up(node.index)
        elif controller:
            controller.node_down(node.index, AGENT_GONE if node.state == "gone" else NODE_DOWN)

    def put_off(self, node: Node, reason: str, now: float) -> None:
        """Start no job for a while on a node that could not start one; the pause doubles each time."""
        if node.busy:
            return
        node.pause = min(2 * node.pause, LONGEST_PAUSE) or FIRST_PAUSE
        if node.home:  # no other job could try it before
            node.pause = LONGEST_PAUSE
        node.busy, node.again = reason, now + node.pause
        self.next_look = min(self.next_look, node.again)
        self._outbox.warn("node_busy", node=node.name, pause_seconds=node.pause, reason=reason)
        self.refresh(node)

    def _try_again(self, now: float) -> None:
        """Allow jobs to start again on nodes after their pause."""
        for node in self._nodes.values():
            if node.again is not None and node.again <= now:
                node.busy, node.again = "", None
                self.refresh(node)

    def look_for_survivors(self, now: float) -> None:
        """Start no job on nodes where one was killed and does not end, until it has ended."""
        survivors, jobs = self._executions.survivors, self._state.jobs
        for number in survivors.find(now):
            self._outbox.record(jobs[number], now, "kill_failed", nodes=list(jobs[number].left))
        kept = {name: number for number in sorted(survivors.jobs) for name in jobs[number].left}
        for name in kept.keys() ^ survivors.kept.keys():
            node = self._nodes[name]
            node.busy, node.again = "", None
            if name in kept:
                node.busy = f"job {kept[name]} was killed and does not end: see the log of the node's agent"
            self.refresh(node)
        survivors.kept = kept

    # --- silence --------------------------------------------------------------------------------------------------

    def alive(self, name: str, now: float) -> bool:
        """Record that an agent is alive; return whether it is known. An unknown agent has to send Hello."""
        node = self._nodes.get(name)
        if node is None or not node.speaks:
            return False
        node.heard = now
        return True

    def look(self, now: float) -> None:
        """Handle nodes that are silent or put off, once `next_look` has come."""
        if now < self.next_look:
            return
        self._look_for_silence(now)
        self._try_again(now)
        dues = [*map(self._silence_limit, self._nodes.values())]
        dues += [node.again for node in self._nodes.values() if node.again is not None]
        self.next_look = min(dues, default=math.inf)

    def _silence_limit(self, node: Node) -> float:
        """Return the time until which the silence of a node has no consequence."""
        if node.down or node.lent:
            return math.inf
        if node.gone_since is not None:
            return node.gone_since + self._state.settings.give_up
        return (self._began if node.heard is None else node.heard) + self._state.settings.silence

    def _look_for_silence(self, now: float) -> None:
        reason = "no job starts there until its agent responds again."
        for node in self._nodes.values():
            if node.gone_since is None and self._silence_limit(node) < now:
                node.gone_since = now
                self._fillers.silent(node.name)
                self._outbox.warn("node_silent", node=node.name, reason=reason)
                self.refresh(node)
            if node.gone_since is not None and self._silence_limit(node) <= now:
                self._give_up(node, now)

    def _give_up(self, node: Node, now: float) -> None:
        node.down = True
        self._outbox.warn("node_down", node=node.name, reason="its jobs are requeued or failed, as requested.")
        for part in self._state.placements.on(node.index):
            job = part.job
            self._executions.lose(job, f"node {node.name} went down", now)
            self._state.placements.remove(part)
            self._executions.end(job, job.verdict, now)
        self.refresh(node)
