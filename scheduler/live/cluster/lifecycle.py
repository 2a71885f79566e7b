# SPDX-License-Identifier: Apache-2.0
"""The life of a job, from the queue to its end: the state of all jobs and nodes, and each transition between states.

No I/O. Changes to be stored are collected in `unsaved` and `entries`, messages to be sent in `messages`. The caller
stores first and sends afterwards, so that a node never receives a request that a successor would not know of.
"""

from __future__ import annotations

import signal
from collections import deque
from typing import TYPE_CHECKING, Any

from drom.agent.execution import protocol as say
from drom.agent.text import counted
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import RIGID
from drom.scheduler.live.cluster import admission
from drom.scheduler.live.cluster.controller import ANYWHERE, JobRequest
from drom.scheduler.live.cluster.dependencies import Dependencies
from drom.scheduler.live.cluster.dispatch import Dispatch
from drom.scheduler.live.cluster.fair_share import Usage
from drom.scheduler.live.cluster.jobs import (
    CANCELLED,
    CLASSES,
    ENDING,
    FAILED,
    FINAL,
    NODE_FAIL,
    PENDING,
    REQUEUE,
    Entry,
    Job,
    Node,
)
from drom.scheduler.live.cluster.launch import start_of
from drom.scheduler.live.cluster.quotas import Holdings, Turns
from drom.scheduler.live.cluster.spec import without_environment
from drom.scheduler.live.cluster.survivors import Survivors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from drom.agent.observe.rates import Rates
    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.live.cluster.controller import Controller, Fault
    from drom.scheduler.live.cluster.dependencies import Wait
    from drom.scheduler.live.cluster.settings import Settings
    from drom.scheduler.live.cluster.spec import Spec


SOON = 600.0
"""Seconds after a job's start within which a loss counts."""
MOST_LOSSES = 5
"""Losses soon after its start after which a job is held: it may have caused them itself."""
STEPS = 200
"""Jobs waiting for others that are handled in one turn: no message is read meanwhile."""


