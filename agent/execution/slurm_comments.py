# SPDX-License-Identifier: Apache-2.0
"""Write what Slurm's jobs use of this node's cores into their admin comments, while they run.

A job's word (`drom.agent.model.core_use`) is written whenever its cores have changed. Slurm replaces a comment as a
whole, so the nodes of a job write one after the other, in the order of Slurm's list, and look once more whether their
words are still there. Slurm accepts no comment for a job that has ended: what it used then follows from the last word
and the time of its end.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drom.agent.errors import SlurmError
from drom.agent.model.core_use import CoreUse, NodeUse, read_uses, write_use
from drom.agent.model.slurm_values import free_text, hosts
from drom.agent.node.batch_use import NOTHING
from drom.agent.text import WordError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from drom.agent.execution.slurm_commands import Steps
    from drom.agent.node.batch_use import BatchUse
    from drom.agent.observe.log import Log

SETTLE = 2.0
"""Seconds from a change of a job's cores until it is written: more changes often follow at once, or the job's end."""
TURN = 2.0
"""Seconds between two nodes of a job."""
PAUSE = 60.0
"""Seconds until a job is tried again after a failure."""
LATER = 600.0
"""Seconds until a job is looked at again that Slurm does not have on this node."""
MOST_NODES = 64
"""Nodes of a job that write into its comment: its first ones."""
_SEPARATOR = ";drom;"
_FORMAT = f"State:0{_SEPARATOR},NodeList:0{_SEPARATOR},admin_comment:0"
_GONE, _FINISHED = "Invalid job id", "already finished"
"""What squeue and scontrol say of jobs that have ended."""
_RUNNING = ("RUNNING", "SUSPENDED")


@dataclass(slots=True)
class _Comment:
    """What was written for a job: its cores; `since` when these are no more (None: they are), and its place."""

    written: CoreUse | None = None
    since: float | None = None
    place: int | None = None
    """The number of this node among those of the job, from 0; None before Slurm was asked."""
    check_at: float | None = None
    """When to look whether the word is still there."""
    retry_at: float = 0.0


class SlurmComments:
    """The comments of the jobs on this node, which Slurm calls `host`; `use` is what they have used."""

    def __init__(self, use: BatchUse, log: Log, host: str) -> None:
        self._use = use
        self._log = log
        self._host = host
        self._comments: dict[str, _Comment] = {}
        self._before: dict[str, CoreUse] = {}
        """What jobs had used by their words before this agent counted."""
        self._over: set[str] = set()
        """Jobs that have ended, or do not write."""

    def due(self, now: float) -> Iterator[str]:
        """Yield the jobs whose cores are not as they were written, or whose words are to be looked for."""
        self._over = (self._over & self._use.total.keys()) - self._use.present.keys()
        for name in {**self._use.present, **self._use.total}:
            if name in self._over:
                continue
            known = self._comments.setdefault(name, _Comment())
            if self._cores(name) == known.written:
                known.since = None
            elif known.since is None:
                known.since = now
            waits = SETTLE + TURN * (known.place or 0)
            is_changed = known.since is not None and now >= known.since + waits
            if now >= known.retry_at and (is_changed or (known.check_at is not None and now >= known.check_at)):
                yield name

    def failed(self, name: str, now: float) -> None:
        """Try a job again later, as a command has failed."""
        if name in self._comments:
            self._comments[name].retry_at = now + PAUSE

    def forget(self, names: Iterable[str]) -> None:
        """Forget jobs."""
        for name in names:
            self._comments.pop(name, None)
            self._before.pop(name, None)

    def steps(self, name: str, now: float) -> Steps:
        """Yield the commands that write a job's word, if it is not there, and take their outputs."""
        known, number = self._comments[name], name.partition("-")[2]
        try:
            answer = yield ("squeue", "--noheader", "--jobs", number, "-O", _FORMAT)
        except SlurmError as error:
            if _GONE not in str(error):
                raise
            answer = ""
        state, nodes, comment = (*answer.split(_SEPARATOR, 2), "", "")[:3]
        known.check_at = None
        place, count = self._place(nodes)
        if state.strip() not in _RUNNING or place is None or place >= MOST_NODES:
            self._leave(name, now)
            return
        if known.place is None:
            known.place = place
            self._before.setdefault(name, self._earlier_use(name, comment))
            if place:  # after the nodes before this one
                return
        cores = self._cores(name)
        if cores == known.written and self._host in read_uses(comment):
            return
        use = NodeUse(time.time(), self._total(name), cores)
        words = write_use(free_text(comment.strip()), self._host, use)
        try:
            yield ("scontrol", "update", f"jobid={number}", f"admincomment={words}")
        except SlurmError as error:
            if _FINISHED not in str(error):
                raise
        known.written = cores
        known.check_at = now + TURN * (count + 1) if count > 1 else None

    def _cores(self, name: str) -> CoreUse:
        return self._use.present.get(name, NOTHING).cores

    def _earlier_use(self, name: str, comment: str) -> CoreUse:
        """Return what a job had used before this agent, which has begun with the cores of its last word or later."""
        word = read_uses(comment).get(self._host)
        if not word:
            return CoreUse()
        return word.until(time.time() - self._use.seconds) if name in (self._use.adopted or ()) else word.total

    def _total(self, name: str) -> CoreUse:
        return self._use.total.get(name, NOTHING).cores.plus(self._before.get(name, CoreUse()), 1)

    def _place(self, nodes: str) -> tuple[int | None, int]:
        """Return the number of this node in a list of Slurm, None if it is not there, and how many nodes there are."""
        try:
            names = hosts(nodes.strip())
        except WordError:
            return None, 0
        return (names.index(self._host) if self._host in names else None), len(names)

    def _leave(self, name: str, now: float) -> None:
        """Write no more for a job that has left this node; look later at one that is here, but not by Slurm's list."""
        if name in self._use.present:
            self._comments[name].retry_at = now + LATER
            return
        del self._comments[name]
        self._over.add(name)
        total = self._total(name)._asdict()
        self._log("slurm_use", job=name, **{f"{what}_core_s": round(seconds, 1) for what, seconds in total.items()})
