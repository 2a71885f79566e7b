# SPDX-License-Identifier: Apache-2.0
"""Assigns processes to tasks, at one moment."""

from __future__ import annotations

import os
import sys
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from drom.agent.system.proc import (
    Identity,
    Stat,
    environment,
    memory_image,
    nearest_roots,
    owner,
    read_stat,
    task_in_environment,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

BUDGET = 1 << 22
"""Bytes of environments that are read per user in one scan; a small environment counts as a page."""
_PAGE = 4096
_CHECK = BUDGET // 64
"""Bytes that a check for a changed executable counts: it is rare, and takes as long as a small environment."""


class _Seen(NamedTuple):
    """The stat of a process, with the inode numbers of its folder and of its parent's (0: none)."""

    inode: int
    parent: int
    stat: Stat


class ProcScanner:
    """The stat of every process below `proc`; only stats that may have changed since the last call are read.

    The folder of a process has an inode of its own for as long as the process lives, and listing ``/proc`` returns it.
    A process gets another parent only when its parent has ended. State letters are those at the time of reading.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._seen: dict[int, _Seen] = {}

    def take(self) -> dict[int, Stat]:
        """Return the stats by pid, without processes that end meanwhile."""
        with os.scandir(self._proc) as entries:
            inodes = {int(entry.name): entry.inode() for entry in entries if entry.name.isdecimal()}
        same = {
            pid: seen
            for pid, seen in self._seen.items()
            if seen.inode == inodes.get(pid) and seen.parent == inodes.get(seen.stat.ppid, 0)
        }
        fresh = {pid: stat for pid in inodes.keys() - same.keys() if (stat := read_stat(pid, self._proc))}
        read = {pid: _Seen(inodes[pid], inodes.get(stat.ppid, 0), stat) for pid, stat in fresh.items()}
        self._seen = same | read
        return {pid: seen.stat for pid, seen in self._seen.items()}


class _Named(NamedTuple):
    """The task named in the environment of a process, with its start time, its user, and its executed program."""

    start_time: int
    user: int
    image: tuple[bytes, ...]
    task: Identity | None


class EnvironmentTags:
    """The tasks that processes below `proc` name in their environment (``DROM_TASK``).

    An environment is read once, and again after its process has executed another program. The amount read per user in
    one scan is bounded, so that no user can delay the agent: the rest is read in the next scans.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._known: dict[int, _Named] = {}
        """The known processes, by pid; the one read last comes last."""

    def look(
        self, pids: Collection[int], stats: Mapping[int, Stat], users: Collection[int]
    ) -> tuple[dict[int, tuple[Identity, int]], set[int]]:
        """Return the task that each of `pids` names, and its user, if it is one of `users` and names any.

        Also return the users some of whose processes have not been read yet.
        """
        self._known = {
            pid: known
            for pid, known in self._known.items()
            if pid in stats and stats[pid].start_time == known.start_time
        }
        theirs, left, unread = set(pids), dict.fromkeys(users, BUDGET), set()
        fresh = sorted(theirs - self._known.keys(), key=lambda pid: stats[pid].start_time)
        for pid in [*fresh, *(pid for pid in self._known if pid in theirs)]:
            known = self._known.get(pid)
            user = known.user if known else owner(pid, self._proc)
            if user in left and left[user] > 0:
                left[user] -= self._see(pid, user, stats[pid].start_time)
            elif user in left and not known:
                unread.add(user)
        named = {pid: self._known[pid] for pid in theirs if pid in self._known}
        return {pid: (one.task, one.user) for pid, one in named.items() if one.task and one.user in users}, unread

    def _see(self, pid: int, user: int | None, start_time: int) -> int:
        """Read the task that a process names, unless it is known and unchanged; return the bytes used of the budget."""
        known, executes = self._known.pop(pid, None), memory_image(pid, self._proc)
        user = owner(pid, self._proc) if known else user
        if user is None:
            return _CHECK
        if known and (known.user, known.image) == (user, executes):
            self._known[pid] = known
            return _CHECK
        entries = environment(pid, self._proc)
        self._known[pid] = _Named(start_time, user, executes, task_in_environment(entries))
        return max(_PAGE, sum(map(len, entries)))


class TaskProcesses:
    """All processes in `stats`, assigned to `tasks`, a mapping from the first process of each task to its user.

    Processes that were seen in a task stay in it when their parents end, whichever user owns them: `before` is the
    previous census, if there was one.
    """

    def __init__(
        self,
        tasks: Mapping[Identity, int],
        stats: Mapping[int, Stat],
        marks: EnvironmentTags,
        before: TaskProcesses | None = None,
    ) -> None:
        self._tasks = tasks
        self._stats = stats
        self._living = {who for who in tasks if who.pid in stats and stats[who.pid].start_time == who.start_time}
        roots = {who.pid for who in self._living}
        owners = nearest_roots(stats, roots)
        strays, self._orphans = self._stray_processes(owners), dict[Identity, list[int]]()
        for pid in strays if before else ():
            task = before and before.task_of(Identity(pid, stats[pid].start_time))
            if task and task in tasks:
                self._orphans.setdefault(task, []).append(pid)
        seen = {pid for pids in self._orphans.values() for pid in pids}
        named, self.unread = marks.look([pid for pid in strays if pid not in seen], stats, set(tasks.values()))
        for pid, (task, uid) in named.items():
            if tasks.get(task) == uid and self._is_orphan(stats[pid], task):
                self._orphans.setdefault(task, []).append(pid)
        self._owners = nearest_roots(stats, roots.union(*self._orphans.values())) if self._orphans else owners

    def task_of(self, who: Identity) -> Identity | None:
        """Return the first process of the task that a process belonged to in this census, or None."""
        stat = self._stats.get(who.pid)
        root = self._owners.get(who.pid, 0) if stat and stat.start_time == who.start_time else 0
        return self._firsts.get(root)

    @cached_property
    def _firsts(self) -> dict[int, Identity]:
        """The first process of the task of each first process that lives, and of each orphan."""
        orphans = {pid: task for task, pids in self._orphans.items() for pid in pids}
        return orphans | {who.pid: who for who in self._living}

    @cached_property
    def _below(self) -> dict[int, list[int]]:
        """Each first process and orphan with its descendants; key 0 has all other processes."""
        found: dict[int, list[int]] = {}
        for pid, root in self._owners.items():
            found.setdefault(root, []).append(pid)
        return found

    def processes(self, first: Identity) -> set[int]:
        """Return the pids of the task with the first process `first`, one of those the census was taken for.

        They are its descendants, and orphans with their descendants: processes whose parent is outside every task and
        that were seen in this one before, or belong to its user, started no earlier than the task, and have its
        ``DROM_TASK`` in their environment. Nothing below the first process of another task belongs to it. There may be
        more processes if its user is one of `unread`.
        """
        mine = set(self._below[first.pid]) if first in self._living else set()
        return mine.union(*(self._below[orphan] for orphan in self._orphans.get(first, ())))

    def _stray_processes(self, owners: Mapping[int, int]) -> list[int]:
        """Return the pids of possible orphans of tasks: young enough, outside every task, with an adopting parent."""
        stats, dead = self._stats, self._tasks.keys() - self._living
        adopting = _ancestors(stats, (who.pid for who in self._living))
        latest = max((who.start_time for who in dead), default=-1)
        first = min((who.start_time for who in self._tasks), default=sys.maxsize)
        return [
            pid
            for pid, stat in stats.items()
            if stat.start_time >= first
            and not owners[pid]
            and not owners.get(stat.ppid, 0)
            and (stat.ppid in adopting or (stat.ppid in stats and stats[stat.ppid].start_time <= latest))
        ]

    def _is_orphan(self, stat: Stat, task: Identity) -> bool:
        """Return whether a process that names a task is no older than it, and its parent adopts orphans of that task.

        These are adopted by ancestors of the task or, once its first process has ended, by any process at least as old.
        """
        if stat.start_time < task.start_time:
            return False
        if task in self._living:
            return stat.ppid in _ancestors(self._stats, {task.pid})
        return stat.ppid in self._stats and self._stats[stat.ppid].start_time <= task.start_time


def _ancestors(stats: Mapping[int, Stat], pids: Iterable[int]) -> set[int]:
    """Return process 1 and the ancestors of `pids`."""
    found = {1}
    for pid in pids:
        at = stats[pid].ppid
        while at in stats and at not in found:
            found.add(at)
            at = stats[at].ppid
    return found
