# SPDX-License-Identifier: Apache-2.0
"""Fillers: jobs of one node that give it up whenever a regular job needs it, are saved, and go on elsewhere. Pure.

A filler that was saved waits again, and knows the node that has its image. That node keeps the image, also while the
filler runs elsewhere, until a newer one exists or the job is over: if the filler is lost, it goes on from there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from drom.agent.checkpoint.program import SIGNAL, STATUS
from drom.agent.execution import protocol as say
from drom.agent.text import in_words
from drom.scheduler.allocation.gaps import REMEMBERED
from drom.scheduler.interface import NEVER
from drom.scheduler.live.cluster.image_room import ALL
from drom.scheduler.live.cluster.jobs import PENDING, REQUEUE, how_it_ended
from drom.scheduler.live.cluster.launch import start_of
from drom.scheduler.live.cluster.placements import STARTED
from drom.scheduler.live.cluster.resource_controller import ResourceController

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drom.scheduler.live.cluster.executions import Executions
    from drom.scheduler.live.cluster.job_queue import JobQueue
    from drom.scheduler.live.cluster.jobs import Job, Node
    from drom.scheduler.live.cluster.placements import Placement
    from drom.scheduler.live.cluster.state import ClusterState

OFFER_SECONDS = 60.0
"""Seconds until a filler waits again because the node with its image has not offered that."""


class Fillers:
    """The fillers of a cluster that are to be saved, or wait for their images."""

    def __init__(self, state: ClusterState, queue: JobQueue, executions: Executions) -> None:
        self._state = state
        self._queue = queue
        self._executions = executions
        self._outbox = state.outbox
        self._saving: dict[tuple[int, int], float] = {}
        """When the save of a filler was ordered."""

    def is_saving(self, job: Job) -> bool:
        """Return whether a filler is being saved."""
        return (job.number, job.attempt) in self._saving

    # --- making room ----------------------------------------------------------------------------------------------

    def follow_policy(self, now: float) -> None:
        """Save the fillers that have to go, and put back those that wait for an image for too long.

        Nodes that had no room for images are tried again when it is time.
        """
        controller = self._state.controller
        if not isinstance(controller, ResourceController):
            return
        for number, name in self._state.image_room.ended(now):
            self._may_start(number, name, now)
        for number in controller.fillers_to_save(int(now * 1000)):
            self._evict(self._state.jobs[number], now)
        offers = self._executions.offers
        for number in [number for number, since in offers.items() if now - since >= OFFER_SECONDS]:
            job = self._state.jobs[number]
            self._executions.put_back(job, f"node {job.image_on} has not offered its image", now)

    def next_look(self) -> float:
        """Return the time by which `follow_policy` must be called again."""
        controller = self._state.controller
        due = controller.save_at if isinstance(controller, ResourceController) else NEVER
        offered = min(self._executions.offers.values(), default=math.inf)
        tried = self._state.image_room.next_end()
        return min(offered + OFFER_SECONDS, tried, math.inf if due == NEVER else (due + 1) / 1000)

    def _evict(self, job: Job, now: float) -> None:
        """Remove a filler from its node: save it if it runs, and return it to the queue if it has not started."""
        if job.verdict:
            return  # it leaves anyway
        if job.number in self._state.placements.waiting or job.number in self._executions.offers:
            self._executions.put_back(job, "a regular job needed its node before it had started", now)
            return
        jobs = self._state.jobs
        self._saving = {
            key: at for key, at in self._saving.items() if key[0] in jobs and jobs[key[0]].attempt == key[1]
        }
        self._saving[job.number, job.attempt] = now
        self._outbox.record(job, now, "saving")
        self._send_save(job)

    def _send_save(self, job: Job) -> None:
        within = self._state.settings.save_within
        self._outbox.send(job.launcher, say.Save(job.number, job.attempt, job.saves + 1, within))

    # --- room for images ------------------------------------------------------------------------------------------

    def no_room(self, part: Placement, reason: str, now: float) -> None:
        """Exclude a node that has no room for a filler's image for a while; from all fillers if none can start there.

        An image that is there already, or not saved yet, needs no room of its own.
        """
        job, node = part.job, part.node
        if job.image_on not in ("", node.name):
            self._state.image_room.avoid(job.number, node.name, now)
        elif not node.full:
            node.full = reason
            self._state.image_room.avoid(ALL, node.name, now)
            self._outbox.warn("images_full", node=node.name, reason=reason)
            self._queue.regroup_by(node, is_there=True)

    def started(self, part: Placement, now: float) -> None:
        """Record that a node has started a filler: in a container, it has room for that."""
        if part.job.spec.saving == say.CONTAINER:
            self._state.image_room.forget(part.job.number)
            self._has_room(ALL, part.node.name, now)

    def _has_room(self, number: int, name: str, now: float) -> None:
        if self._state.image_room.has_room(number, name):
            self._may_start(number, name, now)

    def _may_start(self, number: int, name: str, now: float) -> None:
        """Admit a filler, or all of them, again to a node that they have avoided."""
        job, node, controller = self._state.jobs.get(number), self._state.nodes.get(name), self._state.controller
        if number == ALL and node:
            node.full = ""
            self._queue.regroup_by(node, is_there=True)
        elif job and controller and controller.waits(number):
            self._queue.take_out(job)
            self._queue.admit(job, now)

    # --- what nodes report ----------------------------------------------------------------------------------------

    def saved(self, part: Placement, message: say.Ended, now: float) -> None:
        """Record that a filler was saved and has left its node; it waits again, unless it is to end."""
        job, node = part.job, part.node
        began = self._saving.get((job.number, job.attempt))
        took = now - (now if began is None else began)
        if message.saved > job.saves:
            if began is not None:
                took_ms = round(1000 * min(took, self._state.settings.save_within))  # longer: the node was silent
                job.save_times = [*job.save_times, took_ms][-REMEMBERED:]
            job.ran += now - (job.started or now)
            if job.image_on not in ("", node.name):  # there it has been replaced
                self._outbox.send(job.image_on, say.Discard(job.number, job.saves))
            job.saves, job.cpu = message.saved, node.cpu
            job.image_on = node.name if job.spec.saving == say.CONTAINER else ""
            self._outbox.record(job, now, "saved", node=node.name, bytes=message.written, seconds=round(took, 3))
        if not job.verdict:
            size = f", in an image of {in_words(message.written)}" if message.written else ""
            job.reason = f"a regular job needed its node: it was saved on {node.name}{size}"
        self._executions.leave(part)
        self._executions.end(job, job.verdict or REQUEUE, now)

    def why_not_saved(self, job: Job) -> str:
        """Return why a filler failed that ended while it was to save itself; empty if that is not what happened."""
        if not self.is_saving(job) or not job.status or job.verdict:
            return ""
        ended = how_it_ended(job.status)
        return f"it was sent SIGUSR1 to save itself, and {ended} instead of exiting with status {STATUS}"

    def was_ended_by_request(self, job: Job) -> bool:
        """Return whether a filler that was to save itself was ended by the signal that says so."""
        return self.is_saving(job) and job.status == -SIGNAL and not job.verdict

    def not_saved(self, part: Placement, reason: str, now: float) -> None:
        """Kill a filler that could not be saved: it goes on from its last image, or begins again."""
        job = part.job
        if job.verdict:
            return
        last = "goes on from what was saved before" if job.saves else "begins again"
        self._outbox.record(job, now, "not_saved", node=part.node.name, reason=reason)
        job.reason = f"it could not be saved, and {last}: {reason}"
        job.losses += 1
        self._executions.end(job, REQUEUE, now)

    def offered(self, name: str, message: say.Offered, now: float) -> None:
        """Start a filler that waits for its image from node `name`; return it to the queue if there is no image."""
        job, offer = self._state.jobs.get(message.job), (name, message.generation)
        if job is None or job.number not in self._executions.offers or (job.image_on, job.saves) != offer:
            return
        if message.source is None:
            job.losses += 1
            self._executions.put_back(job, f"node {name} cannot send its image: {message.reason}", now)
            return
        del self._executions.offers[job.number]
        self._outbox.send(job.launcher, start_of(job, job.launcher, job.shares[job.launcher], message.source))

    def joined(self, node: Node, images: Iterable[say.Kept], now: float) -> None:
        """Send a node that reconnected the orders that it may have missed. `images` are those that it has.

        It gets orders to remove images, to save fillers and to offer images; fillers with images there may start again.
        """
        for kept in images:
            job = self._state.jobs.get(kept.job)
            is_old = job is None or job.is_final or kept.generation < job.saves
            if is_old or (job and kept.generation == job.saves and job.image_on != node.name):
                self._outbox.send(node.name, say.Discard(kept.job, kept.generation))
        for part in self._state.placements.on(node.index):
            if self.is_saving(part.job) and part.state == STARTED:
                self._send_save(part.job)
        for number in self._state.image_room.avoiding(node.name):
            self._has_room(number, node.name, now)
        for number in self._executions.offers:
            job = self._state.jobs[number]
            if job.image_on == node.name:
                self._executions.start_on(job.launcher, job, now)
        for job in self._images_of(node.name):
            self._queue.admit(job, now)

    def silent(self, name: str) -> None:
        """Withdraw the waiting fillers that have their images on a silent node from the policy's queue."""
        for job in self._images_of(name):
            self._queue.withdraw(job)

    def forgotten(self, name: str, now: float) -> None:
        """Record that a node was removed. Waiting fillers with images there begin again; running ones continue."""
        for job in self._images_of(name):
            self._queue.withdraw(job)
            job.image_on, job.ran = "", 0.0
            job.reason = f"its image was on node {name}, which was removed: it begins again"
            self._queue.enqueue(job, now)
        for job in self._state.jobs.values():
            if job.image_on == name and not job.is_final:
                job.image_on = ""
                self._outbox.save(job)

    def _images_of(self, name: str) -> list[Job]:
        """Return the waiting fillers that have their images on a node."""
        return [job for job in self._state.jobs.values() if job.image_on == name and job.state == PENDING]
