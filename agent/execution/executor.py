# SPDX-License-Identifier: Apache-2.0
"""Carries out on a node the orders of its scheduler, and reports the results. Jobs continue without a scheduler."""

from __future__ import annotations

import math
import os
import signal
import socket
import time
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING

from drom.agent.enforcement import memory_limits
from drom.agent.errors import Refused
from drom.agent.execution import devices, launch, protocol, spool
from drom.agent.execution.fillers import Fillers
from drom.agent.execution.no_scheduler import NoScheduler
from drom.agent.execution.remote_steps import RemoteSteps
from drom.agent.execution.schedulers import Schedulers
from drom.agent.execution.supervisor import PATIENCE, Attempt, StepSupervisor, send_signal
from drom.agent.model.jobs import Reservation
from drom.agent.system import proc
from drom.agent.text import counted, in_words

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from drom.agent.control.keys import Keys
    from drom.agent.enforcement.memory_limits import MemoryLimits
    from drom.agent.execution.connection import SchedulerConnection
    from drom.agent.execution.fillers import ImageFolder
    from drom.agent.execution.host import Host
    from drom.agent.execution.protocol import FromAgent, ToAgent
    from drom.agent.model.jobs import Task
    from drom.agent.observe.job_rates import RateSample
    from drom.agent.system.proc import Stat

AGAIN = 0.1
"""Seconds between two checks of an attempt whose processes should have ended."""
MOST_NAMED = 4
"""Maximum number of processes that a line of the log names."""
SELDOM = 5.0
"""The same, in seconds as `AGAIN`, once the processes have survived SIGKILL for `PATIENCE`."""


@dataclass(frozen=True, slots=True)
class Membership:
    """The scheduler that a node belongs to, and the node's name and attributes.

    `addresses` are the ZeroMQ endpoints of its schedulers, of which one leads; the keys `own` are shown to them (None:
    no keys). `resources` are counted ones.
    `limits` makes the control groups that limit the memory of jobs (None: it is not limited), `images` is the folder
    for images of fillers (None: they are not saved in containers). `home` is the node's home partition, if it has one.
    """

    addresses: tuple[str, ...]
    node: str
    spool: Path
    resources: dict[str, int]
    features: tuple[str, ...] = ()
    own: Keys | None = None
    limits: MemoryLimits | None = None
    images: ImageFolder | None = None
    home: str = ""


