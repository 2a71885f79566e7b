# SPDX-License-Identifier: Apache-2.0
"""The scheduler as a process: one loop that reads messages of users and agents, calls the policy, stores, and sends.

Users get their answers from `user_orders`; `stored_cluster` stores every change before anything that follows from it.
"""

from __future__ import annotations

import math
import select
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from drom.agent.control import server
from drom.agent.errors import ControlError, NotYetError
from drom.agent.execution import protocol as say
from drom.agent.observe.guarded import Guard
from drom.agent.system import connections, heap
from drom.agent.system.unix_signals import SignalPipe
from drom.agent.text import counted
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster.driver import prepare
from drom.scheduler.live.cluster.homes import SPAN
from drom.scheduler.live.cluster.resource_controller import PATIENCE, ResourceController
from drom.scheduler.live.cluster.spec import (
    LONGEST_REQUEST,
)
from drom.scheduler.live.server.agent_server import AgentServer
from drom.scheduler.live.server.homes import Homes
from drom.scheduler.live.server.lender import Lender
from drom.scheduler.live.server.metrics import Counts
from drom.scheduler.live.server.planner_process import PlannerProcess
from drom.scheduler.live.server.starting import Standby, Starting
from drom.scheduler.live.server.state_folder import HOMES, SOCKETS
from drom.scheduler.live.server.store import Store, UnreadableError, UnwritableError
from drom.scheduler.live.server.stored_cluster import StoredCluster
from drom.scheduler.live.server.user_orders import WITHOUT_TRACE, UserOrders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from drom.agent.control.gate import RemoteEndpoint
    from drom.agent.model.caller import Caller
    from drom.agent.observe.log import Log
    from drom.agent.system.sd_notify import ServiceManager
    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.live.cluster.cluster import Cluster
    from drom.scheduler.live.cluster.home_rules import HomeRule
    from drom.scheduler.live.cluster.settings import Settings
    from drom.scheduler.live.server.agent_server import AgentMessage, Peer
    from drom.scheduler.live.server.directory import Directory
    from drom.scheduler.live.server.shared_rows import SharedRows
    from drom.scheduler.live.server.starting import Waiting

T = TypeVar("T")

MOST_HELD = 4 << 20
"""Most bytes of requests and answers kept for one user: lists of thousands of jobs are long."""
TURN_SECONDS = 0.05
"""Seconds of a turn spent on answers; writing the queue and calling the policy, which follow, may take longer."""
MOST_PUT_OFF = 10_000
"""Most connections of agents that are remembered while this scheduler waits."""
LONGEST_SLEEP = 1.0
STATUS = 0.5
"""Seconds between updates of the status line for the service manager."""
PARTS = ("agents", "homes", "order", "policy", "queue", "recovery", "service_manager", "tidying")
"""The parts of the loop whose failures are counted."""


class Shared(NamedTuple):
    """What all schedulers of a process use; the `lock` is held while their clusters change."""

    clients: server.Server
    desk: AgentServer
    guard: Guard
    counts: Counts
    lock: threading.Lock


