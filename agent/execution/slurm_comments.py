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
from drom.agent.execution.slurm_rows import GONE, LATER, PAUSE, question, row_of
from drom.agent.model.core_use import CoreUse, NodeUse, read_uses, write_use
from drom.agent.model.slurm_values import free_text
from drom.agent.node.batch_use import NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from drom.agent.execution.slurm_commands import Steps
    from drom.agent.execution.slurm_rows import SlurmNode
    from drom.agent.node.batch_use import BatchUse
    from drom.agent.observe.log import Log

SETTLE = 2.0
"""Seconds from a change of a job's cores until it is written: more changes often follow at once, or the job's end."""
TURN = 2.0
"""Seconds between two nodes of a job."""
MOST_NODES = 64
"""Nodes of a job that write into its comment: its first ones."""
MOST_GAP = 60.0
"""The most seconds between two words of a job on a node: the more it has written, the longer it waits."""
_FINISHED = "already finished"
"""What scontrol says of jobs that have ended."""
_RUNNING = ("RUNNING", "SUSPENDED")


@dataclass(slots=True)
class _Comment:
    """What was written for a job: its cores; `since` when these are no more (None: they are), and its place."""

    written: CoreUse | None = None
    word: NodeUse | None = None
    """The word that was written, as it is read."""
    since: float | None = None
    place: int | None = None
    """The number of this node among those of the job, from 0; None before Slurm was asked."""
    check_at: float | None = None
    """When to look whether the word is still there."""
    words: int = 0
    """How many words were written."""
    next_at: float = 0.0
    """When the next change may be written, so that a job cannot flood Slurm by changes."""
    retry_at: float = 0.0


class SlurmComments:
    """The comments of the jobs on the node `here`; `use` is what they have used."""

    def __init__(self, use: BatchUse, log: Log, here: SlurmNode) -> None:
        self._use = use
        self._log = log
        self._here = here
        self._comments: dict[str, _Comment] = {}
        self._before: dict[str, CoreUse] = {}
        """What jobs had used by their words before this agent counted."""
        self._over: set[str] = set()
        """Jobs that have ended, or do not write."""

    def due(self, now: float) -> Iterator[str]:
        """Yield the jobs with other cores than their comments have, and those with comments to be checked."""
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
            is_changed = known.since is not None and now >= max(known.since + waits, known.next_at)
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
            answer = yield question(number, "State", "NodeList", "admin_comment")
        except SlurmError as error:
            if GONE not in str(error):
                raise
            answer = ""
        row = row_of(answer, number, 3)
        state, nodes, comment = row.fields if row else ("", "", "")
        known.check_at = None
        self._here.tell_if_absent(name, nodes, self._use.present)
        place, count = self._here.place(nodes)
        if row is None or state not in _RUNNING or place is None or place >= MOST_NODES:
            self._leave(name, now)
            return
        if known.place is None:
            known.place = place
            self._before.setdefault(name, self._earlier_use(name, comment))
            if place:  # after the nodes before this one
                return
        cores = self._cores(name)
        if cores == known.written and read_uses(comment).get(self._here.name) == known.word:
            return  # no other node has written at the same time, with what the comment had said before
        use = NodeUse(time.time(), self._total(name), cores)
        words = write_use(free_text(comment), self._here.name, use)
        try:
            yield ("scontrol", "update", f"jobid={row.job}", f"admincomment={words}")
        except SlurmError as error:
            if _FINISHED not in str(error):
                raise
        known.written, known.word = cores, read_uses(words)[self._here.name]
        known.words += 1
        known.next_at = now + min(MOST_GAP, SETTLE * known.words)
        known.check_at = now + TURN * (min(count, MOST_NODES) + 1) if count > 1 else None

    def _cores(self, name: str) -> CoreUse:
        return self._use.present.get(name, NOTHING).cores

    def _earlier_use(self, name: str, comment: str) -> CoreUse:
        """Return what a job had used before this agent, which has begun with the cores of its last word or later."""
        word = read_uses(comment).get(self._here.name)
        if not word:
            return CoreUse()
        return word.until(time.time() - self._use.seconds) if name in (self._use.adopted or ()) else word.total

    def _total(self, name: str) -> CoreUse:
        return self._use.total.get(name, NOTHING).cores.plus(self._before.get(name, CoreUse()), 1)

    def _leave(self, name: str, now: float) -> None:
        """Write no more for a job that has left this node; look later at one that is here, but not by Slurm's list."""
        if name in self._use.present:
            self._comments[name].retry_at = now + LATER
            return
        del self._comments[name]
        self._over.add(name)
        total = self._total(name)._asdict()
        self._log("slurm_use", job=name, **{f"{what}_core_s": round(seconds, 1) for what, seconds in total.items()})