class JobExecutor(NoScheduler):
    """The executor of a scheduler's jobs on the node of `host`. Raises `SpoolError` if the spool cannot be used."""

    def __init__(self, host: Host, membership: Membership) -> None:
        self._host = host
        self._node = host.node
        self._log = host.log
        self._membership = membership
        self._place = launch.LaunchSite(membership.node, host.settings.runtime_dir.absolute(), membership.resources)
        self._boot = proc.boot_id().hex()
        self._spool = spool.Spool(membership.spool)
        self._supervisor = StepSupervisor(host, self._place, self._boot, self)
        self._fillers = Fillers(
            host,
            host.log,
            self._place,
            membership.images,
            scheduler=membership.addresses[0],
            tell=self._log_reason,
            limits_memory=membership.limits is not None,
        )
        self._schedulers: Schedulers | None = None
        self.attempts: dict[tuple[int, int], Attempt] = {}
        self._paces: list[protocol.Pace] = []
        """Measurements since the last report to the scheduler."""
        self._scan = host.watcher.scan
        self._remote = RemoteSteps(
            host, self._place, self._boot, self.attempts, self._log_reason, share=host.connection_limit, scan=self._scan
        )
        self._restless: set[Attempt] = set()
        """Attempts that `run` checks: those with an order, those whose start is not watched, and those that end."""
        self._ran_at = 0.0
        for folder in self._spool.list_attempts():
            start = folder.start()
            if start is None:
                self._kill_unknown(folder)
                continue
            cores = folder.cores()
            attempt = Attempt(start, folder, start.cores if cores is None else cores, group=folder.group())
            self.attempts[attempt.key] = attempt
            self._remote.steps.take_up(attempt)
            self._look(attempt)
        if membership.limits:
            membership.limits.remove_all_but([attempt.group for attempt in self.attempts.values()])

    def _kill_unknown(self, folder: spool.Folder) -> None:
        """End an attempt with an unreadable folder; the next Hello tells the scheduler that it is not here."""
        job = folder.path.name.partition(".")[0]
        self._log("spool_unreadable", reason=f"{folder.path} cannot be read: the processes of job {job} are ended.")
        self._supervisor.kill_attempt(folder, int(job))

    @property
    def live_jobs(self) -> int:  # type: ignore[override]
        """The number of attempts alive on this node."""
        return sum(one.lives for one in self.attempts.values())

    # --- the loop's -------------------------------------------------------------------------------------------------

    def reservations(self) -> list[Reservation]:
        """Return the reservations of jobs that were there before this agent."""
        return [_reservation(one.start, one.cores) for one in self.attempts.values() if one.lives]

    def open(self) -> None:
        """Connect to the scheduler; called once the node has the reservations that `reservations` returned."""
        self._schedulers = Schedulers(self._membership.addresses, self._log, self._membership.own)
        for fd in self._schedulers.fds:
            self._host.watch(fd, lambda: None)
        self._remote.open()

    def run(self, now: float) -> None:
        """Do what is due at `now`, and handle the messages that the scheduler has sent."""
        self._ran_at = now
        schedulers, heard = self._schedulers, True
        while schedulers and heard:
            for attempt in list(self._restless):
                self._host.survive("job", partial(self._advance, attempt, now), attempt.key)
            for attempt in self.attempts.values():
                if attempt.start.rests and attempt.state == "running":
                    self._report_range(attempt)
                    self._report_vacated(attempt)
            self._remote.run(now)
            self._fillers.run(now)
            schedulers.report(self._hello, self._alive, now)
            heard = False
            for link, message in schedulers.read():
                heard = True
                self._host.survive("job", partial(self._receive, schedulers, link, message, now))

    def next_due(self) -> float | None:
        """Return when `run` has something to do, in seconds of CLOCK_MONOTONIC; None if never."""
        report = self._schedulers.next_due() if self._schedulers else None
        again = self._ran_at + AGAIN if self._restless else None
        times = (report, self._remote.next_due(), self._fillers.next_due(), again)
        return min((at for at in times if at is not None), default=None)

    def rates_measured(self, samples: Iterable[RateSample]) -> None:
        """Record measurements of the scheduler's jobs, to be sent with the next heartbeat."""
        keys = {attempt.name: key for key, attempt in self.attempts.items() if attempt.lives}
        known = [one for one in samples if one.job in keys]
        self._paces += [protocol.Pace(*keys[one.job], one.cores, one.seconds, one.work) for one in known]
        del self._paces[: -protocol.MOST_ON_NODE]

    def reaps(self, task: Task) -> bool:
        """Return whether a task is the whole program of a job; then the job's drom-step ends what remains of it."""
        return any(one.pid == task.arrival.pid and one.name == task.job for one in self.attempts.values() if one.lives)

    def close(self) -> None:
        """Close the connection and the spool; jobs continue, and the next agent takes them over."""
        for attempt in self.attempts.values():
            self._supervisor.forget(attempt)
        self._remote.close()
        if self._schedulers:
            for fd in self._schedulers.fds:
                self._host.unwatch(fd)
            self._schedulers.close()
        self._fillers.close(remains=self.live_jobs > 0)
        self._spool.close()

    # --- messages of the scheduler ----------------------------------------------------------------------------------

    def _receive(self, schedulers: Schedulers, link: SchedulerConnection, message: ToAgent, now: float) -> None:
        if isinstance(message, protocol.Welcome):
            if not schedulers.welcomed(link, message, now):
                return
            for attempt in self.attempts.values():
                attempt.wants = (0, 0)
                if not attempt.lives:
                    self._tell(attempt)
        elif isinstance(message, protocol.No):
            schedulers.rejected(link, message.reason)
        elif isinstance(message, protocol.Who):
            link.send_hello(self._hello(), now)
        elif isinstance(message, protocol.Start):
            self._start(message, now)
        elif isinstance(message, (protocol.Discard, protocol.Offer)):
            self._fillers.receive(message)
        elif known := self.attempts.get((message.job, message.attempt)):  # else the next Hello says so
            self._carry_out(known, message, now)

    def _carry_out(self, attempt: Attempt, message: ToAgent, now: float) -> None:
        """Carry out an order for an attempt."""
        if isinstance(message, protocol.Post):
            self._remote.take(attempt, message.node, message.body)
        elif isinstance(message, protocol.Lost):
            self._remote.lost(message.body)
        elif isinstance(message, protocol.Resize):
            self._resize(attempt, message, now)
        elif isinstance(message, protocol.Occupy):
            self._occupy(attempt, message)
        elif isinstance(message, protocol.Signal):
            self._signal(attempt, message, now)
        elif isinstance(message, protocol.Save):
            self._save(attempt, message, now)
        elif isinstance(message, protocol.Forget) and not attempt.lives:
            del self.attempts[attempt.key]
            self._supervisor.clear(attempt)

    def _log_reason(self, message: FromAgent) -> None:
        if self._schedulers:
            self._schedulers.send(protocol.in_bounds(message))

    def _alive(self) -> protocol.Alive:
        paces, self._paces = self._paces, []
        return protocol.Alive(self._membership.node, time.time(), tuple(paces))

    def _hello(self) -> protocol.Hello:
        host, cores = self._host, self._node.cores
        known = [
            protocol.Known(*one.key, "running" if one.lives else one.state, self._most(one))
            for one in self.attempts.values()
        ]
        return protocol.Hello(
            protocol=protocol.PROTOCOL,
            version=metadata.version("drom"),
            node=self._membership.node,
            host=socket.gethostname(),
            boot=self._boot,
            cores=len(cores),
            cpus_per_core=cores.widest,
            memory=host.settings.memory,
            resources=self._membership.resources,
            features=self._membership.features,
            emulated=host.settings.topology.emulated,
            time=time.time(),
            jobs=tuple(known),
            limits_memory=self._membership.limits is not None,
            saves=self._fillers.saves,
            cpu=self._fillers.cpu,
            images=self._fillers.kept()[: protocol.MOST_ON_NODE],
            home=self._membership.home,
        )

    def _most(self, attempt: Attempt) -> int:
        """Return the cores that an attempt may have until the next order; cores that it still holds count."""
        held = self._node.reservations.cores_held(attempt.name) if attempt.name in self._node.jobs else 0
        return max(attempt.cores, held)

    def _tell(self, attempt: Attempt) -> None:
        """Report the present state of an attempt to the scheduler."""
        job, number = attempt.key
        status = attempt.status or spool.Status(time=time.time())
        if attempt.state == "refused":
            refusal = self._fillers.refusal(attempt) if attempt.start.saving else None
            fault, reason = refusal or launch.why_refused(status, attempt.start, self._place)
            self._log_reason(protocol.Refused(job, number, fault, attempt.note or reason))
        elif attempt.state == "ended":
            saved, written = attempt.saved
            ended = protocol.Ended(
                job,
                number,
                status.status,
                status.time,
                status.cpu_seconds,
                status.max_rss,
                attempt.note,
                attempt.over_memory,
                saved,
                written,
                attempt.folder.began(),
            )
            self._log_reason(ended)
        elif attempt.state != "starting":
            self._log_reason(protocol.Started(job, number, attempt.pid, time.time()))

    # --- starts -----------------------------------------------------------------------------------------------------

    def _start(self, start: protocol.Start, now: float) -> None:
        known = self.attempts.get((start.job, start.attempt))
        if known:
            self._tell(known)
            return
        refusal = launch.why_not_here(start, os.geteuid()) or self._fillers.why_not(start) or self._begin(start, now)
        if refusal:
            self._log("job_refused", job=launch.job_name(start.job), fault=refusal[0], reason=refusal[1])
            self._log_reason(protocol.Refused(start.job, start.attempt, *refusal))

    def _begin(self, start: protocol.Start, now: float) -> tuple[str, str] | None:
        """Start an attempt; return the fault (one of `protocol.FAULTS`) and the reason if it cannot be started."""
        others = (one.start for one in self.attempts.values() if one.lives)
        if why_not := devices.why_not(start, self._membership.resources, others):
            return "busy", why_not
        try:
            self._host.actuator.execute(self._node.reservations.reserve(_reservation(start, start.cores), now))
        except Refused as refusal:
            return ("busy" if start.cores <= len(self._node.cores) else "node"), str(refusal)
        attempt = Attempt(start, self._spool.folder(start.job, start.attempt), start.cores)
        if self._membership.limits and start.memory and start.saving != protocol.CONTAINER:
            attempt.group = self._membership.limits.group(*attempt.key)
        try:
            self._supervisor.begin(attempt, keeper=self._fillers.keeper(attempt))
        except Exception as error:
            self._host.actuator.execute(self._node.reservations.cancel(attempt.name, now))
            if not isinstance(error, OSError):
                raise
            reason = f"{self._membership.node} cannot start it: {error.strerror or error}."
            return launch.fault_of_node(error.errno or 0), reason
        self.attempts[attempt.key] = attempt
        if attempt.pidfd < 0:
            self._restless.add(attempt)
        return None

    def program_started(self, attempt: Attempt) -> None:
        """Record that the program of an attempt runs, or what starts a filler in a container."""
        if not self._fillers.runs(attempt):
            self._restless.add(attempt)
            return
        attempt.state = "running"
        self._log(
            "job_started", job=attempt.name, attempt=attempt.start.attempt, pid=attempt.pid, uid=attempt.start.uid
        )
        self._tell(attempt)

    def _look(self, attempt: Attempt) -> None:
        """Check an attempt without a watched drom-step: an earlier agent started it, or no descriptor was free."""
        state = self._supervisor.look(attempt)
        if state == spool.NEVER and self._schedulers is None:  # it has not been reported to the scheduler
            self._supervisor.clear(attempt)
            del self.attempts[attempt.key]
        elif state == spool.BEGINNING:
            self._restless.add(attempt)
        elif state == spool.RUNNING:
            if attempt.start.saving and not attempt.asked:
                self._fillers.take_up(attempt)
                self._restless.add(attempt)
        else:
            attempt.status = attempt.folder.status()
            self.step_exited(attempt)

    # --- ends -------------------------------------------------------------------------------------------------------

    def step_exited(self, attempt: Attempt) -> None:
        """Record that the drom-step of an attempt has died; the attempt is over when none of its tasks is left."""
        attempt.due = None
        attempt.state = "ending"
        self._restless.add(attempt)

    def _end(self, attempt: Attempt, now: float) -> None:
        """Kill the remaining processes of an attempt; end the attempt once none is left."""
        job = self._node.jobs.get(attempt.name)
        steps = self._remote.steps.any_live(attempt)
        killed = None in {one.status for one in (attempt, *self._remote.steps.attempts(attempt))}
        if attempt.survives and attempt.kill_at is not None and now < attempt.kill_at:
            return
        if killed or steps or (job and job.reserved and job.present):
            stats = self._scan()
            left = self._processes_of(attempt, stats)
            if killed:
                left |= self._supervisor.orphans_of(attempt.start.job, attempt.start.uid, stats)
                left |= memory_limits.processes(attempt.group) if attempt.group else set()
                left |= {pid for pid, start in attempt.doomed.items() if _is_ending(stats.get(pid), start)}
            self._kill(attempt, left, stats, now)
            if left or steps or (job and job.reserved and job.present):
                return
        if attempt.start.saving and not self._fillers.settled(attempt):
            return
        self._restless.discard(attempt)
        self._remote.steps.forget(attempt)
        if job and job.reserved:
            self._host.actuator.execute(self._node.reservations.cancel(attempt.name, now))
        self._note_cause(attempt)
        refused = attempt.status is not None and attempt.status.refused
        if attempt.start.saving:
            attempt.saved = self._fillers.outcome(attempt)
            refused = refused or (self._fillers.refusal(attempt) or ("",))[0]
        attempt.state = "refused" if refused else "ended"
        code = attempt.status.status if attempt.status else "unknown"
        about = {"refused": refused} if refused else {"status": code}
        if attempt.saved[0]:
            about |= {"saved": attempt.saved[0], "bytes": attempt.saved[1]}
        self._log("job_ended", job=attempt.name, attempt=attempt.start.attempt, **about)
        self._tell(attempt)

    def _note_cause(self, attempt: Attempt) -> None:
        """Note why an attempt is over if it did not end by itself."""
        if attempt.start.saving == protocol.CONTAINER and (lost := self._fillers.why_lost(attempt)):
            attempt.status, attempt.note = None, lost
        elif attempt.status is None:
            attempt.note = (
                "its supervisor on the node was killed, or the node was rebooted: its exit status is unknown."
            )
        elif self._is_over_memory(attempt):
            attempt.over_memory = True
            had = in_words(attempt.start.memory)
            attempt.note = f"it needed more than its {had} of memory: ask for more with --mem."

    def _is_over_memory(self, attempt: Attempt) -> bool:
        if attempt.start.saving == protocol.CONTAINER:  # which has a group of its own
            return self._fillers.report(attempt).over_memory
        return attempt.group is not None and memory_limits.exceeded(attempt.group)

    def _signal(self, attempt: Attempt, wanted: protocol.Signal, now: float) -> None:
        if not attempt.lives:
            return
        kills = wanted.signal == signal.SIGKILL and wanted.to == "all"
        wait = 0.0 if kills else wanted.then_kill
        if wait is not None:  # a later order never postpones an earlier kill
            attempt.kill_at = min(now + wait, attempt.kill_at if attempt.kill_at is not None else math.inf)
        if not kills:
            attempt.unsent.append(wanted)
        self._restless.add(attempt)

    def _kill(self, attempt: Attempt, pids: set[int], stats: dict[int, Stat], now: float) -> None:
        """Kill processes of an attempt; log once if they survive SIGKILL, because they hang in the kernel."""
        send_signal(signal.SIGKILL, pids, stats)
        if attempt.start.saving == protocol.CONTAINER:
            self._fillers.thaw(attempt)
        attempt.doomed = {pid: stats[pid].start_time for pid in pids if pid in stats}
        attempt.killed = now if attempt.killed is None else attempt.killed
        if pids and not attempt.survives and now - attempt.killed >= PATIENCE:
            attempt.survives = True
            states = [(pid, proc.read_stat(pid)) for pid in sorted(pids)[:MOST_NAMED]]
            shown = " ".join(f"{pid}:{stat.state}:{proc.command(pid)}" for pid, stat in states if stat)
            reason = "SIGKILL does not end them: their cores are not free until they end, or the node is rebooted."
            about = {"job": attempt.name, "attempt": attempt.start.attempt, "processes": shown}
            self._log("job_kill_failed", **about, reason=reason)
        attempt.kill_at = now + (SELDOM if attempt.survives else AGAIN)

    def _send(self, attempt: Attempt, wanted: protocol.Signal) -> bool:
        """Send a signal to processes of an attempt; return whether the attempt has any."""
        stats = self._scan()
        pids = self._processes_of(attempt, stats)
        if attempt.start.saving:
            pids = {pid for pid in pids if self._fillers.holds(attempt, pid)}
        if not pids or (wanted.once and not attempt.folder.notify_once()):
            return bool(pids)
        everyone = wanted.to == "all" or attempt.start.saving == protocol.CONTAINER
        send_signal(wanted.signal, pids if everyone else self._receivers(attempt, wanted.to, stats), stats)
        return True

    def _receivers(self, attempt: Attempt, to: str, stats: dict[int, Stat]) -> set[int]:
        """Return the pids of the first process of an attempt, or of those of its tasks; of a script, of its commands.

        Processes below these do not get the signal: it would end the helpers of mpirun.
        """
        if to == "first":
            return {attempt.pid}
        if attempt.start.script:
            return {pid for pid, stat in stats.items() if stat.ppid == attempt.pid}
        job = self._node.jobs.get(attempt.name)
        return {task.arrival.pid for task in job.present} if job and job.reserved else set()

    def _processes_of(self, attempt: Attempt, stats: dict[int, Stat]) -> set[int]:
        """Return the pids of the processes of a scan that belong to an attempt, by descent or as tasks."""
        job = self._node.jobs.get(attempt.name)
        slots = [task.slot for task in job.present] if job and job.reserved else []
        pids = self._supervisor.processes_of([attempt, *self._remote.steps.attempts(attempt)], stats)
        return pids.union(*self._host.watcher.processes_of_all(slots, stats).values()) if slots else pids

    # --- saves ------------------------------------------------------------------------------------------------------

    def _save(self, attempt: Attempt, wanted: protocol.Save, now: float) -> None:
        """Order the save of a filler. The answer is the report of its end, or the reason why it was not saved."""
        if not attempt.lives:
            self._tell(attempt)
            return
        reason = "" if attempt.start.saving else "it is no filler."
        try:
            if not reason:
                self._fillers.order(attempt, wanted, now)
        except OSError as error:
            reason = f"{self._membership.node} cannot write down the order: {error.strerror}."
        if reason:
            self._log_reason(protocol.NotSaved(*attempt.key, reason))
        else:
            self._restless.add(attempt)

    def _advance_filler(self, attempt: Attempt, now: float) -> None:
        """Report that a filler runs, and that it goes on although it was to be saved."""
        if attempt.state == "starting" and attempt.pid and self._fillers.runs(attempt):
            self.program_started(attempt)
        if attempt.asked and (reason := self._fillers.advance(attempt, now)):
            self._log_reason(protocol.NotSaved(*attempt.key, reason))
            self._log("job_not_saved", job=attempt.name, attempt=attempt.start.attempt, reason=reason)

    # --- sizes ------------------------------------------------------------------------------------------------------

    def _resize(self, attempt: Attempt, wanted: protocol.Resize, now: float) -> None:
        if attempt.state not in ("starting", "running"):
            return  # the report of its end is the answer
        try:
            self._order(attempt, wanted.cores, now)
        except Refused as refusal:
            held = (
                self._node.reservations.cores_held(attempt.name) if attempt.name in self._node.jobs else attempt.cores
            )
            self._log_reason(protocol.NotResized(*attempt.key, held, str(refusal)))
            return
        attempt.due = now + wanted.within
        self._restless.add(attempt)

    def _report_range(self, attempt: Attempt) -> None:
        """Report how many cores the programs of an adaptive job can use, if that has changed."""
        job = self._node.jobs.get(attempt.name)
        wishes = [task.wish for task in job.present] if job else []
        if not wishes or not all(wish.min_tasks for wish in wishes):
            return
        wants = max(wish.min_tasks for wish in wishes), max(wish.max_tasks for wish in wishes)
        if wants != attempt.wants:
            attempt.wants = wants
            self._log_reason(protocol.Wants(*attempt.key, *wants))

    def _occupy(self, attempt: Attempt, wanted: protocol.Occupy) -> None:
        """Give the programs of an adaptive job the nodes on which they are to have ranks."""
        here = self._membership.node
        if len(wanted.ranks) != len(wanted.nodes) or not any(wanted.ranks) or not attempt.start.rests:
            return
        try:
            launch.write_ranks(attempt.start, self._place, wanted.nodes, wanted.ranks)
        except OSError as error:
            self._log("spool_failed", reason=f"cannot write a host file: {error.strerror}")
            return
        attempt.occupied = wanted.nodes
        attempt.vacates = not dict(zip(wanted.nodes, wanted.ranks, strict=True)).get(here)
        attempt.wants, attempt.vacated = (0, 0), None  # what is there is reported again

    def _report_vacated(self, attempt: Attempt) -> None:
        """Report that no ranks of an adaptive job are on this node, and then, if it leaves it, that no process is."""
        job = self._node.jobs.get(attempt.name)
        if not attempt.occupied:
            return
        if job and job.present:
            attempt.vacated = None
            return
        holds = attempt.vacates and attempt.start.mode == "hold"
        report = protocol.Vacated(*attempt.key, holds and not self._remote.steps.any_live(attempt))
        if report != attempt.vacated:
            attempt.wants, attempt.vacated = (0, 0), report
            self._log_reason(report)

    def _order(self, attempt: Attempt, cores: int, now: float) -> None:
        if attempt.name not in self._node.jobs:
            msg = f"job {attempt.name} got no cores when the agent started: they do not fit."
            raise Refused(msg)
        self._host.actuator.execute(self._node.reservations.order(attempt.name, cores, now))
        attempt.cores = cores
        try:
            attempt.folder.order(cores)
        except OSError as error:  # a new agent would report the old number in its Hello
            self._log("spool_failed", reason=f"cannot write down an order: {error.strerror}")

    def _advance(self, attempt: Attempt, now: float) -> None:
        """Do what is due for an attempt: check it, settle its order, send its signals, kill its processes."""
        if attempt.state == "ending":
            self._end(attempt, now)
            return
        if attempt.pidfd < 0 and attempt.lives:
            self._look(attempt)
        if attempt.due is not None:
            self._confirm_resize(attempt, now)
        if attempt.start.saving:
            self._advance_filler(attempt, now)
        while attempt.pidfd >= 0 and attempt.unsent and self._send(attempt, attempt.unsent[0]):
            del attempt.unsent[0]
        if attempt.kill_at is not None and now >= attempt.kill_at:
            stats = self._scan()
            self._kill(attempt, self._processes_of(attempt, stats), stats, now)
        watched = attempt.pidfd >= 0 or not attempt.lives
        rests = attempt.due is None and attempt.kill_at is None and not attempt.unsent and not attempt.asked
        rests = rests and not (attempt.start.saving and attempt.state == "starting")
        if rests and watched and attempt.state != "ending":
            self._restless.discard(attempt)

    def _confirm_resize(self, attempt: Attempt, now: float) -> None:
        """Report that an order has been applied, or withdraw it once its time limit has passed."""
        if attempt.due is None:
            return
        if self._node.reservations.has_settled(attempt.name):
            attempt.due = None
            self._log_reason(protocol.Resized(*attempt.key, attempt.cores))
        elif now >= attempt.due:
            wanted, held = attempt.cores, self._node.reservations.cores_held(attempt.name)
            try:
                self._order(attempt, held, now)
            except Refused:  # the node is frozen, or other jobs have the cores: retry, and report the size held then
                attempt.due = now + AGAIN
                return
            attempt.due = None
            verb = "was" if wanted == 1 else "were"
            reason = f"it was not applied in time: {counted(wanted, 'core')} {verb} ordered."
            self._log_reason(protocol.NotResized(*attempt.key, held, reason))


def _is_ending(stat: Stat | None, start_time: int) -> bool:
    """Return whether a process that was killed has not ended yet."""
    return stat is not None and stat.start_time == start_time and stat.state not in "ZX"


def _reservation(start: protocol.Start, cores: int) -> Reservation:
    return Reservation(
        name=launch.job_name(start.job),
        uid=start.uid,
        cores=cores,
        most=max(start.most, start.cores),
        tasks=start.tasks,
        job_class=start.job_class,
        memory=start.memory,
        rests=start.rests,
    )