class Server:
    """A scheduler in its `folder`, with its queue there or in `rows`.

    With a `directory` it also leads home partitions that have no scheduler of their own, for each of which there is
    another object with the same `shared` and `homes`. Raises SchedulerError or ControlError if it cannot start.
    """

    def __init__(
        self,
        folder: Path,
        policy: Policy,
        settings: Settings,
        log: Log,
        *,
        durable: bool = False,
        rows: SharedRows | None = None,
        directory: Directory | None = None,
        shared: Shared | None = None,
        homes: Homes[Server] | None = None,
        gates: tuple[RemoteEndpoint | None, RemoteEndpoint | None] = (None, None),
        begins: bool = True,
    ) -> None:
        self._folder, self._log, self._heartbeat = folder, log, settings.heartbeat
        heap.return_large_blocks()
        self.policy = policy
        self._rows = rows
        self._store = Store(folder, durable=durable, medium=rows)
        self._owns_sockets = shared is None
        self._shared = shared or _open(folder, log, gates)
        self._clients, self._desk, self.guard, self.counts, self.lock = self._shared
        self.stored = StoredCluster(self._store, policy, settings, log, counts=self.counts, send=self._send)
        self._torn = False
        """Whether a failure has left the state in memory inconsistent."""
        self._stores_first = False
        """Whether changes are stored before the policy is called, as it has failed: what is not stored then is lost."""
        self._status_again = 0.0
        self._told_status = ""
        self._planner = PlannerProcess(policy.options, 0.8 * PATIENCE, log) if policy.built_in == "cp" else None
        self._running = True
        self._more = False
        """Whether messages or orders that arrived before the last turn may still be unread."""
        self.waiting: Waiting | None = None
        """What this scheduler waits for; no order is accepted before its end."""
        self._put_off: set[Peer] = set()
        """The connections of agents that were told to wait."""
        self._begun = False
        self._homes = Homes(self, self._desk, directory, log, self._home_rules) if directory else None
        self._all_homes = all_homes = homes or self._homes
        self._lender = (
            Lender(self.stored, rows, all_homes.free, all_homes.nodes, all_homes.call) if rows and all_homes else None
        )
        self._orders = self._user_orders()
        if begins:
            prepare(policy)
            self._begin()

    def _home_rules(self) -> Sequence[HomeRule]:
        return self.stored.settings.home_rules

    def _user_orders(self) -> UserOrders:
        return UserOrders(self.stored, self._all_homes.forget if self._all_homes else lambda _: None)

    def _begin(self) -> None:
        """Restore the state that an earlier scheduler stored, once the policy can be called and no other one leads."""
        with self.lock:
            self.stored.take_over()
        self._begun, self._torn = True, False

    @property
    def cluster(self) -> Cluster:
        """The cluster, which is another object after a failure that has left it inconsistent."""
        return self.stored.cluster

    def configure(self, settings: Settings) -> bool:
        """Go on with other settings, as the next scheduler would; return whether the queue could be written before.

        Agents introduce themselves again.
        """
        about = self.stored.settings
        settings = replace(settings, home=about.home, first_job=about.first_job)
        if not all(one.configure(settings) for one in self._beside):
            return False
        with self.lock:
            if self._begun and not self.stored.flush():
                return False
            self.stored.settings = settings
            self._orders = self._user_orders()
            if self._begun:
                self._torn = not self.guard.run("recovery", self.stored.restore)
            return True

    def beside(self, home: str, rows: SharedRows, first_job: int) -> Server:
        """Return a scheduler of another home partition in this process. Raises SchedulerError."""
        settings = replace(self.stored.settings, home=home, first_job=first_job)
        return Server(
            self._folder / HOMES / home,
            self.policy,
            settings,
            self._log,
            rows=rows,
            shared=self._shared,
            homes=self._all_homes,
            begins=False,
        )

    def run(
        self, ready: Callable[[], None], manager: ServiceManager, reload: Callable[[], None] = lambda: None
    ) -> None:
        """Serve until SIGTERM or SIGINT. Jobs and agents continue, and the next scheduler takes them over.

        On SIGHUP `reload` is called.

        While the policy is being compiled, or another scheduler leads, users and agents get an answer that says so;
        after it `ready` is called and the `manager` notified. Raises `LoopError` when a part of the loop has failed too
        often in a row.
        """
        signals = SignalPipe(
            {
                signal.SIGTERM: self._stop,
                signal.SIGINT: self._stop,
                signal.SIGHUP: partial(self.guard.run, "order", reload),
            }
        )
        try:
            if not self._begun:
                self._compile(signals, manager)
            with heap.Garbage() as garbage:
                while self._running:
                    if self.advance():
                        ready()
                        manager.ready()
                    if self._homes:
                        self.guard.run("homes", self._homes.advance)
                    self._take_turn(signals, manager)
                    garbage.look(idle=not self._more)
            manager.stopping()
        finally:
            self.close()
            signals.close()

    def _compile(self, signals: SignalPipe, manager: ServiceManager) -> None:
        """Answer that the scheduler is not there yet until its policy can be called, or the process is to end.

        Raises SchedulerError if the policy cannot be compiled.
        """
        starting = self.waiting = Starting(self.policy)
        self._report_health(manager)
        while self._running and not starting.is_over:
            self._take_turn(signals, manager)
        if self._running:
            starting.finish()
            self.waiting = None
            if self._rows:
                manager.ready()

    def advance(self) -> bool:
        """Begin to lead, or follow the scheduler that does; return whether this one has begun to lead."""
        if self._begun and self._rows and not self.leads:
            self._begun = self._torn = False
            self._rows.stand_by()
        if self._begun:
            return False
        if self._rows:
            self.waiting = self.waiting or Standby(self._rows, self._log)
            if not self.waiting.is_over:
                return False
        self._begin()
        self.waiting = None
        put_off, self._put_off = self._put_off, set()
        for peer in put_off:
            self._desk.answer(peer, say.Who())
        return True

    def _take_turn(self, signals: SignalPipe, manager: ServiceManager) -> None:
        """Wait until there is something to do, and do it."""
        self.counts.starting = self.waiting is not None
        fds = [fd for one in (self, *self._beside) for fd in one.fds]
        ready = _readable((signals.fd, *self._clients.fds, *self._desk.fds, *fds), self._timeout())
        begin = time.perf_counter(), time.thread_time()
        if signals.fd in ready:
            signals.dispatch()
        with self.lock:
            self.turn()
        self._report_health(manager)
        self.guard.settle()
        self.counts.store_messages = self.messages + (self._homes.messages if self._homes else 0)
        self.counts.take_turn(time.perf_counter() - begin[0], time.thread_time() - begin[1])

    def _report_health(self, manager: ServiceManager) -> None:
        self.guard.run("service_manager", lambda: manager.heartbeat(at := time.monotonic(), self._status(at)))

    @property
    def leads(self) -> bool:
        """Whether this scheduler leads, as far as is known."""
        return self._begun and self._store.leads

    @property
    def messages(self) -> int:
        """The number of messages to etcd for this queue."""
        return self._rows.etcd.messages if self._rows else 0

    @property
    def clusters(self) -> list[Cluster]:
        """The cluster, or its parts in all home partitions that are led here."""
        return [one.cluster for one in (self, *self._beside)]

    @property
    def _beside(self) -> list[Server]:
        """The schedulers of home partitions that were adopted."""
        return [*self._homes.adopted.values()] if self._homes else []

    @property
    def fds(self) -> list[int]:
        """Descriptors, besides those of the sockets, that are readable when there is something to do."""
        return [one.fd for one in (self._planner, self.waiting, self._homes) if one]

    def _turn_away(self, said: AgentMessage) -> None:
        """Answer an agent that it has to wait; it is asked to introduce itself once that is over."""
        assert self.waiting  # noqa: S101 - it is the caller
        if len(self._put_off) < MOST_PUT_OFF:  # others introduce themselves within seconds
            self._put_off.add(said.peer)
        self._desk.answer(said.peer, say.No(str(self.waiting.refusal)))

    def _stop(self) -> None:
        self._running = False

    def close(self) -> None:
        """Close the sockets and the queue, which the next scheduler may open.

        A part that fails is logged, and the other parts are closed.
        """
        guard = Guard(self._log, ())
        if self._planner:
            guard.run("planner", self._planner.close)
        if self._homes:
            guard.run("homes", self._homes.close)
        if self._owns_sockets:
            guard.run("agents", self._desk.close)
            guard.run("order", self._clients.close)
            for name in SOCKETS:
                guard.run("sockets", partial(connections.remove, self._folder / name))
        guard.run("queue", self._store.close)

    def turn(self) -> None:
        """Read messages, call the policy, store changes, send. A part that fails is logged, counted and run again."""
        receive, answer = (self._homes or self).receive, (self._homes or self).answer
        heard = self._survive("agents", lambda: self._desk.serve(receive))
        asked = self._survive("order", lambda: self._clients.serve(answer))
        self._more = bool(heard or asked)
        for one in (self, *self._beside):
            one.schedule()

    def schedule(self) -> None:
        """Call the policy, store changes, send; nothing while another scheduler leads."""
        if self.waiting:
            return
        lender = self._lender
        if lender:
            self._survive("homes", self.cluster.loans.release)
        may_place = not (self.stored.stuck or self._stores_first) or self._survive("queue", self.stored.flush)
        if lender:
            may_place = may_place and self._survive("homes", lender.follow)
        if may_place:
            self._stores_first = not self._survive("policy", self._ask_policy)
        if self._survive("queue", self.stored.flush) and may_place and lender:
            self._survive("homes", lender.act)
        self._survive("tidying", self.stored.tidy)

    def _ask_policy(self) -> bool:
        """Place jobs, and return True."""
        begin = time.perf_counter()
        controller = self.cluster.controller
        if self._planner and isinstance(controller, ResourceController):
            for asked, plan in self._planner.take():
                self.counts.take_plan(plan, in_time=controller.answered(asked, plan))
        self.cluster.turn(self.stored.clock())
        if self._planner and isinstance(controller, ResourceController) and (question := controller.take_question()):
            self._planner.ask(question)
        self.counts.passes.observe(time.perf_counter() - begin)
        return True

    def _survive(self, part: str, step: Callable[[], T]) -> T | None:
        """Return a step's result, None if it fails; an inconsistent state is then restored from the queue."""
        if self._torn and not self._recover():
            return None
        before = self.guard.faults[part]
        value = self.guard.run(part, step)
        if self.guard.faults[part] > before and part != "order":
            self._torn = True
        return value

    def _recover(self) -> bool:
        """Restore the state from the queue, as the next scheduler would; return whether that was possible.

        Users have received answers about stored changes only. Agents introduce themselves again and repeat reports
        that were not stored.
        """
        if self.guard.run("recovery", self.stored.restore):
            self._torn = False
            self._log("recovered", jobs=len(self.cluster.jobs))
        return not self._torn

    def _status(self, now: float) -> str:
        """Return a status line for the service manager, at most `STATUS` seconds old."""
        if self.waiting:
            return self.waiting.status
        if now < self._status_again:
            return self._told_status
        self._status_again = now + STATUS
        controller = self.cluster.controller
        waiting, running = controller.counts if controller else (0, 0)
        nodes = self.cluster.nodes.values()
        up = f"{sum(node.state == 'up' for node in nodes)} of {counted(len(nodes), 'node')} up"
        self._told_status = f"{counted(running, 'job')} running, {waiting} waiting; {up}"
        return self._told_status

    def _timeout(self) -> float:
        """Return for how many seconds nothing is to be done unless something arrives."""
        if self._more or (not self._torn and self._desk.has_more):  # what came while this turn sent messages
            return 0.0
        return min(one.next_turn() for one in (self, *self._beside))

    def next_turn(self) -> float:
        """Return in how many seconds `schedule` must be called again."""
        if self.waiting:
            return LONGEST_SLEEP
        if self.stored.stuck:
            return max(0.0, self.stored.stuck - time.monotonic())
        look = self.guard.run("policy", self.cluster.next_look, "look")
        lends = self._lender.next_look() if self._lender else LONGEST_SLEEP
        return min(LONGEST_SLEEP, lends, LONGEST_SLEEP if look is None else max(0.0, look - self.stored.clock()))

    # --- agents ---------------------------------------------------------------------------------------------------

    def _send(self, name: str, message: say.ToAgent) -> None:
        """Send a message to a node's agent, a welcome with this scheduler's epoch."""
        if self._rows and isinstance(message, say.Welcome):
            message = replace(message, epoch=self._lender.epoch_of(name) if self._lender else self._rows.epoch)
        self._desk.send(name, message)

    def receive(self, said: AgentMessage) -> None:
        """Handle a message of an agent; turn it away while this scheduler waits."""
        if self.waiting:
            self._turn_away(said)
        else:
            self._receive(said)

    def _receive(self, said: AgentMessage) -> None:
        now, message = self.stored.clock(), said.message
        if isinstance(message, say.Hello):
            self._welcome(said.peer, message, said.why_not(message.node))
            return
        name = self._desk.name_of(said.peer)
        known = name is not None and self.cluster.members.alive(name, now)
        if name is None or not known:
            self._desk.answer(said.peer, say.Who())
        else:
            self.cluster.agents.on_message(name, message, now)

    def _welcome(self, peer: Peer, message: say.Hello, why_not: str) -> None:
        now = self.stored.clock()
        repeats = self._desk.name_of(peer) == message.node and self.cluster.members.alive(message.node, now)
        try:
            self._check_connection(peer, message, why_not)
            self.cluster.agents.hello(message, now)
        except SchedulerError as error:
            self._desk.reject(peer, message.node, str(error))
        else:
            self._desk.bind(message.node, peer)
            if not repeats:
                self._log("node_joined", node=message.node, host=message.host, cores=message.cores)

    def _check_connection(self, peer: Peer, message: say.Hello, why_not: str) -> None:
        """Raise SchedulerError if a connection may not represent the node that it names, as with a `why_not`."""
        name = message.node
        if why_not:
            raise SchedulerError(why_not)
        there, home = self.cluster.nodes.get(name), self.stored.settings.home
        if message.home and not home:
            raise SchedulerError("this cluster has no home partitions: start the agent without --home-partition.")
        if message.home != ((there and there.home) or home):
            raise SchedulerError(f"home partition {home} does not have node {name} now: its agent tries again.")
        if other := self._job_of_another_home(message, is_new=there is None):
            msg = f"node {name} has job {other} of another home partition: start its agent there until that has ended."
            raise SchedulerError(msg)
        if self._desk.name_of(peer) not in (None, name):
            raise SchedulerError("an agent acts for one node: start another agent for another node.")
        if self._desk.has_speaker(name, peer, 3 * self._heartbeat):
            msg = f"another agent for node {name} is connected: stop it, or give this one another name with --node."
            raise SchedulerError(msg)

    def _job_of_another_home(self, message: say.Hello, *, is_new: bool) -> int | None:
        """Return a job on a node that belongs to another home partition, which it would leave without a report.

        A node that is not new here came back from a home partition that has the reports of jobs that are over.
        """
        home, first = self.stored.settings.home, self.stored.settings.first_job
        jobs = (one for one in message.jobs if is_new or one.state == "running")
        return next((one.job for one in jobs if home and one.job // SPAN != first // SPAN), None)

    # --- users ----------------------------------------------------------------------------------------------------

    def answer(self, order: dict[str, Any], caller: Caller) -> Any:  # noqa: ANN401 - a JSON value
        """Answer an order of a user; refuse it while this scheduler waits. Raises ControlError with a sentence."""
        self.admit(order, caller)
        return self._answer(order, caller)

    def admit(self, order: dict[str, Any], caller: Caller) -> None:
        """Raise NotYetError while this scheduler waits, or if the order is for one that is `certain` to lead."""
        if self.waiting:
            self.waiting.refuse(order, caller)
        if order.get("certain") is True:
            try:
                self._store.check()
            except UnwritableError as error:
                raise NotYetError(f"another scheduler may lead by now: {error.why}.") from error

    def _answer(self, order: dict[str, Any], caller: Caller) -> Any:  # noqa: ANN401 - a JSON value
        try:
            return self._orders.carry_out(order, caller)
        except ControlError:
            raise
        except SchedulerError as error:
            if isinstance(error, UnreadableError):
                self.stored.warn(str(error))
            raise ControlError(str(error)) from error
        except Exception as error:
            self.guard.failed("order", error, order=order["order"])
            if order["order"] not in WITHOUT_TRACE:
                self._torn = True
                self._recover()
            what = f"this is a fault of drom ({type(error).__name__}), and nothing was changed"
            msg = f"{what}: report it, with the line event=fault of the scheduler's log."
            raise ControlError(msg) from error


def _open(folder: Path, log: Log, gates: tuple[RemoteEndpoint | None, RemoteEndpoint | None]) -> Shared:
    """Open the sockets in a folder, with gates for users and agents of other nodes. Raises ControlError."""
    clients = server.Server(folder, 0o666, gates[0], longest=LONGEST_REQUEST, most_held=MOST_HELD, turn=TURN_SECONDS)
    guard, counts = Guard(log, PARTS), Counts()
    counts.faults = guard.faults
    return Shared(clients, AgentServer(folder, log, gates[1]), guard, counts, threading.Lock())


def _readable(fds: Iterable[int], seconds: float) -> set[int]:
    """Return which of these descriptors can be read, once one can, or after so many seconds."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(math.ceil(1000 * seconds))}
