# SPDX-License-Identifier: Apache-2.0
"""What an event would change: the comparison of a node before the event with a copy after it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drom.agent.model.jobs import action_name

from dromlib.cpulist import format_cpulist

if TYPE_CHECKING:
    from drom.agent.model.jobs import Task
    from drom.agent.node.node import Node

_GROWS = {
    "order": "takes what comes free",
    "return": "takes back what it owns",
    "death": "takes what comes free",
}


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """The change of one task: `old` and `new` are masks over OS CPUs, `why` is a text for users.

    `action` is start, shrink, grow, move, attach, wait or release. The old mask of an attached task, and the new mask
    of a released task, is its own affinity.
    """

    job: str
    task: int
    pid: int
    action: str
    old: int
    new: int
    why: str

    def to_json(self) -> dict[str, object]:
        """Return a value for ``json.dumps``; CPU sets are kernel lists."""
        who: dict[str, object] = {"job": self.job, "task": self.task, "pid": self.pid}
        return who | {
            "action": self.action,
            "from": format_cpulist(self.old),
            "to": format_cpulist(self.new),
            "why": self.why,
        }


def changes(before: Node, after: Node, about: str) -> list[PlannedChange]:
    """Return the differences between the plans of a node before and after an event of job `about`.

    They are told task by task, those of that job first.
    """
    found = [_gone(task) for slot, task in before.tasks.items() if slot not in after.tasks]
    for slot, task in after.tasks.items():
        old = before.tasks.get(slot)
        if old is None:
            found.append(_come(after, task))
            continue
        was, is_now = before.plan.target(old), after.plan.target(task)
        if was != is_now:
            action = action_name(was, is_now)
            found.append(
                PlannedChange(
                    task.job, task.rank, task.arrival.pid, action, was, is_now, _why(after, task, action, about)
                )
            )
    return sorted(found, key=lambda step: step.job != about)


def _gone(task: Task) -> PlannedChange:
    why = "is managed no longer"
    return PlannedChange(task.job, task.rank, task.arrival.pid, "release", task.granted, task.arrival.restore, why)


def _come(after: Node, task: Task) -> PlannedChange:
    new = after.plan.target(task)
    action, why = ("attach", "the order") if new else ("wait", after.grants.why_waiting(task))
    return PlannedChange(task.job, task.rank, task.arrival.pid, action, task.arrival.restore, new, why)


def _why(after: Node, task: Task, action: str, about: str) -> str:
    if task.job == about:
        return "the order"
    last = after.jobs[task.job].last
    if action == "shrink" or last is None:
        return f"makes room for {last.event.job if last else about}"
    return "makes room by moving" if action == "move" else _GROWS.get(last.reason, "starts")