class JobLifecycle:
    """Jobs by number and nodes by name, and the policy that places the jobs on the nodes.

    `past` returns the final state of a job that is no longer kept, or None.
    """

    _steps = STEPS
    """The number of jobs waiting for others that may still be handled before the next turn."""

    def __init__(self, policy: Policy, settings: Settings, past: Callable[[int], str | None] = lambda _: None) -> None:
        self.policy = policy
        self.settings = settings
        self.jobs: dict[int, Job] = {}
        self.holdings = Holdings()
        self.turns = Turns(settings.max_running, settings.operators)
        self.usage = Usage(settings.half_life) if settings.half_life else None
        """What users have used, if the site gives them equal shares."""
        self._arranged = 0.0
        """When the queue was last put into the order of these shares."""
        self.nodes: dict[str, Node] = {}
        self.messages: list[tuple[str, say.ToAgent]] = []
        """Messages to be sent once all changes are stored, with the names of their nodes."""
        self.unsaved: dict[int, Job] = {}
        self.entries: list[Entry] = []
        self.unsaved_nodes: dict[str, Node] = {}
        self.gone_nodes: list[str] = []
        """Nodes that are to be deleted from the queue."""
        self.warnings: list[tuple[str, dict[str, object]]] = []
        """Events for the log that concern no job, with their fields."""
        self.controller: Controller | None = None
        self.dispatch = Dispatch(0)
        self._past = past
        self._next = 1
        self._names: list[str] = []
        """The names of nodes by index; empty for an index that no node has."""
        self._groups: dict[str, Spec] = {}
        """The specification of one job of each group; the jobs of a group may run on the same nodes."""
        self._dependencies = Dependencies()
        self.rates: dict[int, Rates] = {}
        """The measured rates of running jobs, by job, as far as this scheduler has received them."""
        self._unsure: dict[int, set[str]] = {}
        """Jobs that may or may not have been started before this scheduler, with the nodes that have yet to report."""
        self._on: dict[str, dict[int, Job]] = {}
        """The jobs that have not left a node yet, by its name and their numbers: an index of `left` of all jobs."""
        self._fitting = admission.Fitting()
        self._faults: list[Fault] = []
        """Decisions of the policy that could not be carried out and that were reported in the log."""
        self._nodes_due = 0.0
        """The earliest time at which the silence of a node has a consequence, or a node is no longer put off."""
        self._changed: deque[int] = deque()
        """Jobs that have started or are over and whose dependents have not been checked yet."""
        self._affected: deque[tuple[int, str]] = deque()
        """Jobs that no longer wait for others, or that never start: then with a clause that gives the reason."""
        self._began = 0.0
        """When this scheduler took over; the silence of nodes that have sent it nothing yet counts from then."""
        self.survivors = Survivors(settings.kill_wait)
        self._strangers: dict[str, set[tuple[int, int]]] = {}
        """Attempts, by node, given up while the node was silent; no job starts there until they are killed."""

    def _living(self, number: int) -> Job:
        job = self.jobs.get(number)
        if job is None or job.is_final:
            over = job.state if job else self._past(number)
            msg = f"job {number} is over: it is {over}." if over else f"there is no job {number}: see drom queue."
            raise SchedulerError(msg)
        return job

    def known_rates(self, number: int) -> dict[int, float]:
        """Return the measured work per second of a running job, by its cores on each node, as far as it is known."""
        return self.rates[number].known() if number in self.rates else {}

    def jobs_on(self, name: str) -> list[Job]:
        """Return the jobs that have not left a node yet, in the order of their numbers."""
        return [job for _, job in sorted(self._on.get(name, {}).items())]

    def _add_to_node(self, job: Job, names: Iterable[str]) -> None:
        """Record that a job is on these nodes and on no others."""
        for name in list(job.left):
            self._remove_from_node(job, name)
        job.left = list(names)
        for name in job.left:
            self._on.setdefault(name, {})[job.number] = job

    def _remove_from_node(self, job: Job, name: str) -> None:
        """Record that a job has left one of its nodes."""
        job.left.remove(name)
        there = self._on[name]
        del there[job.number]
        if not there:
            del self._on[name]

    # --- the queue ------------------------------------------------------------------------------------------------

    def _enqueue(self, job: Job, now: float) -> None:
        """Submit a waiting job to the policy if it may start, or end it if it never can."""
        if self._try_enqueue(job, now):
            self._tell_dependents(job, now)

    def _try_enqueue(self, job: Job, now: float) -> bool:
        """Submit a waiting job to the policy if it may start; return whether it was ended because it never can."""
        if job.spec.after and not self._dependencies.join(job):
            blocking, hopeless = admission.dependencies(job.spec.after, self.state_of)
            if hopeless:
                self._conclude(job, CANCELLED, now, hopeless)
                return True
            self._dependencies.begin(job, blocking)
        self._admit(job, now)
        return False

    def _admit(self, job: Job, now: float) -> None:
        """Submit a waiting job to the policy unless something keeps it from starting."""
        could = not job.held and not self.waits_for(job.number) and not self.why_not(job.spec)
        if self.controller and could and not self.controller.waits(job.number) and self.turns.enter(job):
            self.controller.submit(job.number, self._demand(job), int(now))

    def _look_again(self, other: int, wait: Wait) -> None:
        """Record which jobs of `wait` may start, or never can, after the job `other` has started or ended."""
        blocking, hopeless = admission.dependencies(wait.open[other], self.state_of)
        numbers = list(wait.jobs)
        if hopeless or (not blocking and self._dependencies.met(wait, other, self.jobs[numbers[0]])):
            self._affected.extend((number, hopeless) for number in numbers)

    def _tell_dependents(self, job: Job, now: float) -> None:
        """Check the jobs that wait for a job that has started or is over, and those waiting for jobs that end by it."""
        self._changed.append(job.number)
        self._follow(now)

    def _follow(self, now: float) -> None:
        """Update jobs that wait for others, as many as a turn allows; the next turn continues."""
        while self._steps > 0 and (self._affected or self._changed):
            if not self._affected:
                other = self._changed.popleft()
                for wait in self._dependencies.on(other):
                    self._look_again(other, wait)
                continue
            self._steps -= 1
            number, hopeless = self._affected.popleft()
            job = self.jobs.get(number)
            if job is None or job.state != PENDING:
                continue
            if hopeless:
                self._conclude(job, CANCELLED, now, hopeless)
                self._changed.append(number)
            else:
                self._admit(job, now)

    @property
    def is_behind(self) -> bool:
        """Whether jobs that wait for others have yet to be updated."""
        return bool(self._affected or self._changed)

    def waits_for(self, number: int) -> list[int]:
        """Return the jobs after which a job is to start and for which it still waits."""
        return self._dependencies.of(self.jobs[number])

    def why_not(self, spec: Spec) -> str:
        """Return why the policy cannot place a job that was accepted before; empty if it can."""
        if why_not := admission.why_not_under(self.policy, spec):
            return f"{why_not}, and it requests certain ones: cancel it, or run the scheduler with --policy sd"
        threads = max(1, spec.threads)
        if self.controller and spec.tasks * threads > self.controller.cores:
            wants = f"{counted(spec.tasks, 'task')} of {counted(threads, 'core')}"
            has = counted(self.controller.cores, "core")
            return f"its {wants} do not fit on a node, which has {has} now: cancel it, and submit it again"
        return ""

    def _demand(self, job: Job) -> JobRequest:
        """Return the description of a job for the policy, which from then on knows the nodes of the job's group."""
        group = admission.group_of(job.spec)
        if group not in self._groups:
            self._groups[group] = job.spec
            self._allow(group)
        shares = self._fitting.may_share(job.spec, group, self.nodes.values(), self.policy, self.dispatch.cores)
        cls = CLASSES[job.spec.job_class] if shares else RIGID
        return JobRequest(job.spec.nodes, max(1, self.settings.limit(job.spec.time)), cls, job.priority, group)

    def _hosts(self, spec: Spec) -> list[Node]:
        """Return the nodes that lack nothing for a job."""
        return self._fitting.hosts(spec, self.nodes.values())

    def _allow(self, group: str) -> None:
        """Send the policy the nodes on which the jobs of a group may run, unless they may run on any."""
        if self.controller and group != ANYWHERE:
            could = [node.index for node in self._hosts(self._groups[group])]
            for unused in self.controller.allow(group, could):
                self._groups.pop(unused)

    def state_of(self, number: int) -> str | None:
        """Return the state of a job; None if no job has that number."""
        job = self.jobs.get(number)
        return job.state if job else self._past(number)

    def _withdraw(self, job: Job) -> None:
        self.unsaved[job.number] = job
        self.turns.leave(job)
        if self.controller and self.controller.waits(job.number):
            self.controller.withdraw(job.number)

    def _count_from(self, job: Job, now: float) -> None:
        """Count the time that a job may take from now on."""
        if self.controller:
            self.controller.launched(job.number, int(now))

    def _start_on(self, name: str, job: Job) -> None:
        """Send a node the request to start its part of a job."""
        self.messages.append((name, start_of(job, name, self.dispatch.cores)))

    # --- ends -----------------------------------------------------------------------------------------------------

    def _end(self, job: Job, verdict: str, now: float) -> None:
        """End a job on its nodes, with a verdict; the first verdict given counts."""
        job.verdict = job.verdict or verdict
        self.unsaved[job.number] = job
        if job.number in self.dispatch.placed:
            self.dispatch.unplace(job.number)
            self._add_to_node(job, ())
        self._leave_other_nodes(job)
        begins = job.state != ENDING
        if begins and job.left:
            job.state = ENDING
            self._record(job, now, "ending", verdict=job.verdict)
        if job.left:
            self.survivors.ends(job.number, now)
        if begins or job.launcher not in job.left:
            for name in job.left:
                self._kill(name, job)
        if not job.left:
            self._left_all(job, now)

    def _leave_other_nodes(self, job: Job) -> None:
        """Remove a job that may have been started from the nodes that reported that it was not; others will report."""
        silent = self._unsure.pop(job.number, None)
        if silent is not None:
            for name in [name for name in job.left if name not in silent]:
                self._remove_from_node(job, name)
                self.dispatch.gone(self.nodes[name].index, job.number)

    def _kill(self, name: str, job: Job) -> None:
        """End a job on a node: by SIGTERM, then by SIGKILL; by SIGKILL at once if it has left its first node."""
        if name == job.launcher or job.launcher in job.left:
            message = say.Signal(job.number, job.attempt, signal.SIGTERM, self.settings.kill_wait)
        else:
            message = say.Signal(job.number, job.attempt, signal.SIGKILL, None)
        self.messages.append((name, message))

    def _leave(self, node: Node, job: Job) -> None:
        self._remove_from_node(job, node.name)
        self.unsaved[job.number] = job
        self.dispatch.gone(node.index, job.number)
        self.messages.append((node.name, say.Forget(job.number, job.attempt)))

    def _left_all(self, job: Job, now: float) -> None:
        if self.controller and self.controller.runs(job.number):
            self.controller.ended(job.number, int(now))
        self.rates.pop(job.number, None)
        self.turns.leave(job)
        self.survivors.has_ended(job.number)
        if job.verdict == REQUEUE:
            self._back_to_queue(job, job.reason, now)
            self._hold_if_often_lost(job, now)
            self._enqueue(job, now)
        else:
            self._finish(job, job.verdict, now, job.reason)

    def _hold_if_often_lost(self, job: Job, now: float) -> None:
        if job.losses >= MOST_LOSSES:
            job.held = True
            self._record(job, now, "held", reason=f"it was lost {job.losses} times soon after its start")

    def _finish(self, job: Job, state: str, now: float, reason: str) -> None:
        self._conclude(job, state, now, reason)
        self._tell_dependents(job, now)

    def _conclude(self, job: Job, state: str, now: float, reason: str) -> None:
        self._dependencies.leave(job)
        if not job.is_final:
            self.holdings.remove(job)
        job.state, job.reason, job.ended, job.spec = state, reason, now, without_environment(job.spec)
        self._record(job, now, state, **({"reason": reason} if reason else {}))

    def _back_to_queue(self, job: Job, reason: str, now: float) -> None:
        job.state, job.reason, job.verdict, job.started, job.status = PENDING, reason, "", None, None
        self._add_to_node(job, ())
        job.shares, job.acknowledged, job.limit = {}, [], self.settings.limit(job.spec.time)
        self._record(job, now, "requeued", reason=reason)

    def _after_loss(self, job: Job) -> str:
        """Return the verdict on a job that its nodes have lost; one that no node was asked to start is requeued."""
        return REQUEUE if job.spec.requeue or job.number in self.dispatch.placed else NODE_FAIL

    def _lose(self, job: Job, reason: str, now: float) -> None:
        """Record why a job has lost its part on a node; this also replaces the verdict that its launcher failed."""
        if job.verdict not in ("", FAILED):
            return
        job.reason, job.verdict = reason, self._after_loss(job)
        asked = job.number not in self.dispatch.placed and job.number not in self._unsure
        job.losses += asked and job.verdict == REQUEUE and now - (job.started or now) < SOON

    def _lost_on(self, node: Node, job: Job, now: float) -> None:
        """Record that a node no longer knows a job that ran there, and end the job."""
        self._lose(job, f"node {node.name} has lost it", now)
        self._leave(node, job)
        self._end(job, job.verdict, now)

    # --- writing down ---------------------------------------------------------------------------------------------

    def _warn(self, event: str, **fields: object) -> None:
        self.warnings.append((event, fields))

    def _holds(self, name: str, job: Job, cores: int, now: float) -> None:
        """Record how many cores of a node a job holds, with a history entry if that differs from the last one."""
        if job.sizes.get(name) != cores:
            job.sizes[name] = cores
            self._record(job, now, "resized", node=name, cores=cores)

    def _record(self, job: Job, now: float, what: str, **detail: Any) -> None:  # noqa: ANN401 - JSON values
        self.unsaved[job.number] = job
        self.entries.append(Entry(job.number, now, what, detail))

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
        over = [number for number, job in self.jobs.items() if job.state in FINAL and number not in self.unsaved]
        for number in over[: max(0, len(over) - keep)]:
            del self.jobs[number]
