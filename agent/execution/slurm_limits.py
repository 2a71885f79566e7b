# SPDX-License-Identifier: Apache-2.0
"""Lengthen the time limits of Slurm's jobs by what they lose, from the agent of the first node of each job.

Slurm counts limits in minutes, and root of any node may change them. Each change covers at least a twentieth of the
limit, so that a job that shares its cores from start to end costs slurmctld some twenty requests, not one a minute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drom.agent.errors import SlurmError
from drom.agent.execution.slurm_rows import GONE, LATER, PAUSE, question, row_of
from drom.agent.model.slurm_values import limit
from drom.agent.text import WordError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from drom.agent.execution.slurm_commands import Steps
    from drom.agent.execution.slurm_rows import SlurmNode
    from drom.agent.node.batch_use import BatchUse
    from drom.agent.observe.log import Log

SPARE = 5.0
"""Seconds that a job may have lost before its limit is changed. Slurm itself ends jobs up to half a minute late."""


@dataclass(slots=True)
class _Limit:
    """The minutes that one job has been `given`, and its limit in minutes after that."""

    given: int = 0
    minutes: int | None = None
    retry_at: float = 0.0


class SlurmLimits:
    """The time limits of the jobs on the node `here`; `use` is what they lose."""

    def __init__(self, use: BatchUse, log: Log, here: SlurmNode) -> None:
        self._use = use
        self._log = log
        self._here = here
        self._limits: dict[str, _Limit] = {}

    def due(self, now: float) -> Iterator[str]:
        """Yield the jobs with limits that do not cover what they have lost."""
        for name, total in self._use.total.items():
            limit = self._limits.setdefault(name, _Limit())
            if total.lost - SPARE > 60 * limit.given and now >= limit.retry_at:
                yield name

    def failed(self, name: str, now: float) -> None:
        """Try a job again later, as a command has failed."""
        self._limits[name].retry_at = now + PAUSE

    def forget(self, names: Iterable[str]) -> None:
        """Forget jobs."""
        for name in names:
            self._limits.pop(name, None)

    def steps(self, name: str, now: float) -> Steps:
        """Yield the commands that lengthen a job's limit if this node is its first one, and take their outputs."""
        known, number = self._limits[name], name.partition("-")[2]
        try:
            answer = yield question(number, "TimeLimit", "NodeList")
        except SlurmError as error:
            if GONE not in str(error):
                raise
            known.retry_at = math.inf
            return
        row = row_of(answer, number, 2)
        shown, nodes = row.fields if row else ("", "")
        self._here.tell_if_absent(name, nodes, self._use.present)
        minutes = _minutes(shown)
        if row is None or minutes is None or self._here.place(nodes)[0] != 0:
            known.retry_at = now + LATER
            return
        if known.minutes is not None and minutes > known.minutes:  # somebody else has lengthened it meanwhile
            known.given += minutes - known.minutes
        known.minutes = minutes
        lost = self._use.total[name].lost
        missing = -(-(lost - 60 * known.given) // 60)
        if missing <= 0:
            return
        more = max(int(missing), minutes // 20)
        yield ("scontrol", "update", f"jobid={row.job}", f"timelimit=+{more}")
        known.given += more
        known.minutes = minutes + more
        self._log("slurm_limit", job=name, minutes=f"+{more}", lost_s=round(lost, 1))


def _minutes(shown: str) -> int | None:
    try:
        return limit(shown)
    except WordError:
        return None
