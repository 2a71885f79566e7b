# SPDX-License-Identifier: Apache-2.0
"""Orders that change masks: their fields, the rights they need, and their effect on the node. No I/O.

Root, the agent's own user and other masters (`drom.agent.control.access`) may give any order. Other users may give
orders only for their own jobs, and never for more than the policy gave: shrink a job, end an order that they gave
themselves, release a job, attach a process that runs under their uid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drom.agent.errors import ControlError, Refused
from drom.agent.model.jobs import Arrival
from drom.agent.model.layouts import ANY, Layout, parse_layout
from drom.agent.text import LARGEST, LONGEST, WordError, clean_name, counted

from dromlib import layout as binary
from dromlib.cpulist import CpuListError, format_cpulist, parse_cpulist

if TYPE_CHECKING:
    from drom.agent.model.caller import Caller
    from drom.agent.model.jobs import Action, Task
    from drom.agent.node.node import Node

CLASSES = binary.ENUMS["CLASS"]
MOST_CPUS = 1 << 20
"""Greatest count in an order; larger ones are refused as invalid."""
LARGEST_PID = (1 << 31) - 1
"""Greatest pid in an order; `drom.agent.daemon.attach` reports pids that no process has."""


@dataclass(frozen=True, slots=True)
class Resize:
    """Hold job `job` at `cpus` hardware threads, for `seconds` if not None; `cpus` None ends the hold."""

    job: str
    cpus: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Set:
    """Give the task that `what`, a job or a pid, names exactly the CPUs in `mask`."""

    what: str
    mask: int


@dataclass(frozen=True, slots=True)
class Attach:
    """Manage process `pid` and its descendants as a job of this name, class and bounds (0 or empty: not given).

    `min_cpus`, `max_cpus` and `memory` (bytes) are as in `Arrival`.
    """

    pid: int
    job: str
    job_class: str
    min_cpus: int
    max_cpus: int
    layout: Layout
    memory: int

    def arrival(self, start_time: int, uid: int, affinity: int, command: str) -> Arrival:
        """Return the arrival of the process; `affinity` is its present mask, `command` names a job without a name."""
        return Arrival(
            self.pid,
            start_time,
            uid,
            self.job or clean_name(command) or "program",
            self.job_class,
            min_cpus=self.min_cpus,
            max_cpus=self.max_cpus,
            restore=affinity,
            layout=self.layout,
            memory=self.memory,
            attached=True,
        )


@dataclass(frozen=True, slots=True)
class Release:
    """Stop managing the task or job that `what`, a job or a pid, names."""

    what: str


Order = Resize | Set | Attach | Release


def parse(order: dict[str, Any]) -> Order:
    """Return the order in the fields of a request. Raises `ControlError` with a sentence."""
    name = order["order"]
    try:
        if name == "resize":
            return _resize(order)
        if name == "set":
            return Set(_text(order, "job", "set takes a job name or pid"), parse_cpulist(_text(order, "cpus", _LIST)))
        if name == "attach":
            return _attach(order)
        if name == "release":
            return Release(_text(order, "job", "release takes a job name or pid"))
    except (CpuListError, WordError) as error:
        raise ControlError(str(error)) from error
    msg = f"this agent has no order {clean_name(name[:40])!r}: use the drom command of this version."
    raise ControlError(msg)


_LIST = "set takes a job name or pid and a CPU list such as 0-3,8"


def _resize(order: dict[str, Any]) -> Resize:
    usage = "resize takes a job name, and `auto` or a positive number of CPUs"
    job = _text(order, "job", usage)
    if "cpus" not in order:
        raise ControlError(usage + ".")
    cpus = None if order["cpus"] is None else _count(order, "cpus", usage)
    seconds = order.get("for")
    if seconds is None:
        return Resize(job, cpus, None)
    if type(seconds) not in (int, float) or not 0 < seconds <= LONGEST or cpus is None:
        raise ControlError("--for takes seconds, up to a year, and needs a number of CPUs: `auto` has no end.")
    return Resize(job, cpus, float(seconds))


def _attach(order: dict[str, Any]) -> Attach:
    name = order.get("job") or ""
    job_class = order.get("class") or "malleable"
    distribution = order.get("distribution")
    if not isinstance(name, str) or (distribution is not None and not isinstance(distribution, str)):
        raise ControlError("attach takes a job's name and a distribution as text.")
    if job_class not in CLASSES:
        msg = f"{str(job_class)[:40]!r} is not a class: choose {', '.join(CLASSES)}."
        raise ControlError(msg)
    return Attach(
        pid=_count(order, "pid", "attach takes the pid of a process", most=LARGEST_PID),
        job=clean_name(name),
        job_class=job_class,
        min_cpus=_count(order, "min", "--min takes a positive number of CPUs", default=0),
        max_cpus=_count(order, "cpus", "--cpus takes a positive number of CPUs", default=0),
        layout=ANY if distribution is None else parse_layout(distribution),
        memory=_count(order, "mem", "--mem takes a size in bytes", default=0, most=LARGEST),
    )


def told(order: Order) -> dict[str, object]:
    """Return the fields of an order for the log: only those with a meaning, and names cut as those of jobs are."""
    if isinstance(order, Resize):
        fields: dict[str, object] = {"job": clean_name(order.job), "cpus": order.cpus, "for": order.seconds}
    elif isinstance(order, Set):
        fields = {"job": clean_name(order.what), "cpus": format_cpulist(order.mask)}
    elif isinstance(order, Attach):
        fields = {"pid": order.pid, "job": order.job or None, "cpus": order.max_cpus or None}
    else:
        fields = {"job": clean_name(order.what)}
    return {name: value for name, value in fields.items() if value is not None}


def _text(order: dict[str, Any], field: str, usage: str) -> str:
    value = order.get(field)
    if not isinstance(value, str) or not value:
        raise ControlError(usage + ".")
    return value


def _count(order: dict[str, Any], field: str, usage: str, default: int | None = None, most: int = MOST_CPUS) -> int:
    value = order.get(field)
    if value is None and default is not None:
        return default
    if type(value) is not int or not 0 < value <= most:
        raise ControlError(f"{usage}, at most {most}.")
    return value


# --- rights ---------------------------------------------------------------------------------------------------------


def check_right(order: Order, caller: Caller, node: Node, *, master: bool, masters: str) -> None:
    """Raise `ControlError` if the caller may not give this order; a `master` may give any.

    The right to attach a process depends on the process and is not checked here. `masters`: their names, for refusals.
    """
    if master or isinstance(order, Attach):
        return
    what = order.job if isinstance(order, Resize) else order.what
    tasks = tasks_named(node, what)
    job = node.jobs[tasks[0].job]
    if any(task.arrival.uid != caller.uid for task in tasks):
        msg = f"job {job.name} belongs to another user: only {masters} may change it."
        raise ControlError(msg)
    if isinstance(order, Release):
        return
    if isinstance(order, Set):
        msg = f"only {masters} may choose CPUs: ask for fewer with `drom resize`."
        raise ControlError(msg)
    ordered = job.hold is not None or job.pinned
    if ordered and job.hold_by != caller.uid:
        msg = f"job {job.name} is under an order of another user: only {masters} may change it."
        raise ControlError(msg)
    has = job.planned.bit_count()
    if order.cpus is not None and order.cpus > has:
        msg = f"job {job.name} has {counted(has, 'CPU')}: only {masters} may order more than that."
        raise ControlError(msg)
    insists, least = node.plan.rules.max_min, node.cores.cpus(job.least)
    if order.cpus is not None and insists and order.cpus > max(insists, least):
        msg = f"a job may insist on {counted(insists, 'CPU')} here (max_min): only {masters} may hold it at more."
        raise ControlError(msg)


def tasks_named(node: Node, what: str) -> list[Task]:
    """Return the tasks of the job named `what`, or the task with that pid. Raises `ControlError` if there is none."""
    job = node.jobs.get(what)
    tasks = job.present if job else [task for task in node.tasks.values() if what == str(task.arrival.pid)]
    if not tasks:
        msg = f"there is no job or pid {clean_name(what[:60])}: see `drom ps`."
        raise ControlError(msg)
    return tasks


def job_of(order: Resize | Set | Release, node: Node) -> str:
    """Return the name of the job that an order is for. Raises `ControlError` if it names neither a job nor a pid."""
    return order.job if isinstance(order, Resize) else tasks_named(node, order.what)[0].job


# --- what they mean -------------------------------------------------------------------------------------------------


def apply(order: Resize | Set | Release, node: Node, now: float, by: int) -> list[Action]:
    """Apply an order of user `by` at `now` and return the actions. Raises `ControlError` if it cannot be applied."""
    try:
        if isinstance(order, Resize):
            until = None if order.seconds is None else now + order.seconds
            return node.resize(order.job, order.cpus, now, until=until, by=by)
        tasks = tasks_named(node, order.what)
        if isinstance(order, Release):
            node.check_release(tasks)
            return [action for task in tasks for action in node.release(task.slot, now, by)]
        if len(tasks) > 1:
            msg = f"job {order.what} has {len(tasks)} tasks: name one by its pid."
            raise ControlError(msg)
        return node.pin(tasks[0].slot, order.mask, now, by)
    except Refused as refusal:
        raise ControlError(str(refusal)) from refusal
