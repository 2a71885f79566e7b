# SPDX-License-Identifier: Apache-2.0
"""The scheduler as a process: one loop that reads messages of users and agents, stores changes, and sends.

All changes are committed before any answer or request is sent. While the queue cannot be written nothing new starts:
users' orders are refused, and agents' reports are not acknowledged, so that agents repeat them.
"""

from __future__ import annotations

import contextlib
import itertools
import selectors
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from drom.agent.control import server
from drom.agent.errors import ControlError
from drom.agent.execution import protocol as say
from drom.agent.observe.guarded import Guard
from drom.agent.system import connections, heap
from drom.agent.system.unix_signals import SignalPipe
from drom.agent.text import counted, duration
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster import admission, explain
from drom.scheduler.live.cluster.cluster import Cluster
from drom.scheduler.live.cluster.controller import prepare
from drom.scheduler.live.cluster.job_filter import job_filter_of
from drom.scheduler.live.cluster.jobs import FINAL, PENDING, Job, Node
from drom.scheduler.live.cluster.paging import PAGE, SCHEMA_VERSION, fill
from drom.scheduler.live.cluster.quotas import Orders
from drom.scheduler.live.cluster.spec import (
    LONGEST_NAME,
    LONGEST_REQUEST,
    MOST_AT_ONCE,
    MOST_JOBS,
    MOST_KINDS,
    from_json,
    name_of,
    visible,
)
from drom.scheduler.live.server.agent_server import AgentServer
from drom.scheduler.live.server.authorization import check_rights, is_operator, user_of
from drom.scheduler.live.server.clock import Clock
from drom.scheduler.live.server.metrics import Counts
from drom.scheduler.live.server.starting import STARTING, STARTING_STATUS, Starting
from drom.scheduler.live.server.state_folder import SOCKETS
from drom.scheduler.live.server.store import Store, UnreadableError, UnwritableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from drom.agent.control.gate import RemoteEndpoint
    from drom.agent.model.caller import Caller
    from drom.agent.observe.log import Log
    from drom.agent.system.sd_notify import ServiceManager
    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.live.cluster.jobs import User
    from drom.scheduler.live.cluster.settings import Settings
    from drom.scheduler.live.server.agent_server import AgentMessage, Peer

T = TypeVar("T")

UNWRITABLE = "the queue cannot be written now, so nothing was changed"
_AHEAD = (
    "the last thing in the queue happened {} from now by this machine's clock, and times continue from there: set "
    "the clock if it is wrong; otherwise let the jobs end and start with another queue (--state)."
)
RETRY = 1.0
"""Seconds until writing the queue is tried again after a failure."""
TURN_SECONDS = 0.05
"""Seconds of a turn spent on answers; writing the queue and calling the policy, which follow, may take longer."""
LONGEST_SLEEP = 1.0
STATUS = 0.5
"""Seconds between updates of the status line for the service manager."""
TIDY = 600.0
"""Seconds between searches for old jobs."""
PARTS = ("agents", "order", "policy", "queue", "recovery", "service_manager", "tidying")
"""The parts of the loop whose failures are counted."""
_WITHOUT_TRACE = frozenset({"submit", "queue", "job", "nodes", "history"})
"""Orders that leave nothing in memory when they fail; after a failure of any other the queue is read again."""
_CHANGING = frozenset({"submit", "cancel", "hold"})
"""Orders whose rate per user is limited, because they are written to the queue."""


