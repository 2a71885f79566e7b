# SPDX-License-Identifier: Apache-2.0
"""Affinity of whole tasks: bind, confine and restore every thread of every process, to a fixed point.

A program may create threads and processes while it is walked, so each operation looks for the processes anew and walks
until a pass finds nothing to change. A thread that a pass has left as it was is not looked at again. Masks are over OS
CPU numbers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from drom.agent.system.proc import threads

from dromlib.cpulist import cpus, mask_of

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping

K = TypeVar("K", bound="Hashable")
Rule = Callable[[int], "int | None"]
"""From the mask a thread has to the one it is to get, or None when it is to keep its own."""
Part = Callable[[K, int, int, int, int], int]
"""From the task, process, id and mask of a thread, and the one its rule says, to the one it is to get."""

MAX_PASSES = 64
"""Walks after which a program that goes on changing its masks is given up on."""
FEW_PASSES = 3
"""The same where another look comes soon anyway, or where passes have taken `PATIENCE`."""
PATIENCE = 0.2
"""Seconds of CPU time."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of the threads.

    changed: got another mask; kept: were left as they are, or have all of the mask that the kernel grants;
    denied: belong to a user we may not bind (EPERM); invalid: may use no CPU of the mask (EINVAL).
    settled: the last of the `passes` walks found nothing left to change.
    """

    changed: int
    kept: int
    denied: int
    invalid: int
    passes: int
    settled: bool

    @property
    def failed(self) -> bool:
        """Whether a thread may be elsewhere than it was to be."""
        return self.denied > 0 or self.invalid > 0 or not self.settled


def to(mask: int) -> Rule:
    """Every thread gets exactly the CPUs in `mask`."""
    return lambda now: mask if now != mask else None


def within(mask: int) -> Rule:
    """Threads that may run outside `mask` get it; those bound to a part of it are left alone."""
    return lambda now: mask if now & ~mask else None


def instead_of(old: Collection[int], mask: int) -> Rule:
    """Threads with just one of the masks in `old` get `mask`; those that somebody bound otherwise are left alone."""
    return lambda now: mask if now in old and now != mask else None


def bind(find: Callable[[], Collection[int]], mask: int, proc: str = "/proc") -> Result:
    """Give every thread exactly the CPUs in `mask`. `find` returns the pids."""
    return _walk(find, to(mask), proc)


def confine(find: Callable[[], Collection[int]], mask: int, proc: str = "/proc") -> Result:
    """Give `mask` to every thread that may run outside it; threads bound to a part of it are left alone."""
    return _walk(find, within(mask), proc)


def restore(find: Callable[[], Collection[int]], ours: int, before: int, proc: str = "/proc") -> Result:
    """Give `before` to every thread whose mask lies within `ours`; masks that somebody else has set are left alone."""
    return _walk(find, lambda now: before if now != before and not now & ~ours else None, proc)


def push(tid: int, cpu: int, mask: int) -> bool:
    """Have a thread that runs go on on the OS CPU `cpu`, if it may use just the CPUs in `mask`, as it may afterwards.

    One that sleeps stays where it is. False when it is bound otherwise, not ours to bind, or gone.
    """
    try:
        if mask_of(os.sched_getaffinity(tid)) != mask:
            return False
        os.sched_setaffinity(tid, {cpu})
        os.sched_setaffinity(tid, cpus(mask))
    except OSError:
        return False
    return True


def walk(
    rules: Mapping[K, Rule],
    find: Callable[[Collection[K]], Mapping[K, Collection[int]]],
    proc: str = "/proc",
    *,
    most: int = MAX_PASSES,
    part: Part[K] | None = None,
) -> dict[K, Result]:
    """Treat the threads of several tasks, each by its rule, in at most so many passes.

    `find` returns the pids of those asked for, all at once. `part` returns what a thread gets of the mask that its rule
    says, from its task, process, id and present mask.
    """
    tallies = {key: _Tally() for key in rules}
    moved = set(rules)
    passes = dict.fromkeys(rules, 0)
    until = time.thread_time() + PATIENCE
    while going := [key for key in rules if key in moved and passes[key] < most]:
        for key, pids in find(going).items():
            passes[key] += 1
            rule, tally, changed = rules[key], tallies[key], False
            for pid in pids:
                own = partial(part, key, pid) if part else None
                for tid in threads(pid, proc):
                    changed |= tally.visit(tid, rule, own)
            if not changed:
                moved.discard(key)
        if time.thread_time() >= until:
            most = min(most, FEW_PASSES)
    return {key: tally.result(passes[key], settled=key not in moved) for key, tally in tallies.items()}


@dataclass(slots=True)
class _Tally:
    seen: set[int] = field(default_factory=set)
    """Those that the last visit left as they were."""
    changed: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)
    denied: set[int] = field(default_factory=set)
    invalid: set[int] = field(default_factory=set)

    def visit(self, tid: int, wanted: Rule, part: Callable[[int, int, int], int] | None) -> bool:
        """Treat one thread, unless it has been left as it was; say whether that changed anything."""
        if tid in self.seen:
            return False
        if self._set(tid, wanted, part):
            self.changed.add(tid)
            return True
        self.seen.add(tid)
        return False

    def _set(self, tid: int, wanted: Rule, part: Callable[[int, int, int], int] | None) -> bool:
        try:
            before = mask_of(os.sched_getaffinity(tid))
            mask = wanted(before)
            if mask is not None and part:
                mask = part(tid, before, mask)
            if mask is None or mask == before:
                self.kept.add(tid)
                return False
            os.sched_setaffinity(tid, cpus(mask))
            # A part of what was asked, unmoved by asking again, is all that a cpuset or hotplug leaves.
            if not before & ~mask and mask_of(os.sched_getaffinity(tid)) == before:
                self.kept.add(tid)
                return False
        except ProcessLookupError:
            return False
        except PermissionError:
            self.denied.add(tid)
            return False
        except OSError:
            self.invalid.add(tid)
            return False
        return True

    def result(self, passes: int, *, settled: bool) -> Result:
        """Return what became of the threads."""
        return Result(
            changed=len(self.changed),
            kept=len(self.kept - self.changed),
            denied=len(self.denied),
            invalid=len(self.invalid),
            passes=passes,
            settled=settled,
        )


def _walk(find: Callable[[], Collection[int]], rule: Rule, proc: str) -> Result:
    return walk({0: rule}, lambda _: {0: find()}, proc)[0]
