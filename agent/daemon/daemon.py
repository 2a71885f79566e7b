# SPDX-License-Identifier: Apache-2.0
"""The agent's only loop: it reads events, asks `Node` for decisions, and carries them out."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import threading
import time
import traceback
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from drom.agent import errors
from drom.agent.control import server
from drom.agent.daemon import recovery
from drom.agent.daemon.acknowledgements import AckProcessor
from drom.agent.daemon.actuator import Actuator
from drom.agent.daemon.control_handler import ControlHandler
from drom.agent.daemon.process_watch import ProcessWatcher, first_process
from drom.agent.daemon.registrar import Registrar
from drom.agent.daemon.registration_server import RegistrationServer
from drom.agent.daemon.responders import Responders
from drom.agent.daemon.usable_cpus import UsableCpus
from drom.agent.enforcement import affinity
from drom.agent.enforcement.repair import MaskRepair
from drom.agent.enforcement.spread import ThreadSpreading
from drom.agent.errors import Refused
from drom.agent.execution.no_scheduler import NoScheduler
from drom.agent.ipc import registry, runtime_dir
from drom.agent.ipc.cpu_locks import CpuLocks
from drom.agent.ipc.mailboxes import Mailboxes
from drom.agent.model.cores import Cores
from drom.agent.node.node import Node
from drom.agent.observe.event_log import EventLogError
from drom.agent.observe.guarded import Guard
from drom.agent.observe.job_rates import RateMonitor
from drom.agent.observe.reporter import EventReporter
from drom.agent.observe.snapshot import snapshot
from drom.agent.system import heap, proc
from drom.agent.system.batch_jobs import BatchJobReader
from drom.agent.system.confinement import Confinement, ConfinementReader
from drom.agent.system.periodic import Step
from drom.agent.system.unix_signals import SignalPipe
from drom.agent.text import counted
from drom.agent.topology import machine as topology

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from drom.agent.daemon.settings import Settings
    from drom.agent.execution.slurm_jobs import SlurmJobs
    from drom.agent.model import caller
    from drom.agent.model.jobs import Arrival, Task
    from drom.agent.observe.log import Log
    from drom.agent.observe.view import Snapshot
    from drom.agent.placement.ranks import PlacementKernel
    from drom.agent.system.periodic import Periodic
    from drom.agent.system.proc import Identity
    from drom.agent.system.sd_notify import ServiceManager

T = TypeVar("T")

HEARTBEAT = 1.0
"""Seconds between two heartbeats in the registry's header."""
PARTS = (
    "binding",
    "deadlines",
    "door",
    "events",
    "following",
    "foreign_jobs",
    "freeze_file",
    "job",
    "load",
    "machine",
    "mail",
    "order",
    "pacing",
    "recovery",
    "repairs",
    "scheduler",
    "service_manager",
    "slurm",
    "spreading",
    "widening",
)
"""The parts of the loop whose failures are counted."""