class Server:
    """A scheduler in its `folder`. Raises SchedulerError or ControlError if it cannot start."""

    def __init__(
        self,
        folder: Path,
        policy: Policy,
        settings: Settings,
        log: Log,
        *,
        durable: bool = False,
        gates: tuple[RemoteEndpoint | None, RemoteEndpoint | None] = (None, None),
        begins: bool = True,
    ) -> None:
        self._folder, self._log, self._settings = folder, log, settings
        heap.return_large_blocks()
        self._store = Store(folder, durable=durable)
        self._clock = Clock(self._store.latest)
        if self._clock.ahead > settings.skew:
            log("clock_ahead", reason=_AHEAD.format(duration(self._clock.ahead)))
        self._warned = ""
        """The last warning that was logged."""
        self.policy = policy
        self.cluster = self._cluster(policy)
        self.guard = Guard(log, PARTS)
        self._torn = False
        """Whether a failure has left the state in memory inconsistent."""
        self._clients = server.Server(folder, 0o666, gates[0], longest=LONGEST_REQUEST, turn=TURN_SECONDS)
        self._desk = AgentServer(folder, log, gates[1])
        self._stuck = 0.0
        """When the queue may be written again (CLOCK_MONOTONIC); 0 while it can be."""
        self._unwritable = ""
        """The message to users in that case."""
        self._orders = Orders(settings.max_orders)
        self._tidy_again = self._forget_again = self._status_again = 0.0
        self._told_status = ""
        self._running = True
        self._more = False
        """Whether messages or orders that arrived before the last turn may still be unread."""
        self.lock = threading.Lock()
        """Held while the cluster changes."""
        self.counts = Counts()
        self.counts.faults = self.guard.faults
        self.starting: Starting | None = None
        """The compilation of the policy while it lasts; no order is accepted before its end."""
        self._begun = False
        if begins:
            prepare(policy)
            self._begin()

    def _begin(self) -> None:
        """Restore the state that an earlier scheduler stored, once the policy can be called."""
        with self.lock:
            self.cluster = self._restored()
        self._begun = True

    def run(self, ready: Callable[[], None], manager: ServiceManager) -> None:
        """Serve until SIGTERM or SIGINT. Jobs and agents continue, and the next scheduler takes them over.

        While the policy is being compiled, users and agents get an answer that says so; after it `ready` is called and
        the `manager` notified. Raises `LoopError` when a part of the loop has failed too often in a row.
        """
        signals = SignalPipe(dict.fromkeys((signal.SIGTERM, signal.SIGINT), self._stop))
        selector = selectors.DefaultSelector()
        for fd in (signals.fd, *self._clients.fds, *self._desk.fds):
            selector.register(fd, selectors.EVENT_READ)
        try:
            if not self._begun:
                self._start(selector, signals, manager)
            with heap.Garbage() as garbage:
                if self._running:
                    ready()
                    manager.ready()
                while self._running:
                    events = selector.select(self._timeout())
                    if any(key.fd == signals.fd for key, _ in events):
                        signals.dispatch()
                    with self.lock:
                        self.turn()
                    self.guard.run(
                        "service_manager", lambda: manager.heartbeat(at := time.monotonic(), self._status(at))
                    )
                    self.guard.settle()
                    garbage.look(idle=not self._more)
            manager.stopping()
        finally:
            selector.close()
            self.close()
            signals.close()

    def _start(self, selector: selectors.BaseSelector, signals: SignalPipe, manager: ServiceManager) -> None:
        """Answer that the scheduler is starting while its policy is compiled, then start scheduling.

        Raises SchedulerError if the policy cannot be compiled.
        """
        starting = self.starting = Starting(self.cluster.policy)
        self.counts.starting = True
        selector.register(starting.fd, selectors.EVENT_READ)
        while self._running:
            manager.heartbeat(time.monotonic(), STARTING_STATUS)
            if starting.is_over:
                break
            more = any([self._desk.serve(self._put_off), self._clients.serve(starting.refuse)])
            events = selector.select(0.0 if more else LONGEST_SLEEP)
            if any(key.fd == signals.fd for key, _ in events):
                signals.dispatch()
        selector.unregister(starting.fd)
        if not self._running:
            return
        starting.finish()
        self._begin()
        self.starting, self.counts.starting = None, False
        for peer in starting.peers:
            self._desk.answer(peer, say.Who())

    def _put_off(self, said: AgentMessage) -> None:
        """Answer an agent that the scheduler is starting; the agent is asked to introduce itself once that is over."""
        assert self.starting  # noqa: S101 - it is the caller
        self.starting.peers.add(said.peer)
        self._desk.answer(said.peer, say.No(STARTING))

    def _stop(self) -> None:
        self._running = False

    def close(self) -> None:
        """Close the sockets and the queue, which the next scheduler may open."""
        self._desk.close()
        self._clients.close()
        for name in SOCKETS:
            connections.remove(self._folder / name)
        self._store.close()

    def turn(self) -> None:
        """Read messages, call the policy, store changes, send. A part that fails is logged, counted and run again."""
        heard = self._survive("agents", lambda: self._desk.serve(self._receive))
        asked = self._survive("order", lambda: self._clients.serve(self._answer))
        self._more = bool(heard or asked)
        if self._survive("queue", self._flush):
            self._survive("policy", self._ask_policy)
            self._survive("queue", self._flush)
        self._survive("tidying", self._tidy)

    def _ask_policy(self) -> None:
        begin = time.perf_counter()
        self.cluster.turn(self._clock())
        self.counts.passes.observe(time.perf_counter() - begin)

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
        cluster = self.guard.run("recovery", self._restored)
        if cluster:
            self.cluster, self._torn = cluster, False
            self._log("recovered", jobs=len(cluster.jobs))
        return not self._torn

    def _cluster(self, policy: Policy) -> Cluster:
        """Return a cluster without jobs, with the stored usage of users if they have shares."""
        half_life = self._settings.half_life
        usage = self._store.usage(half_life) if half_life else None
        return Cluster(policy, self._settings, self._past, usage)

    def _restored(self) -> Cluster:
        """Return the cluster as it is stored in the queue."""
        cluster = self._cluster(self.policy)
        cluster.restore(self._store.nodes(), self._store.living(), self._store.next_number, self._clock())
        return cluster

    def _status(self, now: float) -> str:
        """Return a status line for the service manager, at most `STATUS` seconds old."""
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
        if self._more:
            return 0.0
        if self._stuck:
            return max(0.0, self._stuck - time.monotonic())
        return max(0.0, min(LONGEST_SLEEP, self.cluster.next_look() - self._clock()))

    def _flush(self, *, urgent: bool = False) -> bool:
        """Store all changes, then send the messages that follow from them; return whether that was possible.

        After a failure it is not tried again within `RETRY`, unless it is `urgent`.
        """
        outbox = self.cluster.outbox
        if self._stuck > time.monotonic() and not urgent:
            return False
        try:
            if outbox.has_changes:
                self._store.save(outbox, self.cluster.usage)
            elif self._stuck:
                self._store.try_writing()
        except UnwritableError as error:
            self._note_unwritable(error)
            return False
        if self._stuck:
            self._log("queue_unstuck")
        self._stuck, self.counts.stuck = 0.0, False
        self.counts.take(outbox.entries)
        for entry in outbox.entries:
            self._log(f"job_{entry.what}", job=entry.job, **entry.detail)
        for event, fields in outbox.warnings:
            self._log(event, **fields)
        messages = list(outbox.messages)
        outbox.clear()
        for name, message in messages:
            self._desk.send(name, message)
        return True

    def _note_unwritable(self, error: UnwritableError) -> None:
        """Record that the queue cannot be written now."""
        self._unwritable = f"{UNWRITABLE}: {error.why}."
        if not self._stuck:
            self._log("queue_stuck", reason=str(error))
        self._stuck, self.counts.stuck = time.monotonic() + RETRY, True

    def _tidy(self) -> None:
        """Drop jobs that are over from memory; delete jobs that were over long ago from the queue, some at a time."""
        now = time.monotonic()
        if now >= self._forget_again:
            self._forget_again = now + RETRY
            self.cluster.forget_final(self._settings.keep)
        if self._stuck or now < self._tidy_again:
            return
        try:
            gone = self._forget()
        except UnreadableError as error:
            self._warn(str(error))
            self._tidy_again = time.monotonic() + TIDY
            return
        except UnwritableError as error:
            self._note_unwritable(error)
            return
        self.cluster.forget(gone)
        self._tidy_again = time.monotonic() + (RETRY if gone else TIDY)

    def _forget(self) -> list[int]:
        """Delete some jobs that were over long ago, or else some of a user with too many; return them."""
        needed = self.cluster.needed()
        if gone := self._store.forget(self._clock() - self._settings.history, needed, MOST_AT_ONCE):
            return gone
        return self._store.forget_surplus(self._settings.keep_jobs, needed, MOST_AT_ONCE)

    def _past(self, number: int) -> str | None:
        """Return the final state of a job, None if it has none; PENDING if it cannot be read: its dependents wait."""
        try:
            return self._store.state(number)
        except UnreadableError as error:
            self._warn(str(error))
            return PENDING

    def _warn(self, text: str) -> None:
        """Log a warning, unless it is the same as the last one."""
        if text != self._warned:
            self._log("queue_damaged", reason=text)
        self._warned = text

    # --- agents ---------------------------------------------------------------------------------------------------

    def _receive(self, said: AgentMessage) -> None:
        now, message = self._clock(), said.message
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
        try:
            self._check_seat(peer, message, why_not)
            self.cluster.agents.hello(message, self._clock())
        except SchedulerError as error:
            self._desk.reject(peer, message.node, str(error))
        else:
            self._desk.bind(message.node, peer)
            self._log("node_joined", node=message.node, host=message.host, cores=message.cores)

    def _check_seat(self, peer: Peer, message: say.Hello, why_not: str) -> None:
        """Raise SchedulerError if a connection may not represent the node that it names, as with a `why_not`."""
        name = message.node
        if why_not:
            raise SchedulerError(why_not)
        if self._desk.name_of(peer) not in (None, name):
            raise SchedulerError("an agent acts for one node: start another agent for another node.")
        if self._desk.has_speaker(name, peer, 3 * self._settings.heartbeat):
            msg = f"another agent for node {name} is connected: stop it, or give this one another name with --node."
            raise SchedulerError(msg)

    # --- users ----------------------------------------------------------------------------------------------------

    def _answer(self, order: dict[str, Any], caller: Caller) -> Any:  # noqa: ANN401 - a JSON value
        """Answer an order of a user. Raises ControlError with a sentence."""
        orders: dict[str, Callable[[dict[str, Any], Caller], Any]] = {
            "submit": self._submit,
            "cancel": self._cancel,
            "hold": self._hold,
            "queue": self._queue,
            "job": self._job,
            "nodes": self._nodes,
            "history": self._history,
            "drain": self._drain,
        }
        name = order["order"]
        if name not in orders:
            raise ControlError(f"this scheduler has no order {str(name)[:40]!r}: use the drom of this version.")
        try:
            if name in _CHANGING and not is_operator(user := user_of(caller)):
                self._orders.take(user, time.monotonic())
            return orders[name](order, caller)
        except ControlError:
            raise
        except SchedulerError as error:
            if isinstance(error, UnreadableError):
                self._warn(str(error))
            raise ControlError(str(error)) from error
        except Exception as error:
            self.guard.failed("order", error, order=name)
            if name not in _WITHOUT_TRACE:
                self._torn = True
                self._recover()
            what = f"this is a fault of drom ({type(error).__name__}), and nothing was changed"
            msg = f"{what}: report it, with the line event=fault of the scheduler's log."
            raise ControlError(msg) from error

    def _submit(self, order: dict[str, Any], caller: Caller) -> dict[str, object]:
        specs, count = order.get("jobs"), _number(order, "count", 1)
        if not isinstance(specs, list) or not specs:
            raise ControlError("submit takes a list of jobs: use the drom of this version.")
        if len(specs) > MOST_KINDS:
            msg = f"{len(specs)} different jobs are too many for one request, which may have {MOST_KINDS}: use several."
            raise ControlError(msg)
        if len(specs) * count > MOST_AT_ONCE:
            msg = f"{len(specs) * count} jobs are too many for one request, which takes {MOST_AT_ONCE}: use several."
            raise ControlError(msg)
        user, parsed = user_of(caller), [from_json(values) for values in specs]
        check_rights(user, parsed)
        if not is_operator(user):
            self.cluster.holdings.admit(user, parsed, count, self._settings)
        newest = next(reversed(self.cluster.jobs), None)
        try:
            jobs = [self.cluster.submit_many(spec, user, self._clock(), count) for spec in parsed]
            self._must_flush()
        except Exception:
            self.cluster.discard(self._jobs_after(newest))
            raise
        numbers = [job.number for job in itertools.chain(*jobs)]
        warnings = admission.warnings(parsed, self.cluster.nodes.values())
        return {"schema_version": SCHEMA_VERSION, "jobs": numbers, "warnings": warnings}

    def _jobs_after(self, newest: int | None) -> list[Job]:
        """Return the jobs that were added after the job `newest`, in the order in which they were added."""
        came = itertools.takewhile(lambda job: job.number != newest, reversed(self.cluster.jobs.values()))
        return list(came)[::-1]

    def _must_flush(self, *, urgent: bool = False) -> None:
        if not self._flush(urgent=urgent):
            raise ControlError(self._unwritable)

    @contextlib.contextmanager
    def _written(self, user: User) -> Iterator[None]:
        """Run a block that changes stored state, and store the changes before its order is answered.

        For root and the scheduler's own user that works on a full disk, too. Raises ControlError if the queue cannot be
        written.
        """
        urgent = is_operator(user)
        with self._store.urgently() if urgent else contextlib.nullcontext():
            self._must_flush(urgent=urgent)
            try:
                self._store.try_writing()
            except UnwritableError as error:
                self._note_unwritable(error)
                raise ControlError(self._unwritable) from error
            yield
            if not self._flush(urgent=urgent):
                raise ControlError("it was done, but cannot be stored now: it is lost if the scheduler ends before.")

    def _cancel(self, order: dict[str, Any], caller: Caller) -> dict[str, object]:
        job, user = self._own_job(order, caller)
        with self._written(user):
            self.cluster.cancel(job.number, self._clock(), f"cancelled by {user.name}")
        return self._told(job)

    def _hold(self, order: dict[str, Any], caller: Caller) -> dict[str, object]:
        job, user = self._own_job(order, caller)
        with self._written(user):
            self.cluster.hold(job.number, self._clock(), user.name, held=order.get("held") is not False)
        return self._told(job)

    def _drain(self, order: dict[str, Any], caller: Caller) -> dict[str, object]:
        if not is_operator(user := user_of(caller)):
            raise ControlError("only root and the scheduler's own user may drain nodes.")
        reason = order.get("reason")
        if not isinstance(reason, str) or not isinstance(order.get("node"), str):
            raise ControlError("drain takes a node and a reason: use the drom of this version.")
        if len(reason) > LONGEST_NAME:
            msg = f"the reason has {len(reason)} characters, and may have {LONGEST_NAME}: give a shorter --reason."
            raise ControlError(msg)
        with self._written(user):
            if order.get("forget") is True:
                self.cluster.members.forget(order["node"])
            else:
                self.cluster.members.drain(order["node"], reason)
        node = self.cluster.nodes.get(order["node"])
        rows = [self._node(node)] if node else []
        return {"schema_version": SCHEMA_VERSION, "time": self._clock(), "nodes": rows}

    def _own_job(self, order: dict[str, Any], caller: Caller) -> tuple[Job, User]:
        """Return the job and the user of an order. Raises ControlError if the user may not change the job."""
        number = _number(order, "job")
        job = self._find(number)
        user = user_of(caller)
        if user.uid != job.user.uid and not is_operator(user):
            raise ControlError(f"job {number} belongs to {job.user.name}: only they and root may change it.")
        return job, user

    def _find(self, number: int) -> Job:
        job = self.cluster.jobs.get(number) or self._store.job(number)
        if job is None:
            raise ControlError(f"there is no job {number}: see drom queue --all.")
        return job

    def _queue(self, order: dict[str, Any], _: Caller) -> dict[str, object]:
        about = {"schema_version": SCHEMA_VERSION, "time": self._clock()}
        if order.get("all"):
            rows, before = self._page(order, lambda job: {"jobs": self._overview(job)})
            return about | {"jobs": [row["jobs"] for row in rows], "before": before}
        choice = job_filter_of(order)
        after = _number(order, "after", 0, least=0)
        living = [job for job in self.cluster.jobs.values() if job.number > after and job.state not in FINAL]
        if any(choice):
            living = list(filter(choice.has, living))
        soonest = self.cluster.controller.soonest() if self.cluster.controller else None
        rows = fill((self._overview(job, soonest) for job in living), min(PAGE, _number(order, "limit", PAGE)))
        last = living[len(rows) - 1].number if len(rows) < len(living) else None
        return about | {"jobs": rows, "after": last, "left": len(living) - len(rows)}

    def _page(
        self, order: dict[str, Any], row_of: Callable[[Job], dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Return a row for each of the newest jobs asked for, and the job before which there are more, if any."""
        self._flush()
        wanted, before = _number(order, "last", 100), _number(order, "before", MOST_JOBS - 1)
        most, numbers = min(wanted, PAGE), []

        def row(job: Job) -> dict[str, Any]:
            numbers.append(job.number)
            return row_of(job)

        rows = fill(map(row, self._store.newest(most, before=before)), most)[::-1]
        if not rows or len(rows) == wanted:
            return rows, None
        first = numbers[len(rows) - 1]
        return rows, first if self._store.has_before(first) else None

    def _job(self, order: dict[str, Any], caller: Caller) -> dict[str, object]:
        number, user = _number(order, "job"), user_of(caller)
        self._flush()
        job, now = self._find(number), self._clock()
        history = [entry._asdict() for entry in self._store.history(number, number)]
        said = explain.explain(job, self.cluster, now)
        spec = visible(job.spec, whole=user.uid == job.user.uid or is_operator(user))
        rates = self.cluster.executions.known_rates(number)
        return self._told(job) | {"spec": spec, "history": history, "explanation": said, "rates": rates}

    def _history(self, order: dict[str, Any], _: Caller) -> dict[str, object]:
        """Return the history of the last jobs."""
        rows, before = self._page(
            order,
            lambda job: {
                "jobs": self._overview(job),
                "entries": [entry._asdict() for entry in self._store.history(job.number, job.number)],
            },
        )
        return {
            "schema_version": SCHEMA_VERSION,
            "time": self._clock(),
            "name": self._settings.name,
            "policy": self.cluster.policy.name,
            "parameters": self.cluster.policy.parameters(),
            "nodes": list(self.cluster.nodes),
            "cores": self.cluster.dispatch.cores,
            "jobs": [row["jobs"] for row in rows],
            "entries": [entry for row in rows for entry in row["entries"]],
            "before": before,
        }

    def _told(self, job: Job) -> dict[str, object]:
        return {"schema_version": SCHEMA_VERSION, "time": self._clock(), **self._overview(job)}

    def _overview(self, job: Job, soonest: Callable[[int], int] | None = None) -> dict[str, Any]:
        now = self._clock()
        return {
            "job": job.number,
            "name": name_of(job.spec),
            "user": job.user.name,
            "state": job.state,
            "reason": explain.why(job, self.cluster),
            "nodes": job.spec.nodes,
            "shares": job.shares,
            "submitted": job.submitted,
            "started": job.started,
            "ended": job.ended,
            "expected_start": explain.expected_start(job, self.cluster, now, soonest),
            "limit": job.limit,
            "requested": self._settings.limit(job.spec.time),
            "class": job.spec.job_class,
            "attempt": job.attempt,
            "status": job.status,
            "cpu_seconds": job.cpu_seconds,
            "max_rss": job.max_rss,
        }

    def _nodes(self, order: dict[str, Any], _: Caller) -> dict[str, object]:
        """Return a page of nodes in the order of their indices, which begins with the index `after`."""
        after = _number(order, "after", 0, least=0)
        rest = sorted((node for node in self.cluster.nodes.values() if node.index >= after), key=_index)
        rows = fill(map(self._node, rest))
        more = rest[len(rows) - 1].index + 1 if len(rows) < len(rest) else None
        return {"schema_version": SCHEMA_VERSION, "time": self._clock(), "nodes": rows, "after": more}

    def _node(self, node: Node) -> dict[str, Any]:
        jobs = [part.job for part in self.cluster.placements.on(node.index)]
        return node.to_json() | {"jobs": {job.number: job.shares[node.name] for job in jobs}}


def _index(node: Node) -> int:
    return node.index


def _number(order: dict[str, Any], field: str, default: int = 0, *, least: int = 1) -> int:
    """Return a whole number in an order, of at least `least`. Raises ControlError for any other value."""
    value = order.get(field, default)
    if type(value) is not int or not least <= value < MOST_JOBS:
        if field == "job":
            raise ControlError("job must be a positive whole number: use the number shown by drom queue.")
        msg = f"{field} is a whole number from {least} to {MOST_JOBS - 1}: send one."
        raise ControlError(msg)
    return value
