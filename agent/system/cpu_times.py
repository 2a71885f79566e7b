# SPDX-License-Identifier: Apache-2.0
"""The CPU time that processes, threads and CPUs have used, as ``/proc`` counts it: in clock ticks, or nanoseconds.

psutil lists CPUs by place instead of number, which differ if one is offline, has neither nanoseconds nor the CPU of a
thread, and reads ``/proc`` several times where one pass is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from drom.agent.system import proc as processes

if TYPE_CHECKING:
    from collections.abc import Collection

    from drom.agent.system.proc import Identity, Stat


@dataclass(frozen=True, slots=True)
class Times:
    """CPU time that every process has used, in clock ticks, and each one's parent."""

    ticks: dict[Identity, int]
    _stats: dict[int, Stat]

    def below(self, roots: Collection[Identity]) -> set[int]:
        """Return the pids of `roots` and their descendants."""
        stats = self._stats
        alive = {who.pid for who in roots if who.pid in stats and stats[who.pid].start_time == who.start_time}
        return {pid for pid, owner in processes.nearest_roots(stats, alive).items() if owner}


def scan_times(proc: str = "/proc") -> Times:
    """Return the CPU time of every process; those that end meanwhile are left out."""
    texts = {pid: _text(f"{proc}/{pid}/stat") for pid in processes.numbers(proc)}
    stats = {pid: stat for pid, text in texts.items() if (stat := processes.parse_stat(text))}
    ticks = {processes.Identity(pid, stat.start_time): _ticks(texts[pid]) for pid, stat in stats.items()}
    return Times(ticks, stats)


def thread_times(pid: int, proc: str = "/proc") -> dict[int, int]:
    """Return the CPU time each thread of a process has used, in clock ticks, by thread id."""
    texts = {tid: _text(f"{proc}/{pid}/task/{tid}/stat") for tid in processes.threads(pid, proc)}
    return {tid: _ticks(text) for tid, text in texts.items() if processes.parse_stat(text)}


class Thread(NamedTuple):
    """A thread: its last OS CPU, whether it is running or runnable, and the nanoseconds of CPU time it has used."""

    cpu: int
    runs: bool
    used: int


def of_threads(pid: int, proc: str = "/proc") -> dict[int, Thread]:
    """Return the threads of a process by thread id; those that end meanwhile are left out (proc(5): fields 3, 39)."""
    found = {}
    for tid in processes.threads(pid, proc):
        fields = _text(f"{proc}/{pid}/task/{tid}/stat").rpartition(")")[2].split()
        used = _text(f"{proc}/{pid}/task/{tid}/schedstat").split()
        if len(fields) > 36 and used:
            found[tid] = Thread(int(fields[36]), fields[0] == "R", int(used[0]))
    return found


def _ticks(text: str) -> int:
    """Return user and system time in the text of a stat that `parse_stat` accepts (proc(5), fields 14 and 15)."""
    fields = text.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def parse_proc_stat(text: str) -> dict[int, tuple[int, int]]:
    """Return (busy, total) clock ticks since boot of each OS CPU in the text of ``/proc/stat``.

    Busy is all time but idle and I/O wait. The time of guests is part of user time and not counted twice.
    """
    times = {}
    for line in text.splitlines():
        name, *fields = line.split() or [""]
        if name[:3] == "cpu" and name[3:].isdecimal() and len(fields) >= 5:
            ticks = [int(value) for value in fields[:8]]
            times[int(name[3:])] = (sum(ticks) - ticks[3] - ticks[4], sum(ticks))
    return times


def of_cpus(proc: str = "/proc") -> dict[int, tuple[int, int]]:
    """Return (busy, total) clock ticks since boot of each OS CPU; empty if the kernel does not report them."""
    return parse_proc_stat(_text(f"{proc}/stat"))


def _text(path: str) -> str:
    return (processes.read(path) or b"").decode(errors="replace")
