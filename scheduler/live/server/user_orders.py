# SPDX-License-Identifier: Apache-2.0
"""What users may ask of a scheduler: to submit, cancel and hold jobs, to list jobs and nodes, to drain nodes.

Answers are pages of bounded size; an order that changes something is stored before it is answered.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

from drom.agent.errors import ControlError
from drom.agent.execution.devices import GPU
from drom.agent.text import LAST_MOMENT, counted, cut_middle, duration, in_words
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live import accounting
from drom.scheduler.live.cluster import admission, explain
from drom.scheduler.live.cluster.contracts import paid
from drom.scheduler.live.cluster.job_filter import JobRange, job_filter_of, ranges_of
from drom.scheduler.live.cluster.jobs import FINAL, ON_NODES, PENDING, Job, Node
from drom.scheduler.live.cluster.paging import PAGE, SCHEMA_VERSION, fill
from drom.scheduler.live.cluster.quotas import Orders
from drom.scheduler.live.cluster.spec import (
    CHANGEABLE,
    LONGEST_NAME,
    MOST_AT_ONCE,
    MOST_JOBS,
    MOST_KINDS,
    Notice,
    array_of,
    from_json,
    name_of,
    visible,
)
from drom.scheduler.live.server.authorization import check_partition, check_rights, is_operator, user_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drom.agent.model.caller import Caller
    from drom.scheduler.live.cluster.jobs import User
    from drom.scheduler.live.server.stored_cluster import StoredCluster

MOST_SAID = 20
"""Reasons in an answer why jobs were not changed; the others are counted."""
MOST_SIGNALS = 64
WITHOUT_TRACE = frozenset({"submit", "queue", "job", "nodes", "homes", "history"})
"""Orders that leave nothing in memory when they fail; after a failure of any other the queue is read again."""
_LIMITED = frozenset({"submit", "cancel", "hold", "update"})
"""Orders whose rate per user is limited, because they are written to the queue."""


MOST_SHOWN = 200
"""Columns of the changes in an entry of a job's history."""


