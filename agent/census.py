# SPDX-License-Identifier: Apache-2.0
"""Which of all processes belong to which task, at one moment."""

from __future__ import annotations

import os
from bisect import bisect_left
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agent.processes import Stat, environment, owners_of, read_stat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.processes import Identity


class _Seen(NamedTuple):
    """A process as it was read, with the inode numbers of its folder and of its parent's (0: none)."""

    inode: int
    parent: int
    stat: Stat


class Scan:
    """The stat of every process below `proc`, of which only what may have changed since the last time is read.

    The folder of a process has an inode of its own for as long as the process lives, and listing ``/proc`` tells it.
    A process has another parent only when its parent has ended. State letters are those of when a stat was read.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._seen: dict[int, _Seen] = {}

    def take(self) -> dict[int, Stat]:
        """Return the stats by pid; processes that end meanwhile are left out."""
        with os.scandir(self._proc) as entries:
            inodes = {int(entry.name): entry.inode() for entry in entries if entry.name.isdecimal()}
        before, self._seen = self._seen, {}
        for pid, inode in inodes.items():
            seen = before.get(pid)
            if seen is None or seen.inode != inode or seen.parent != inodes.get(seen.stat.ppid, 0):
                stat = read_stat(pid, self._proc)
                if stat is None:
                    continue
                seen = _Seen(inode, inodes.get(stat.ppid, 0), stat)
            self._seen[pid] = seen
        return {pid: seen.stat for pid, seen in self._seen.items()}


class Census:
    """All processes in `stats`, told apart by the tasks whose first processes are `firsts`."""

    def __init__(self, firsts: Iterable[Identity], stats: Mapping[int, Stat], proc: str = "/proc") -> None:
        self._proc = proc
        self._stats = stats
        self._roots = {who.pid for who in firsts if who.pid in stats and stats[who.pid].start_time == who.start_time}
        owners = owners_of(stats, self._roots)
        self._below = _by_owner(owners)
        strays = (pid for pid, stat in stats.items() if not owners[pid] and not owners.get(stat.ppid, 0))
        self._strays = sorted(strays, key=lambda pid: stats[pid].start_time)

    def processes(self, first: Identity, uid: int) -> set[int]:
        """Return the pids of the task whose first process is `first`, one of those the census was taken for.

        Those are its descendants, and orphans with their descendants: processes of user `uid` that started no earlier
        than the task, whose parent is outside every task, and whose environment holds its ``DROM_TASK``. Nothing below
        the first process of another task belongs to it.
        """
        stats = self._stats
        alive = first.pid in stats and stats[first.pid].start_time == first.start_time
        mine = set(self._below[first.pid]) if alive else set()
        no_earlier = bisect_left(self._strays, first.start_time, key=lambda pid: stats[pid].start_time)
        if strays := self._strays[no_earlier:]:
            reapers, mark = _reapers(stats, first), f"DROM_TASK={first}".encode()
            orphans = {p for p in strays if stats[p].ppid in reapers and _is_orphan(p, uid, mark, self._proc)}
            below = _by_owner(owners_of(stats, self._roots | orphans)) if orphans else {}
            mine = mine.union(*(below[orphan] for orphan in orphans))
        return mine


def _by_owner(owners: Mapping[int, int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for pid, owner in owners.items():
        found.setdefault(owner, []).append(pid)
    return found


def _reapers(stats: Mapping[int, Stat], identity: Identity) -> set[int]:
    """Return who may have adopted orphans of a task: its ancestors, or when it is gone whoever is as old as it."""
    root = stats.get(identity.pid)
    if root is None or root.start_time != identity.start_time:
        return {pid for pid, stat in stats.items() if stat.start_time <= identity.start_time}
    reapers, at = {1}, root.ppid
    while at in stats and at not in reapers:
        reapers.add(at)
        at = stats[at].ppid
    return reapers


def _is_orphan(pid: int, uid: int, mark: bytes, proc: str) -> bool:
    try:
        owned = Path(f"{proc}/{pid}").stat().st_uid == uid
    except OSError:
        return False
    return owned and mark in environment(pid, proc)
