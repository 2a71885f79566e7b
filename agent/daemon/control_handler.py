# SPDX-License-Identifier: Apache-2.0
"""Handles requests at the control socket: answers queries, and checks, tries out or carries out orders."""

from __future__ import annotations

import json
import math
import os
import time
from typing import TYPE_CHECKING, Any

from drom.agent.control.server import Encoded
from drom.agent.daemon.attach import AttachChecker
from drom.agent.errors import ControlError, Refused
from drom.agent.ipc.mailboxes import MailboxError
from drom.agent.node import dry_run as preview
from drom.agent.node import orders
from drom.agent.node.explain import explain
from drom.agent.observe.reporter import TokenBucket
from drom.agent.observe.view import SCHEMA_VERSION
from drom.agent.system.users import DIRECTORY
from drom.agent.text import cpu_names

if TYPE_CHECKING:
    from drom.agent.daemon.context import Context
    from drom.agent.model.caller import Caller
    from drom.agent.model.jobs import Task
    from drom.agent.node.node import Node
    from drom.agent.node.orders import Attach, Release, Resize, Set

ORDERS_AT_ONCE = 100
"""Number of orders, carried out or only tried, that a user may give at once.

After that a user may give as many a second as the log lines that the user may cause a second.
"""
LOOKS_AT_ONCE = 20
LOOKS_A_SECOND = 2.0
"""Number of answers to `ps` computed for a user at once, and a second after that: with hundreds of tasks each takes
milliseconds."""
LOOK_SECONDS = 0.5
"""Maximum age, in seconds, of the answer to more frequent requests."""


