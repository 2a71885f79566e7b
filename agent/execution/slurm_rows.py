# SPDX-License-Identifier: Apache-2.0
"""Ask squeue about one job, and find this node among its nodes.

The last task of an array has the number of the array, with which squeue shows all tasks, and scontrol changes all. So
the row of the job is looked for, and the job is changed by the name of its task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from drom.agent.model.slurm_values import hosts
from drom.agent.text import WordError

if TYPE_CHECKING:
    from collections.abc import Collection

    from drom.agent.observe.log import Log

PAUSE = 60.0
"""Seconds until a job is tried again after a failure."""
LATER = 600.0
"""Seconds until a job without news, such as one on other nodes for Slurm, is looked at again: it may be requeued."""
GONE = "Invalid job id"
"""What squeue says of a job that Slurm has forgotten."""
_SEPARATOR = ";drom;"
"""Users choose none of the fields that are asked for, and so cannot forge it."""
_NAME = ("JobID", "ArrayJobID", "ArrayTaskID")


class Row(NamedTuple):
    """What Slurm says of a job: its name for scontrol, such as 7 or 5_3, and the fields that were asked for."""

    job: str
    fields: tuple[str, ...]


def question(number: str, *fields: str) -> tuple[str, ...]:
    """Return the command that asks for some fields of a job."""
    columns = ",".join(f"{field}:0{_SEPARATOR}" for field in (*_NAME, *fields))
    return "squeue", "--noheader", "--jobs", number, "-O", columns


def row_of(answer: str, number: str, count: int) -> Row | None:
    """Return the row of a job in the answer to a `question` for `count` fields; None if it has none."""
    cells = [cell.strip() for cell in answer.split(_SEPARATOR)[:-1]]
    width = len(_NAME) + count
    for at in range(0, len(cells) - width + 1, width):
        job, array, task, *fields = cells[at : at + width]
        if job.rpartition("\n")[2] == number:  # after what squeue warns of
            return Row(f"{array}_{task}" if task.isdecimal() else number, tuple(fields))
    return None


class SlurmNode:
    """This node by its `name` in Slurm."""

    def __init__(self, name: str, log: Log) -> None:
        self.name = name
        self._log = log
        self._has_told = False

    def place(self, nodes: str) -> tuple[int | None, int]:
        """Return the number of this node in a list of Slurm, None if it is not there, and how many nodes there are."""
        try:
            names = hosts(nodes)
        except WordError:
            return None, 0
        return (names.index(self.name) if self.name in names else None), len(names)

    def tell_if_absent(self, job: str, nodes: str, present: Collection[str]) -> None:
        """Log once that a job of those `present` here runs on other nodes for Slurm, which names this one otherwise."""
        place, count = self.place(nodes)
        if job in present and place is None and count and not self._has_told:
            self._has_told = True
            reason = f"it runs on {nodes[:200]} for Slurm, and this is {self.name}: hosts must have the names of nodes"
            self._log("slurm_failed", job=job, reason=reason)
