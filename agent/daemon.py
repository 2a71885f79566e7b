# SPDX-License-Identifier: Apache-2.0
"""The agent's only loop: it reads the world, asks `Node` what to do, and does it."""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent import affinity, control, processes, registry, runtime, topology
from agent.acting import Acting
from agent.admission import Admission
from agent.claims import Claims
from agent.cores import Cores
from agent.exclusions import Exclusions
from agent.following import Following, first_process
from agent.layouts import ANY, Layout
from agent.load import Avoidance, Watch
from agent.mailboxes import Mailboxes
from agent.node import RULES, Node
from agent.obeying import Obeying
from agent.post import Post, wish_in
from agent.processes import Identity
from agent.report import Report
from agent.rereading import Rereading
from agent.snapshot import Snapshot, snapshot
from dromlib.cpulist import format_cpulist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from agent.jobs import Task
    from agent.log import Log
    from agent.placement import Place
    from agent.rules import Rules
    from agent.topology import Topology

HEARTBEAT = 1.0
"""Seconds between two heartbeats in the registry's header."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What an agent is started with. Durations are seconds; the `unit` handed out is a "core" or a "thread".

    `claims` is the file of `agent.claims` (None: nothing is claimed); `memory` is what jobs may declare
    together, in bytes (0: not counted). `reread` returns the machine as it is by then (None: it never changes).
    """

    runtime_dir: Path
    topology: topology.Topology
    grace: float = 1.0
    rules: Rules = RULES
    memory: int = 0
    capacity: int = 1024
    observe: bool = False
    unit: str = "core"
    layout: Layout = ANY
    freeze_file: Path | None = None
    exclude: Exclusions = field(default_factory=Exclusions)
    claims: Path | None = None
    avoidance: Avoidance = field(default_factory=lambda: Avoidance(0.0, 0.0))
    reread: Callable[[], Topology] | None = None

    @property
    def switch(self) -> Path:
        """The file that freezes the node while it exists."""
        return self.freeze_file or self.runtime_dir / "freeze"