class UserOrders:
    """Carries out the orders of users on a cluster. `forget` is called before a node of its own is removed."""

    def __init__(self, stored: StoredCluster, forget: Callable[[str], None]) -> None:
        self._stored, self._forget = stored, forget
        self._rates = Orders(stored.settings.max_orders)
        self._orders: dict[str, Callable[[dict[str, Any], Caller], dict[str, object]]] = {
            "submit": self._submit,
            "cancel": self._cancel,
            "hold": self._hold,
            "update": self._update,
            "queue": self._queue,
            "job": self._job,
            "nodes": self._nodes,
            "homes": self._homes,
            "history": self._history,
            "drain": self._drain,
        }

    def carry_out(self, order: dict[str, Any], caller: Caller) -> dict[str, object]:
        """Return the answer to an order. Raises ControlError or SchedulerError with a sentence if it is refused."""
        name = order["order"]
        if name not in self._orders:
            raise ControlError(f"this scheduler has no order {str(name)[:40]!r}: use the drom of this version.")
        if order.get("home") and not self._stored.settings.home:
            raise ControlError("this cluster has no home partitions: omit --home-partition.")
        if name in _LIMITED and not is_operator(user := user_of(caller)):
            self._rates.take(user, time.monotonic())
        return self._orders[name](order, caller)

    def _submit(self, order: dict[str, Any], caller: Caller) -> dict[str, object]:
        specs, count = order.get("jobs"), _number(order, "count", 1)
        if not isinstance(specs, list) or not specs:
            raise ControlError("submit takes a list of jobs: use the drom of this version.")
        if len(specs) > MOST_KINDS:
            msg = f"{len(specs)} different jobs are too many for one request, which may have {MOST_KINDS}: use several."
            raise ControlError(msg)
        user, parsed = user_of(caller), [from_json(values) for values in specs]
        if count > 1 and any(spec.array for spec in parsed):
            raise ControlError("count is for single jobs, not for arrays: submit arrays one by one.")
        more = sum(len(array_of(spec.array).indices) if spec.array else count for spec in parsed)
        if more > MOST_AT_ONCE:
            msg = f"{more} jobs are too many for one request, which takes {MOST_AT_ONCE}: use several."
            raise ControlError(msg)
        check_rights(user, parsed)
        for name in {spec.partition for spec in parsed}:
            check_partition(user, name, self._stored.settings.partitions)
        if not is_operator(user):
            self._stored.cluster.holdings.admit(user, parsed, more, self._stored.settings)
        newest = next(reversed(self._stored.cluster.jobs), None)
        try:
            jobs = [self._stored.cluster.submit_many(spec, user, self._stored.clock(), count) for spec in parsed]
            self._stored.must_flush()
        except Exception:
            self._stored.cluster.discard(self._jobs_after(newest))
            raise
        numbers = [job.number for job in itertools.chain(*jobs)]
        warnings = admission.warnings(parsed, self._stored.cluster.nodes.values())
        return {"schema_version": SCHEMA_VERSION, "jobs": numbers, "warnings": warnings}

    def _jobs_after(self, newest: int | None) -> list[Job]:
        """Return the jobs that were added after the job `newest`, in the order in which they were added."""
        came = itertools.takewhile(lambda job: job.number != newest, reversed(self._stored.cluster.jobs.values()))
        return list(came)[::-1]

    def _cancel(self, order: dict[str, Any], caller: Caller) -> dict[str, object]:
        cluster, user = self._stored.cluster, user_of(caller)
        number, first = _number(order, "signal", 0, least=0), order.get("first") is True
        if number > MOST_SIGNALS:
            raise ControlError(f"signal is a number from 1 to {MOST_SIGNALS}: send one.")

        def end(job: Job) -> None:
            if number:
                cluster.signal(job.number, Notice(number, first=first), self._stored.clock(), user.name)
            else:
                cluster.cancel(job.number, self._stored.clock(), f"cancelled by {user.name}")

        return self._change(order, caller, end)

    def _hold(self, order: dict[str, Any], caller: Caller) -> dict[str, object]:
        user, held = user_of(caller), order.get("held") is not False
        hold = self._stored.cluster.hold
        return self._change(order, caller, lambda job: hold(job.number, self._stored.clock(), user.name, held=held))

    def _change(self, order: dict[str, Any], caller: Caller, change: Callable[[Job], None]) -> dict[str, object]:
        """Change the job that an order names, or those that it chooses, at most `MOST_AT_ONCE` of them.

        The answer is a page: the jobs that were changed, and in `refused` why others could not be.
        """
        user = user_of(caller)
        if "job" in order:
            return self._change_one(self._find(_number(order, "job")), user, change)
        chosen, refused = self._chosen(order, user)
        changed: list[Job] = []
        with self._stored.written(user):
            for job in chosen[:MOST_AT_ONCE]:
                try:
                    change(job)
                except (ControlError, SchedulerError) as error:  # noqa: PERF203 - the others are changed
                    refused[str(error)] = None
                else:
                    changed.append(job)
        rows = list(map(self._overview, changed))
        about = {"schema_version": SCHEMA_VERSION, "time": self._stored.clock(), "jobs": rows}
        after = chosen[MOST_AT_ONCE - 1].number if len(chosen) > MOST_AT_ONCE else None
        why_not = list(refused)
        if more := len(why_not[MOST_SAID:]):
            why_not[MOST_SAID:] = [f"{counted(more, 'more job')} could not be changed."]
        return about | {"refused": why_not, "after": after}

    def _change_one(self, job: Job, user: User, change: Callable[[Job], None]) -> dict[str, object]:
        """Change a job. Raises ControlError if the user may not, SchedulerError if it cannot be changed."""
        if user.uid != job.user.uid and not is_operator(user):
            raise ControlError(f"job {job.label} belongs to {job.user.name}: only they and root may change it.")
        with self._stored.written(user):
            change(job)
        return self._told(job)

    def _chosen(self, order: dict[str, Any], user: User) -> tuple[list[Job], dict[str, None]]:
        """Return the unfinished jobs that an order chooses, and why others that it names may not be changed."""
        ranges, choice, may_all = ranges_of(order), job_filter_of(order), is_operator(user)
        if not ranges and not any(choice):
            raise ControlError("an order that changes jobs must choose some: use the drom of this version.")
        chosen: list[Job] = []
        refused: dict[str, None] = {}
        found: set[JobRange] = set()
        after = _number(order, "after", 0, least=0)
        for job in self._stored.cluster.jobs.values():
            if job.is_final or job.number <= after or not choice.has(job):
                continue
            named = [one for one in ranges if one.has(job)]
            found.update(named)
            if ranges and not named:
                continue
            if may_all or user.uid == job.user.uid:
                chosen.append(job)
            elif named or choice.users:
                refused[f"job {job.label} belongs to {job.user.name}: only they and root may change it."] = None
        for one in [] if after else ranges:
            if one not in found and not (any(choice) or one.array or one.first != one.last):
                refused[self._why_not(one.first)] = None
            elif one not in found:
                refused[f"no job of {one.label} waits or runs: see drom queue."] = None
        return chosen, refused

    def _why_not(self, number: int) -> str:
        """Return why a job of this number cannot be changed: it is over, or never existed."""
        try:
            self._find(number)
            self._stored.cluster.state.living(number)
        except (ControlError, SchedulerError) as error:
            return str(error)
        return f"job {number} is not among the jobs that are selected."

    def _update(self, order: dict[str, Any], caller: Caller) -> dict[str, object]:
        """Change jobs: a user may change waiting ones, and lower the limits of running ones."""
        user, changes = user_of(caller), order.get("changes")
        if not isinstance(changes, dict):
            raise ControlError("update takes an object of changes: use the drom of this version.")
        return self._change(order, caller, lambda job: self._update_one(job, user, changes))

    def _update_one(self, job: Job, user: User, changes: dict[str, Any]) -> None:
        cluster = self._stored.cluster
        spec = cluster.changed(job.number, changes)
        if "priority" in changes:
            check_rights(user, [spec])
        if spec.partition != job.spec.partition:
            check_partition(user, spec.partition, self._stored.settings.partitions)
        if not is_operator(user):
            longest = self._stored.settings.limit
            if job.state != PENDING and longest(spec.time) > longest(job.spec.time):
                who = "only root and the scheduler's own user may lengthen the limit of a job that has started"
                raise ControlError(f"{who}: give a shorter --time.")
            cluster.holdings.admit_change(job, spec, self._stored.settings)
        what = ", ".join(f"{CHANGEABLE[name]} {_shown(name, getattr(spec, name))}" for name in changes)
        cluster.update(job.number, spec, self._stored.clock(), user.name, cut_middle(what, MOST_SHOWN))

    def _drain(self, order: dict[str, Any], caller: Caller) -> dict[str, object]:
        if not is_operator(user := user_of(caller)):
            raise ControlError("only root and the scheduler's own user may drain nodes.")
        reason = order.get("reason")
        if not isinstance(reason, str) or not isinstance(order.get("node"), str):
            raise ControlError("drain takes a node and a reason: use the drom of this version.")
        if len(reason) > LONGEST_NAME:
            msg = f"the reason has {len(reason)} characters, and may have {LONGEST_NAME}: give a shorter --reason."
            raise ControlError(msg)
        with self._stored.written(user):
            if order.get("forget") is True:
                members = self._stored.cluster.members
                if not members.removable(order["node"]).home:
                    self._forget(order["node"])
                members.forget(order["node"], self._stored.clock())
            else:
                self._stored.cluster.members.drain(order["node"], reason)
        node = self._stored.cluster.nodes.get(order["node"])
        rows = [self._node(node)] if node else []
        return {"schema_version": SCHEMA_VERSION, "time": self._stored.clock(), "nodes": rows}

    def _find(self, number: int) -> Job:
        job = self._stored.cluster.jobs.get(number) or self._stored.store.job(number)
        if job is None:
            raise ControlError(f"there is no job {number}: see drom queue --all.")
        return job

    def _named(self, order: dict[str, Any]) -> Job:
        """Return the job that an order names, by its number or by array and index. Raises ControlError for no job."""
        if "array" not in order:
            return self._find(_number(order, "job"))
        array, index = _number(order, "array"), _number(order, "index", 0, least=0)
        first = self._find(array)
        indices = array_of(first.spec.array).indices if first.array == array else ()
        if index not in indices:
            raise ControlError(f"there is no job {array}_{index}: see drom queue --all.")
        return self._find(array + indices.index(index))

    def _queue(self, order: dict[str, Any], _: Caller) -> dict[str, object]:
        about = {"schema_version": SCHEMA_VERSION, "time": self._stored.clock()}
        if order.get("all"):
            rows, before = self._page(order, lambda job: {"jobs": self._overview(job)})
            return about | {"jobs": [row["jobs"] for row in rows], "before": before}
        choice = job_filter_of(order)
        after = _number(order, "after", 0, least=0)
        living = [job for job in self._stored.cluster.jobs.values() if job.number > after and job.state not in FINAL]
        if any(choice):
            living = list(filter(choice.has, living))
        soonest = self._stored.cluster.controller.soonest() if self._stored.cluster.controller else None
        rows = fill((self._overview(job, soonest) for job in living), min(PAGE, _number(order, "limit", PAGE)))
        last = living[len(rows) - 1].number if len(rows) < len(living) else None
        return about | {"jobs": rows, "after": last, "left": len(living) - len(rows)}

    def _page(
        self,
        order: dict[str, Any],
        row_of: Callable[[Job], dict[str, Any]],
        chosen: Callable[[Job], bool] = lambda _: True,
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Return a row for each of the newest jobs asked for and `chosen`, and the job before which there may be more.

        Jobs that are not chosen count for the size of a page, too: each has to be read.
        """
        self._stored.flush()
        wanted, before = _number(order, "last", 100), _number(order, "before", MOST_JOBS - 1)
        numbers: list[int] = []

        def read() -> Iterator[dict[str, Any]]:
            left = wanted
            for job in self._stored.store.newest(PAGE, before=before):
                numbers.append(job.number)
                is_chosen = chosen(job)
                yield row_of(job) if is_chosen else {}
                left -= is_chosen
                if not left:
                    return

        page = fill(read())
        rows = [row for row in page if row][::-1]
        if not page or len(rows) == wanted:
            return rows, None
        first = numbers[len(page) - 1]
        return rows, first if self._stored.store.has_before(first) else None

    def _job(self, order: dict[str, Any], caller: Caller) -> dict[str, object]:
        user = user_of(caller)
        self._stored.flush()
        job, now = self._named(order), self._stored.clock()
        number = job.number
        history = [entry._asdict() for entry in self._stored.store.history(number, number)]
        said = explain.explain(job, self._stored.cluster, now)
        spec = visible(job.spec, whole=user.uid == job.user.uid or is_operator(user))
        rates = self._stored.cluster.executions.known_rates(number)
        return self._told(job) | {"spec": spec, "history": history, "explanation": said, "rates": rates}

    def _history(self, order: dict[str, Any], _: Caller) -> dict[str, object]:
        """Return the history of the last jobs that were chosen; in `brief` their core-seconds without the entries."""
        choice, now = job_filter_of(order), self._stored.clock()
        since, until = (_moment(order, name) for name in ("since", "until"))

        def row(job: Job) -> dict[str, Any]:
            entries = [entry._asdict() for entry in self._stored.store.history(job.number, job.number)]
            if order.get("brief") is not True:
                return {"jobs": self._overview(job), "entries": entries}
            used = accounting.core_seconds(entries, job.ended or now)
            return {"jobs": self._overview(job) | {"core_seconds": used}, "entries": []}

        def chosen(job: Job) -> bool:
            at = job.ended or now
            return (since is None or since <= at) and (until is None or at < until) and choice.has(job)

        rows, before = self._page(order, row, chosen)
        return {
            "schema_version": SCHEMA_VERSION,
            "time": self._stored.clock(),
            "name": self._stored.settings.name,
            "policy": self._stored.cluster.policy.name,
            "parameters": self._stored.cluster.policy.parameters(),
            "nodes": [node.name for node in self._stored.cluster.state.own],
            "cores": self._stored.cluster.cores_of_nodes,
            "sizes": {node.name: [node.cores, node.resources.get(GPU, 0)] for node in self._stored.cluster.state.own},
            "jobs": [row["jobs"] for row in rows],
            "entries": [entry for row in rows for entry in row["entries"]],
            "before": before,
        }

    def _told(self, job: Job) -> dict[str, object]:
        return {"schema_version": SCHEMA_VERSION, "time": self._stored.clock(), **self._overview(job)}

    def _overview(self, job: Job, soonest: Callable[[int], int] | None = None) -> dict[str, Any]:
        now = self._stored.clock()
        return {
            "job": job.number,
            "array": job.array,
            "index": job.index,
            "name": name_of(job.spec),
            "user": job.user.name,
            "state": job.state,
            "reason": explain.why(job, self._stored.cluster),
            "partition": job.spec.partition,
            "nodes": job.width,
            "min_nodes": job.spec.min_nodes,
            "shares": job.shares,
            "sizes": job.sizes if job.shares else {},
            "least": job.least,
            "most": job.most,
            "devices": job.devices,
            "submitted": job.submitted,
            "started": job.started,
            "ended": job.ended,
            "expected_start": explain.expected_start(job, self._stored.cluster, now, soonest),
            "limit": job.limit,
            "requested": self._stored.settings.limit(job.spec.time),
            "class": job.spec.job_class,
            "saving": job.spec.saving,
            "attempt": job.attempt,
            "status": job.status,
            "cpu_seconds": job.cpu_seconds,
            "max_rss": job.max_rss,
            "paid": paid(job),
        }

    def _nodes(self, order: dict[str, Any], _: Caller) -> dict[str, object]:
        """Return a page of nodes in the order of their indices, which begins with the index `after`.

        Nodes that are lent are among those of their borrower.
        """
        after = _number(order, "after", 0, least=0)
        there = self._stored.cluster.nodes.values()
        rest = sorted((node for node in there if node.index >= after and not node.lent), key=_index)
        rows = fill(map(self._node, rest))
        more = rest[len(rows) - 1].index + 1 if len(rows) < len(rest) else None
        return {"schema_version": SCHEMA_VERSION, "time": self._stored.clock(), "nodes": rows, "after": more}

    def _homes(self, _: dict[str, Any], __: Caller) -> dict[str, object]:
        """Return what this home partition, or a cluster without any, has."""
        cluster = self._stored.cluster
        own = cluster.state.own
        nodes = [node for node in own if node.state == "up"]
        row = {
            "home": self._stored.settings.home,
            "nodes": len(own),
            "up": len(nodes),
            "cores": sum(node.cores for node in nodes),
            "held": sum(cluster.placements.held(node.index) for node in nodes),
            "running": sum(job.state in ON_NODES for job in cluster.jobs.values()),
            "waiting": sum(job.state == PENDING for job in cluster.jobs.values()),
            "lent": sum(node.state == "lent" for node in own),
            "borrowed": len(cluster.nodes) - len(own),
        }
        return {"schema_version": SCHEMA_VERSION, "homes": [row]}

    def _node(self, node: Node) -> dict[str, Any]:
        cluster = self._stored.cluster
        jobs = [part.job for part in cluster.placements.on(node.index)]
        borrower = self._stored.settings.home if node.home else ""
        on_it = {job.number: job.shares[node.name] for job in jobs}
        resting = [number for number, cores in on_it.items() if not (cores or cluster.policy.shares_nodes)]
        leaving = explain.leaving(node, cluster)
        return node.to_json() | {"borrower": borrower, "jobs": on_it, "resting": resting, "leaving": leaving}


def _shown(name: str, value: Any) -> str:  # noqa: ANN401 - the value of any field
    """Return the value of a field of a specification as users write it."""
    if not value and name != "priority":
        return "unset"
    if name == "after":
        return ",".join(f"{one.kind}:{one.job}" for one in value)
    if isinstance(value, tuple):
        return ",".join(value)
    return {"time": duration, "memory": in_words}.get(name, str)(value)


def _index(node: Node) -> int:
    return node.index


def _moment(order: dict[str, Any], field: str) -> float | None:
    """Return a time in an order, in unix seconds, if it has one. Raises ControlError for any other value."""
    value = order.get(field)
    if value is not None and (type(value) not in (int, float) or not abs(value) <= LAST_MOMENT):
        msg = f"{field} is a time in seconds since 1970: send one."
        raise ControlError(msg)
    return value


def _number(order: dict[str, Any], field: str, default: int = 0, *, least: int = 1) -> int:
    """Return a whole number in an order, of at least `least`. Raises ControlError for any other value."""
    value = order.get(field, default)
    if type(value) is not int or not least <= value < MOST_JOBS:
        if field == "job":
            raise ControlError("job must be a positive whole number: use the number shown by drom queue.")
        msg = f"{field} is a whole number from {least} to {MOST_JOBS - 1}: send one."
        raise ControlError(msg)
    return value
