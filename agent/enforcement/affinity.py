# SPDX-License-Identifier: Apache-2.0
"""Affinity of whole tasks: bind, confine and restore every thread of every process, to a fixed point.

A program may create threads and processes during a walk, so each operation searches for the processes again and walks
until a pass finds nothing to change. A thread that a pass left unchanged is not checked again. Masks are over OS CPU
numbers.
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
"""Maps the present mask of a thread to its new mask, or to None if the thread keeps its mask."""
Part = Callable[[K, int, int, int, int], int]
"""Maps the task, process, id and present mask of a thread, and the mask its rule returned, to the thread's new mask."""

MAX_PASSES = 64
"""Maximum number of walks over a program that keeps changing its masks."""
FEW_PASSES = 3
"""The same if another check follows soon anyway, or if the passes have taken `PATIENCE`."""
PATIENCE = 0.2
"""Seconds of CPU time."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome for the threads of one task.

    changed: threads that got another mask; kept: threads left unchanged, or with all CPUs that the kernel grants of it;
    denied: threads of a user whom the agent may not bind (EPERM); invalid: threads that may use no CPU of the mask
    (EINVAL). settled: whether the last of the `passes` walks found nothing left to change.
    """

    changed: int
    kept: int
    denied: int
    invalid: int
    passes: int
    settled: bool

    @property
    def failed(self) -> bool:
        """Whether a thread may run on CPUs other than the intended ones."""
        return self.denied > 0 or self.invalid > 0 or not self.settled


def to(mask: int) -> Rule:
    """Return the rule that gives every thread exactly the CPUs in `mask`."""
    return lambda now: mask if now != mask else None


def within(mask: int) -> Rule:
    """Return the rule that gives `mask` to threads that may run outside it; others keep their part of it."""
    return lambda now: mask if now & ~mask else None


def instead_of(old: Collection[int], mask: int) -> Rule:
    """Return the rule that gives `mask` to threads with one of the masks in `old`; all other threads keep theirs."""
    return lambda now: mask if now in old and now != mask else None


def bind(find: Callable[[], Collection[int]], mask: int, proc: str = "/proc") -> Result:
    """Give every thread exactly the CPUs in `mask`. `find` returns the pids."""
    return _walk(find, to(mask), proc)


def confine(find: Callable[[], Collection[int]], mask: int, proc: str = "/proc") -> Result:
    """Give `mask` to every thread that may run outside it; threads bound to a part of it are left alone."""
    return _walk(find, within(mask), proc)


def restore(find: Callable[[], Collection[int]], ours: int, before: int, proc: str = "/proc") -> Result:
    """Give `before` to every thread with a mask within `ours`; masks set by other programs are left alone."""
    return _walk(find, lambda now: before if now != before and not now & ~ours else None, proc)


def migrate_thread(tid: int, cpu: int, mask: int) -> bool:
    """Move a running thread to the OS CPU `cpu`, then restore `mask`, provided that its affinity is exactly `mask`.

    A sleeping thread stays where it is. Return False if `replace` does.
    """
    return replace(tid, mask, 1 << cpu) and replace(tid, 1 << cpu, mask)


def replace(tid: int, old: int, new: int) -> bool:
    """Give a thread the mask `new` if it has exactly `old`.

    Return False if the thread has another mask, may not be bound by the agent, or has ended.
    """
    try:
        if mask_of(os.sched_getaffinity(tid)) != old:
            return False
        os.sched_setaffinity(tid, cpus(new))
    except OSError:
        return False
    return True


def apply_rules(
    rules: Mapping[K, Rule],
    find: Callable[[Collection[K]], Mapping[K, Collection[int]]],
    proc: str = "/proc",
    *,
    most: int = MAX_PASSES,
    part: Part[K] | None = None,
) -> dict[K, Result]:
    """Apply to the threads of several tasks the rule of each task, in at most `most` passes.

    `find` returns the pids of all the tasks in one call. `part` returns the mask that a thread gets instead of the one
    its rule returned, from its task, process, id and present mask.
    """
    tallies = {key: _Progress() for key in rules}
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
class _Progress:
    seen: set[int] = field(default_factory=set)
    """Threads that their last visit left unchanged."""
    changed: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)
    denied: set[int] = field(default_factory=set)
    invalid: set[int] = field(default_factory=set)

    def visit(self, tid: int, wanted: Rule, part: Callable[[int, int, int], int] | None) -> bool:
        """Apply the rule to one thread, unless an earlier visit left it unchanged; return whether its mask changed."""
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
            # A part of the mask that a second call does not change is all that a cpuset or hotplug leaves.
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
        """Return the outcome for the threads."""
        return Result(
            changed=len(self.changed),
            kept=len(self.kept - self.changed),
            denied=len(self.denied),
            invalid=len(self.invalid),
            passes=passes,
            settled=settled,
        )


def _walk(find: Callable[[], Collection[int]], rule: Rule, proc: str) -> Result:
    return apply_rules({0: rule}, lambda _: {0: find()}, proc)[0]