class Daemon:
    """A node agent in its runtime directory. `run` returns when the agent has to stop.

    A part of its loop that fails is logged, counted by `guard` and run again; see `survive`.

    `manager` receives the agent's status; `reload` is called to read the configuration again.
    """

    reload: Callable[[], object]

    def __init__(self, settings: Settings, place: PlacementKernel, log: Log, manager: ServiceManager) -> None:
        self.settings = settings
        self.log = log
        self.guard = Guard(log, PARTS, self._notice)
        self._recovery = recovery.Recovery(self)
        self._torn = False
        """Whether a change of the node was interrupted, and has to be repaired before any other change."""
        self.manager = manager
        self.lock = threading.Lock()
        heap.return_large_blocks()
        self._lock_fd = runtime_dir.create_and_lock(settings.runtime_dir)
        try:
            log.keep(settings.history)
        except EventLogError as error:  # managing the node matters more than recording its events
            log("history_failed", reason=error)
        self._selector = selectors.DefaultSelector()
        self._running = True
        self._more = False
        self._hands_over = False
        machine = settings.topology
        self._confinement = ConfinementReader(Path("/"))
        self.binds = not (machine.emulated or settings.observe)
        self.rows = topology.usable_cores(machine, settings.unit)
        self.node = Node(
            Cores.of(self.rows, topology.usable_cores(machine) if settings.unit == "thread" else (), machine.kinds),
            self._timed(place),
            rules=settings.rules,
            memory=settings.memory,
            grace=settings.grace,
            capacity=settings.capacity,
            layout=settings.layout,
        )
        self._claims = CpuLocks(settings.claims) if settings.claims and self.binds else None
        if self._claims:
            for warning in self._claims.take(self.node.cores.all):
                log("claim_conflict", reason=warning)
        self._open()

    def _open(self) -> None:
        path, machine = self.settings.runtime_dir, self.settings.topology
        usable = self.node.cores.all
        me = os.getpid()
        owner = registry.Owner(
            me,
            proc.start_time(me) or 0,
            proc.boot_id(),
            topology.digest(machine),
            emulated=not self.binds,
            threads=self.settings.unit == "thread",
        )
        bits = max(64, machine.online.bit_length())
        self.registry, adopted = recovery.open_registry(path, self.settings.capacity, bits, owner, usable)
        self.mailboxes = Mailboxes(path / "mail")
        # Every user may send orders; what they may do depends on the user id that the kernel reports.
        self.control = server.Server(
            path, 0o666, self.settings.gate, self.connection_limit, slots=self.registry.capacity
        )
        self.report = EventReporter(self.log, self.control.signal)
        self.watcher = ProcessWatcher(self, self.node, self._process_ended)
        spreading = ThreadSpreading(self.node, self.mailboxes.read, self.registry)
        self.actuator = Actuator(
            self.node,
            self.registry,
            self.watcher,
            spreading,
            self.report,
            binds=self.binds,
            cpusets=self.settings.cpusets,
        )
        self.usable = UsableCpus(
            self.settings,
            self.node,
            [mask for *_, mask in self.rows],
            self.log,
            BatchJobReader(Path("/")) if self.binds and not self.settings.ignore_slurm else None,
            execute=self.actuator.execute,
            confine_all=self.confine_all,
        )
        self.responders = Responders(self.actuator, self.mailboxes)
        self.registrar = Registrar(
            self.actuator,
            self.mailboxes,
            self.responders,
            self.end,
            observes=self.settings.observe,
            exclude=self.settings.exclude,
            quotas=self.settings.quotas,
            confined=self.confined,
        )
        self.registrations = RegistrationServer(
            path / "door", self, self.actuator, self.registrar, self.responders, share=self.connection_limit
        )
        self.actuator.listener, self.actuator.enforced = self.registrations, self.responders.enforced
        self.actuator.failed = self.guard.failed
        self.acknowledgements = AckProcessor(self.mailboxes, self.actuator, self.responders.clear)
        self.rate_monitor = RateMonitor(self.node, self.mailboxes.read)
        find = self.watcher.processes_of_all
        self.mask_repair = MaskRepair(self.node, find, self.report, binds=self.binds, narrowed=self.actuator.narrowed)
        self.control_handler = ControlHandler(self)
        membership = self.settings.membership
        self.executor = NoScheduler()
        if membership:  # loaded only where there are jobs to execute: it takes 0.9 MB
            from drom.agent.execution.executor import JobExecutor

            self.executor = JobExecutor(self, membership)
        self._periodic: tuple[tuple[str, Periodic], ...] = (
            ("deadlines", Step(self._act_on_deadlines, self.node.next_deadline)),
            ("machine", Step(self.usable.look_at_machine)),
            ("load", Step(self.usable.look_at_load)),
            ("foreign_jobs", Step(self.usable.look_at_foreign_jobs)),
            ("spreading", spreading),
            ("widening", self.actuator.widening),
            ("repairs", self.mask_repair),
            ("following", self.watcher),
            ("door", self.registrations),
            ("pacing", Step(self._look_at_pace)),
            ("scheduler", self.executor),
        )
        self._slurm: SlurmJobs | None = None
        limits, comments = self.settings.slurm_limits, self.settings.slurm_comments
        if (limits or comments) and not self.settings.observe:  # loaded only where it is used
            from drom.agent.execution.slurm_jobs import SlurmJobs

            self._slurm = SlurmJobs(self.node, self.log, limits=limits, comments=comments)
            self._periodic += (("slurm", self._slurm),)
        self._look_at_switch()
        if adopted:
            recovery.recover_tasks(self)
        else:
            self.mailboxes.keep_only(set())
            self.actuator.execute(self.node.adopt([], {}, 0, time.monotonic(), self.executor.reservations()))
        self.usable.look_at_foreign_jobs(time.monotonic())
        if self.settings.cpusets and self.binds:
            self.settings.cpusets.remove_all_but(self.node.tasks.values())

    def connection_limit(self, uid: int) -> int:
        """Return how many connections to one of the agent's sockets a user may have."""
        return self.settings.quotas.connections(uid, proc.raise_fd_limit())

    def cancel_start(self) -> None:
        """Give up before `run`: leave programs and registry to the next agent, and remove the sockets."""
        self.close_for_successor()
        runtime_dir.remove_sockets(self.settings.runtime_dir)

    def close_for_successor(self) -> None:
        """Close the sockets and leave programs and registry, as a crash would, for the next agent.

        A part that fails is logged, and the other parts are closed.
        """
        guard = Guard(self.log, ())
        self._close_registrations(guard)
        guard.run("order", self.control.close)
        self._unlock(guard)

    def _close_registrations(self, guard: Guard) -> None:
        guard.run("door", self.registrations.close)
        guard.run("door", self.registrar.close)

    def _unlock(self, guard: Guard) -> None:
        guard.run("scheduler", self.executor.close)
        if self._slurm:
            guard.run("slurm", self._slurm.close)
        if self._claims:
            guard.run("claims", self._claims.close)
        guard.run("log", self.log.close)
        os.close(self._lock_fd)

    # --- the loop -------------------------------------------------------------------------------------------------

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until SIGTERM, SIGINT or SIGUSR1; call `ready` once programs may register.

        Raises `LoopError` if a part of the loop has failed too often in a row. The state is then that after a crash.
        """
        signals = SignalPipe(
            {
                signal.SIGTERM: self._stop,
                signal.SIGINT: self._stop,
                signal.SIGUSR1: self._hand_over,
                signal.SIGHUP: self._reload,
            }
        )
        self.watch(signals.fd, signals.dispatch)
        self.registrations.open()
        self.executor.open()
        self.watch(self.mailboxes.watch, self.acknowledgements.read)
        for fd in self.control.fds:
            self.watch(fd, lambda: None)
        try:
            with heap.Garbage() as garbage:
                ready()
                self.manager.ready()
                while self._running:
                    self._iterate()
                    garbage.look(idle=not self._more)
            self.manager.stopping()
            if self._hands_over or self.executor.live_jobs:  # programs keep running where they are
                self.log("handed_over", tasks=len(self.node.tasks), jobs=self.executor.live_jobs)
                self.close_for_successor()
            else:
                self._shut_down()
        finally:
            signals.close()

    def _iterate(self) -> None:
        """Wait for events and handle all of them."""
        events = self._selector.select(self._timeout())
        with self.lock:
            if not self._is_torn() or self._recover():
                self._do_all(events)
            self.registry.beat()
        self.survive("service_manager", lambda: self.manager.heartbeat(time.monotonic(), self._status()))
        self.guard.settle()

    def _do_all(self, events: list[tuple[selectors.SelectorKey, int]]) -> None:
        self.survive("freeze_file", self._look_at_switch)
        for key, _ in events:
            # An earlier event of this round may have closed this one's descriptor.
            if self._selector.get_map().get(key.fd) is key:
                self.survive("events", key.data, key.fd)
        if self.acknowledgements.missed:
            self.survive("mail", self.acknowledgements.read_all)
        for part, work in self._periodic:
            self.survive(part, partial(work.run, time.monotonic()))
        # ZeroMQ's descriptor signals edges: check once more, whatever happened.
        self._more = bool(self.survive("order", lambda: self.control.serve(self._answer)))

    def survive(self, part: str, step: Callable[[], T], key: Hashable = None) -> T | None:
        """Return what a step of the loop returns, None if it fails; an interrupted change is repaired.

        While the repair is not possible no step is run: None is returned at once.
        """
        if self._is_torn():
            return None
        value = self.guard.run(part, step, key)
        if self._is_torn():
            self._recover()
        return value

    def _is_torn(self) -> bool:
        return self._torn or self.actuator.torn

    def _notice(self, error: Exception) -> None:
        """Record whether an error has interrupted a change of the node. A refusal has not."""
        if isinstance(error, Refused):
            return
        inside = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
        node = self.node
        parts = (node, node.plan, node.grants, node.reservations)
        self._torn |= any(one is part for one in inside for part in parts)

    def _recover(self) -> bool:
        """Repair an interrupted change; return whether that succeeded."""
        self._torn = not self.guard.run("recovery", self._recovery.attempt)
        return not self._torn

    def _answer(self, order: dict[str, Any], caller: caller.Caller) -> Any:  # noqa: ANN401 - a JSON value
        """Answer an order. Raises `ControlError`, also for a fault of the agent."""
        try:
            return self.control_handler.answer(order, caller)
        except errors.ControlError:
            raise
        except Exception as error:
            self.guard.failed("order", error)
            msg = f"this is a fault of drom ({type(error).__name__}): report it, with event=fault of the agent's log."
            raise errors.ControlError(msg) from error
        finally:
            if self._is_torn():
                self._recover()

    def _status(self) -> str:
        jobs = counted(len(self.node.jobs), "job")
        does = "frozen:" if self.node.grants.frozen else "managing" if self.binds else "showing"
        return f"{does} {counted(self.node.plan.usable.bit_count(), 'CPU')}, {jobs}"

    def _look_at_switch(self) -> None:
        """Freeze the node while the kill switch exists, and thaw it otherwise."""
        now, file = time.monotonic(), self.settings.switch
        since = self.node.grants.frozen_since
        if runtime_dir.freezes(file):
            self.node.freeze(now, str(file))  # each time: a reload may have named another
            if since is None:
                self.log("frozen", file=file)
        elif since is not None:
            self.log("thawed", file=file, seconds=round(now - since, 3))
            self.actuator.execute(self.node.thaw(now))
            self.confine_all()
            self.acknowledgements.read_all()

    def _act_on_deadlines(self, now: float) -> None:
        self.actuator.execute(self.node.tick(now))

    def _look_at_pace(self, now: float) -> None:
        """Pass measurements of how fast jobs progress to the executor, which reports them to the scheduler."""
        if samples := self.rate_monitor.look(now):
            self.executor.rates_measured(samples)

    def _timeout(self) -> float:
        if self._more:
            return 0.0
        now = time.monotonic()
        heartbeat = now + min(HEARTBEAT, self.manager.period or HEARTBEAT)
        due = [self.survive(part, work.next_due, "due") for part, work in self._periodic]
        return max(0.0, min([heartbeat, *(at for at in due if at is not None)]) - now)

    def watch(self, fd: int, handler: Callable[[], None]) -> None:
        """Call `handler` from the loop whenever `fd` is readable."""
        self._selector.register(fd, selectors.EVENT_READ, handler)

    def unwatch(self, fd: int) -> None:
        """Stop watching `fd`."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)

    def _stop(self) -> None:
        self._running = False

    def _reload(self) -> None:
        with contextlib.suppress(errors.ControlError):  # the log has it
            self.reload()

    def _hand_over(self) -> None:
        """Stop, and leave everything to the next agent."""
        self._running, self._hands_over = False, True

    def _timed(self, place: PlacementKernel) -> PlacementKernel:
        def timed(requests: Any) -> Any:  # noqa: ANN401 - as PlacementKernel
            start = time.perf_counter()
            try:
                return place(requests)
            finally:
                self.report.counters.placing.observe(time.perf_counter() - start)

        return timed

    # --- starts and ends ------------------------------------------------------------------------------------------

    def _process_ended(self, task: Task, who: Identity) -> None:
        seen_to = who == first_process(task) and self.executor.reaps(task)
        if seen_to or not (self.watcher.is_watched(task) or self.watcher.watch_survivor(task)):
            self.end(task, "exited")
        elif task.responder == (who.pid, who.start_time):
            self.responders.clear(task)

    def confined(
        self, arrival: Arrival, affinity: int = 0, *, is_named: bool = True, is_confined: bool = False
    ) -> Arrival:
        """Return an arrival with what confines its process, to none of emulated CPUs.

        `affinity` is that of the process before any agent bound it, 0 if it is the one that the arrival restores. A job
        without a name has the name of its job of the batch system. `is_confined`: the affinity is a cpuset where
        there is no cpuset. Each rank may have one of its own then, so that each is a job.
        """
        affinity = affinity or arrival.restore
        found = self._confinement.read(arrival.pid, affinity)
        if self.settings.topology.emulated:
            found = Confinement(job=found.job)
        elif is_confined and not found.cpus:
            found = replace(found, cpus=affinity)
            arrival = replace(arrival, session=0, rank=0, size=1)
        name = arrival.job if is_named else found.job or arrival.job
        return replace(arrival, job=name, cpuset=found.cpus, batch_job=found.job, batch_cpuset=found.job_cpus)

    def end(self, task: Task, reason: str) -> None:
        """Remove a task that is over."""
        self.watcher.forget(task)
        self.report.ended(task, reason)
        self.actuator.execute(self.node.ended(task.slot, time.monotonic()))

    def confine_all(self) -> None:
        """Confine threads that an agent that died or was frozen left on CPUs their task does not hold.

        One that such an agent was moving gets its mask back.
        """
        if not self.binds or self.node.grants.frozen:
            return
        self.actuator.spreading.finish()
        for task in self.node.tasks.values():
            if mask := self.node.grants.allowed(task):
                affinity.confine(self.watcher.processes_of(task), mask)

    def restore_affinity(self, tasks: Iterable[Task]) -> None:
        """Restore the affinity that tasks arrived with, for their threads that still have the agent's binding.

        Called before a task is released, so that an agent that dies in between leaves a task that the next agent binds
        again, and after it, because a program may have applied a grant in between. A program that applies a grant later
        sees that it was released.
        """
        for task in tasks:
            if not (self.binds and task.started):
                continue
            # A thread from a task cpuset can only have the agent's mask, or the one that the kernel set when it left.
            # Which of the agent's masks a task has that rests is not known.
            confined = self.settings.cpusets is not None and self.settings.cpusets.remove(task)
            if task.arrival.restore:
                ours = -1 if confined or not task.held else task.held
                affinity.restore(self.watcher.processes_of(task), ours, task.arrival.restore)

    def _shut_down(self) -> None:
        """Stop: restore the affinity that the agent has set, retire the registry, remove the sockets.

        A part that fails is logged, whatever has been logged before, and the other parts are done.
        """
        with self.lock:
            guard, path = Guard(self.log, ()), self.settings.runtime_dir
            tasks = list(self.node.tasks.values())
            for task in tasks:
                guard.run("binding", partial(self.restore_affinity, [task]))
            guard.run("registry", self.registry.retire)
            for task in tasks:
                guard.run("binding", partial(self.restore_affinity, [task]))
            guard.run("mail", lambda: self.mailboxes.keep_only(set()))
            self._close_registrations(guard)
            guard.run("order", self.control.close)
            guard.run("sockets", lambda: runtime_dir.remove_sockets(path))
            guard.run("mailboxes", self.mailboxes.close)
            guard.run("following", self.watcher.close)
            with contextlib.suppress(OSError):  # the folder has files that are not the agent's
                (path / "mail").rmdir()
            guard.run("selector", self._selector.close)
            self.log("stopped")
            self._unlock(guard)

    # --- state ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the present state of the node; the caller holds `lock` or is the loop."""
        return snapshot(self)