class Daemon:
    """A node agent in its runtime directory. `run` returns when it has been told to stop."""

    def __init__(self, settings: Settings, place: Place, log: Log) -> None:
        self.settings = settings
        self.log = log
        self.lock = threading.Lock()
        self._lock_fd = runtime.prepare(settings.runtime_dir)
        self._selector = selectors.DefaultSelector()
        self._running = True
        machine = settings.topology
        self.binds = not (machine.emulated or settings.observe)
        self.rows = topology.usable_cores(machine, settings.unit)
        self.node = Node(
            Cores.of(self.rows, topology.usable_cores(machine) if settings.unit == "thread" else ()),
            self._timed(place),
            rules=settings.rules,
            memory=settings.memory,
            grace=settings.grace,
            capacity=settings.capacity,
            layout=settings.layout,
        )
        self.watch_load = Watch(settings.avoidance, [mask for *_, mask in self.rows])
        self.rereading = Rereading(machine, settings.reread or (lambda: machine), settings.unit)
        self._busy = 0
        self._claims = Claims(settings.claims) if settings.claims and self.binds else None
        if self._claims:
            self._claims.take(self.node.cores.all)
        self._open()

    def _open(self) -> None:
        path, machine = self.settings.runtime_dir, self.settings.topology
        usable = self.node.cores.all
        me = os.getpid()
        owner = registry.Owner(
            me,
            processes.start_time(me) or 0,
            processes.boot_id(),
            topology.digest(machine),
            emulated=not self.binds,
            threads=self.settings.unit == "thread",
        )
        bits = max(64, machine.online.bit_length())
        self.registry, adopted = runtime.take_over(path, self.settings.capacity, bits, owner, usable)
        self.mailboxes = Mailboxes(path / "mail")
        # Everybody may send orders; what they may do is decided by who the kernel says they are.
        self.control = control.Server(path, 0o666)
        self.report = Report(self.log, self.control.signal)
        self.following = Following(self, self.node, self._process_ended)
        self.acting = Acting(self.node, self.registry, self.following, self.report, binds=self.binds)
        self.admission = Admission(
            path / "door",
            self,
            self.acting,
            self.mailboxes,
            self._end,
            observes=self.settings.observe,
            exclude=self.settings.exclude,
        )
        self.acting.audience = self.admission
        self.post = Post(self.mailboxes, self.acting, self.admission.unseat)
        self.obeying = Obeying(self)
        self._look_at_switch()
        if adopted:
            self._adopt()
        else:
            self.mailboxes.remove_all_but(set())

    def abandon(self) -> None:
        """Give up before `run`: close the sockets and leave programs and registry for the next agent."""
        self._close_sockets()
        self._unlock()

    def _unlock(self) -> None:
        if self._claims:
            self._claims.close()
        os.close(self._lock_fd)

    def _close_sockets(self) -> None:
        self.admission.close()
        self.control.close()
        for name in ("door", "control", "signals"):
            (self.settings.runtime_dir / name).unlink(missing_ok=True)

    # --- the loop -------------------------------------------------------------------------------------------------

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until SIGTERM, SIGINT or SIGHUP; call `ready` once programs may knock."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        old_wake = signal.set_wakeup_fd(wake_write)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        self.watch(wake_read, lambda: self._stop(wake_read))
        self.admission.open()
        self.watch(self.mailboxes.watch, self.post.read)
        self.watch(self.control.fd, lambda: None)
        # What is there by now stays: looking through it for garbage would hold programs up for a tenth of a second.
        gc.collect()
        gc.freeze()
        ready()
        try:
            while self._running:
                self._turn()
            self._leave()
        finally:
            signal.set_wakeup_fd(old_wake)
            os.close(wake_read)
            os.close(wake_write)

    def _turn(self) -> None:
        """Wait for something to happen and deal with all of it."""
        events = self._selector.select(self._timeout())
        with self.lock:
            self._look_at_switch()
            for key, _ in events:
                # An earlier event of this turn may have closed this one's descriptor.
                if self._selector.get_map().get(key.fd) is key:
                    key.data()
            self.acting.do(self.node.tick(time.monotonic()))
            self._look_at_machine()
            self._look_at_load()
            self.acting.spreading.look(time.monotonic())
            self.post.widening.look(time.monotonic())
            self.admission.tend()
            # ZeroMQ's descriptor signals edges: whatever happened, look once more.
            self.control.serve(self.obeying.answer)
            self.registry.beat()

    def _look_at_switch(self) -> None:
        """Freeze or thaw the node as the kill switch says."""
        now, file = time.monotonic(), self.settings.switch
        since = self.node.frozen_since
        if os.path.lexists(file) == self.node.frozen:
            return
        if since is None:
            self.node.freeze(now, str(file))
            self.log("frozen", file=file)
            return
        self.log("thawed", file=file, seconds=round(now - since, 3))
        self.acting.do(self.node.thaw(now))
        self._confine_all()
        self.post.read_all()

    def _look_at_load(self) -> None:
        """Leave cores alone that unmanaged programs keep busy."""
        if self.settings.topology.emulated:
            return
        now, tasks = time.monotonic(), [first_process(task) for task in self.node.tasks.values()]
        busy = self.watch_load.look(now, tasks, self.node.plan.lost)
        if busy is not None:
            self._busy = busy
            self.log("avoiding", cpus=format_cpulist(busy) or "none", reason="unmanaged programs keep them busy")
            self._use(now)

    def _look_at_machine(self) -> None:
        """Hand out only CPUs that are there and allowed, as hotplug, cpusets and quotas leave them."""
        now = time.monotonic()
        if self.settings.reread is None or not self.rereading.look(now):
            return
        found = self.rereading.available
        masks = {"managed": found.managed, "gone": found.gone, "more": found.more}
        self.log("cpus", **{name: format_cpulist(mask) or "none" for name, mask in masks.items()})
        self._use(now)
        self._confine_all()  # where a cpuset changes, older kernels forget what its threads were bound to

    def _use(self, now: float) -> None:
        found = self.rereading.available
        busy = self._busy & found.managed
        self.acting.do(self.node.use(found.managed & ~busy, now, found.gone, busy))

    def _timeout(self) -> float:
        now = time.monotonic()
        looks = (self.admission.next_look(now), self.acting.spreading.next_look(), self.post.widening.next_look())
        times = [now + HEARTBEAT, self.node.next_deadline(), *looks]
        return max(0.0, min(at for at in times if at is not None) - now)

    def watch(self, fd: int, handler: Callable[[], None]) -> None:
        """Call `handler` from the loop whenever `fd` is readable."""
        self._selector.register(fd, selectors.EVENT_READ, handler)

    def unwatch(self, fd: int) -> None:
        """Stop looking at `fd`."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)

    def _stop(self, fd: int) -> None:
        os.read(fd, 64)
        self._running = False

    def _timed(self, place: Place) -> Place:
        def timed(seats: Any) -> Any:  # noqa: ANN401 - as Place
            start = time.perf_counter()
            try:
                return place(seats)
            finally:
                self.report.counters.placing.observe(time.perf_counter() - start)

        return timed

    # --- life and death -------------------------------------------------------------------------------------------

    def _process_ended(self, task: Task, who: Identity) -> None:
        if not self.following.has_any(task) and not self.following.follow_a_survivor(task):
            self._end(task, "exited")
        elif task.responder == (who.pid, who.start_time):
            self.admission.unseat(task)

    def _end(self, task: Task, reason: str) -> None:
        self.following.forget(task)
        self.report.ended(task, reason)
        self.acting.do(self.node.ended(task.slot, time.monotonic()))

    def _adopt(self) -> None:
        """Take over the tasks of an agent that died: the living keep what they hold, the dead are reaped."""
        dead: list[Task] = []
        found = []
        owned: dict[str, int] = {}
        for record in sorted(self.registry.records(), key=lambda r: r.fields["arrival"]):
            task, job = registry.restore(record)
            self._hear_wish(task)
            found.append((task, job))
            owned[job.name] = owned.get(job.name, 0) | record.masks["owned"]
        now = time.monotonic()
        self.node.remember(self.registry.epochs(), self.registry.capacity)
        actions = self.node.adopt(found, owned, self.registry.header("arrivals"), now)
        for task, _ in found:
            if not self._still_lives(task):
                dead.append(task)
        self.mailboxes.remove_all_but({task.mailbox for task, _ in found})
        self.log("adopted", tasks=len(found) - len(dead), dead=len(dead))
        self.acting.do(actions)
        for task in dead:
            self._end(task, "exited")
        self._confine_all()
        self.post.read_all()

    def _hear_wish(self, task: Task) -> None:
        """Let the wish of a responder that lives count again at once: a new agent changes nothing."""
        mail = self.mailboxes.read(task.mailbox)
        if mail and task.responder and processes.start_time(task.responder[0]) == task.responder[1]:
            task.said = task.wish = wish_in(mail)

    def _confine_all(self) -> None:
        """Bring back threads that were left on CPUs their task does not hold, by an agent that died or was frozen."""
        for task in self.node.tasks.values():
            if self.binds and task.started and not self.node.frozen:
                affinity.confine(self.following.processes_of(task), task.held)

    def _still_lives(self, task: Task) -> bool:
        who = [first_process(task)]
        if task.responder and task.responder != (who[0].pid, who[0].start_time):
            who.append(Identity(*task.responder))
        alive = [one for one in who if processes.start_time(one.pid) == one.start_time]
        for one in alive:
            self.following.follow(task, one)
        if task.responder and Identity(*task.responder) not in alive:
            task.responder = None
        return bool(alive) or self.following.follow_a_survivor(task)

    def give_back(self, tasks: Iterable[Task]) -> None:
        """Give threads that are still where the agent put them the affinity that their tasks came with.

        Before a task is let go, so that an agent that dies in between leaves one that the next binds again, and after:
        a program that was about to apply a grant may have done so in between. One that does so later sees that it was
        let go.
        """
        for task in tasks:
            if self.binds and task.started and task.arrival.restore:
                affinity.restore(self.following.processes_of(task), task.held, task.arrival.restore)

    def _leave(self) -> None:
        """Stop: give back the affinity that is still ours, tell programs, remove the sockets."""
        with self.lock:
            tasks = list(self.node.tasks.values())
            self.give_back(tasks)
            self.registry.retire()
            self.give_back(tasks)
            self.mailboxes.remove_all_but(set())
            self._close_sockets()
            self.mailboxes.close()
            self.following.close()
            with contextlib.suppress(OSError):  # somebody has put files of his own there
                (self.settings.runtime_dir / "mail").rmdir()
            self._selector.close()
            self.log("stopped")
            self._unlock()

    # --- looking --------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return what the node looks like now; the caller holds `lock` or is the loop."""
        return snapshot(self)