class ControlHandler:
    """Answers requests at the control socket of `daemon`."""

    def __init__(self, daemon: Context) -> None:
        self._daemon = daemon
        self._node = daemon.node
        self._log = daemon.log
        self._user = DIRECTORY.user_name
        self._masters = daemon.settings.masters
        self._shares: dict[int, TokenBucket] = {}
        self._looks: dict[int, TokenBucket] = {}
        self._seen = Encoded(b"")
        """The newest answer to `ps`."""
        self._looked_at = -math.inf
        self.candidates = AttachChecker(daemon.node, daemon.watcher, daemon.settings.exclude, self._masters.described)

    def answer(self, order: dict[str, Any], caller: Caller) -> Any:  # noqa: ANN401 - a JSON value
        """Answer one order of the caller. Raises `ControlError` with a sentence."""
        name = order["order"]
        if name == "ps":
            return self._look(caller)
        if name == "topology":
            return self._daemon.usable.availability.machine.to_json()
        if name == "reload":
            return self._reload(caller)
        try:
            if name == "explain":
                return self._explain(order)
            return self._carry_out(order, caller)
        except (Refused, MailboxError) as refusal:
            raise ControlError(str(refusal)) from refusal
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            msg = f"the agent cannot carry out this order now ({reason}): try again later."
            raise ControlError(msg) from error

    def _look(self, caller: Caller) -> Encoded:
        """Return the present state of the node; too frequent requests of a user get one up to `LOOK_SECONDS` old."""
        now = time.monotonic()
        share = self._looks.setdefault(caller.uid, TokenBucket(LOOKS_AT_ONCE, now, LOOKS_A_SECOND))
        seldom = share.take(now) is not None or self._masters.include(caller)
        if seldom or now >= self._looked_at + LOOK_SECONDS:
            self._seen = Encoded(json.dumps(self._daemon.snapshot().to_json()).encode())
            self._looked_at = now
        return self._seen

    def _reload(self, caller: Caller) -> Any:  # noqa: ANN401 - a JSON value
        if not self._masters.include(caller):
            msg = f"only {self._masters.described} may reload the configuration."
            raise ControlError(msg)
        return self._daemon.reload()

    def _explain(self, order: dict[str, Any]) -> dict[str, object]:
        name = order.get("job")
        if not isinstance(name, str) or not name:
            raise ControlError("explain takes the name of a job.")
        return self.explained(name)

    def explained(self, name: str) -> dict[str, object]:
        """Return why the job of that name has its CPUs. Raises `Refused` if there is no such job."""
        found = [sentence._asdict() for sentence in explain(self._node, name, time.monotonic(), self._user)]
        if not self._daemon.binds:
            idle = "The CPUs are emulated: the agent sets no affinity."
            if self._daemon.settings.observe:
                idle = "This agent only observes: it changes no mask."
            found = [sentence for sentence in found if sentence["topic"] != "mode"]  # they name what binds the threads
            found.append({"topic": "mode", "text": idle})
        return {"schema_version": SCHEMA_VERSION, "job": name, "sentences": found}

    def _carry_out(self, order: dict[str, Any], caller: Caller) -> Any:  # noqa: ANN401 - a JSON value
        wanted = orders.parse(order)
        dry_run = order.get("dry_run", False)
        if not isinstance(dry_run, bool):
            raise ControlError("dry_run is true or false.")
        if self._daemon.settings.observe and not dry_run:
            raise ControlError("this agent only observes: start it without --observe to change masks.")
        master = self._masters.include(caller)
        orders.check_right(wanted, caller, self._node, master=master, masters=self._masters.described)
        if not master:
            self._check_rate(caller.uid)
        if isinstance(wanted, orders.Attach):
            said = self._attach(wanted, caller, dry_run=dry_run)
        elif dry_run:
            after = self._node.copy()
            orders.apply(wanted, after, time.monotonic(), caller.uid)
            return self._changes(after, orders.job_of(wanted, self._node))
        elif isinstance(wanted, orders.Release):
            said = self._release(wanted, caller)
        else:
            said = self._change(wanted, caller)
        if dry_run:
            return said
        who = {"key": caller.key} if caller.key else {"uid": caller.uid, "caller": caller.pid}
        about = {"name": order["order"], **who, **orders.told(wanted)}
        if master:
            self._log("order", **about)
        else:
            self._daemon.report.user_event(caller.uid, "order", **about)
        return self._daemon.snapshot().to_json() | {"said": said}

    def _check_rate(self, user: int) -> None:
        """Raise `ControlError` if a user has given too many orders and has to wait."""
        now = time.monotonic()
        if self._shares.setdefault(user, TokenBucket(ORDERS_AT_ONCE, now)).take(now) is None:
            msg = f"user {user} has given {ORDERS_AT_ONCE} orders in a moment: wait a second before the next one."
            raise ControlError(msg)

    def _changes(self, after: Node, about: str) -> dict[str, object]:
        """Return the answer to a dry run: what differs in `after`, a copy of the node after an event of job `about`."""
        changes = [step.to_json() for step in preview.changes(self._node, after, about)]
        return {"schema_version": SCHEMA_VERSION, "dry_run": True, "changes": changes}

    def _change(self, wanted: Resize | Set, caller: Caller) -> str:
        self._daemon.actuator.execute(orders.apply(wanted, self._node, time.monotonic(), caller.uid))
        return ""

    def _attach(self, wanted: Attach, caller: Caller, *, dry_run: bool) -> Any:  # noqa: ANN401 - a JSON value or text
        everybody = self._masters.include(caller)
        found = self.candidates.check(wanted.pid, caller, everybody=everybody)
        arrival = wanted.arrival(found.who.start_time, found.uid, found.affinity, found.command)
        arrival = self._daemon.confined(arrival, is_named=bool(wanted.job))
        if dry_run:
            os.close(found.pidfd)
            after = self._node.copy()
            task, _ = after.arrive(arrival, time.monotonic())
            return self._changes(after, task.job)
        task = self._daemon.registrar.register_task(arrival, found.pidfd)
        if task.started:
            return f"process {wanted.pid} is job {task.job} on {cpu_names(task.granted)}."
        why = self._node.grants.why_waiting(task)
        return f"process {wanted.pid} is job {task.job}, continues on its present CPUs, and waits: {why}"

    def _release(self, wanted: Release, caller: Caller) -> str:
        daemon = self._daemon
        tasks = orders.tasks_named(self._node, wanted.what)
        self._node.check_release(tasks)
        daemon.restore_affinity(tasks)
        actions = orders.apply(wanted, self._node, time.monotonic(), caller.uid)
        for task in tasks:
            daemon.watcher.forget(task)
            daemon.report.ended(task, "released")
        daemon.actuator.execute(actions)
        daemon.restore_affinity(tasks)
        return _released(tasks, given_back=daemon.binds)


def _released(tasks: list[Task], *, given_back: bool) -> str:
    job = tasks[0].job
    pids = ", ".join(str(task.arrival.pid) for task in tasks)
    cpus = 0
    for task in tasks:
        cpus |= task.arrival.restore if task.started and given_back else 0
    where = f"may use {cpu_names(cpus)} again" if cpus else "runs where it is"
    return f"{job} (pid {pids}) {where} and is no longer managed: jobs on these CPUs share them with it."
