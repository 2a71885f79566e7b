# SPDX-License-Identifier: Apache-2.0
"""A grant: the CPUs that a program has to use from now on."""

from __future__ import annotations

from enum import Enum


class Reason(str, Enum):
    """Why a grant was published: enum drom_reason of drom.h, in its order. Each equals its word, and prints as it."""

    NONE = "none"
    ARRIVAL = "arrival"
    """The task itself has arrived."""
    SHARE = "share"
    """Another task has arrived."""
    RETURN = "return"
    """Cores return to their owner."""
    ORDER = "order"
    """A user or a scheduler has ordered it."""
    DEATH = "death"
    """A task that ended has left cores."""
    RETIRED = "retired"
    """The agent manages the task no longer."""
    AVOID = "avoid"
    """Cores may not, or should not, be used any longer."""
    WISH = "wish"
    """A program has reported what it can use."""

    __str__ = str.__str__
    __repr__ = str.__repr__

    def __format__(self, format_spec: str) -> str:
        return format(self.value, format_spec)


_REASONS = tuple(Reason)


class Grant:
    """The grant of the agent at the moment it was taken; immutable.

    `cpus` are OS CPU numbers, ascending. `reason`, a `Reason`, is why it was published. `epoch` is its number, larger
    than that of every grant before it. If `emulated`, the CPUs are synthetic and no thread is bound to them. Any thread
    may read a grant.

    Raises ValueError for a reason that is not a word of `Reason`.
    """

    __slots__ = ("cpus", "emulated", "epoch", "reason")

    def __init__(self, epoch: int, cpus: tuple[int, ...], reason: str, *, emulated: bool = False) -> None:
        self.epoch = epoch
        self.cpus = cpus
        self.reason = Reason(reason)
        self.emulated = emulated

    @classmethod
    def from_raw(cls, epoch: int, cpus: tuple[int, ...], reason: int, emulated: bool) -> Grant:  # noqa: FBT001 - from C
        """Return the grant from the values of libdrom, where `reason` is a number; an unknown one becomes "none"."""
        return cls(epoch, cpus, _REASONS[reason if reason < len(_REASONS) else 0], emulated=emulated)

    @property
    def ncpus(self) -> int:
        """The number of CPUs in the grant: the number of threads to use."""
        return len(self.cpus)

    @property
    def numa_nodes(self) -> tuple[int, ...]:
        """The OS NUMA nodes of its CPUs, ascending, read now; empty when the CPUs are synthetic."""
        return () if self.emulated else numa_nodes(self.cpus)

    def __repr__(self) -> str:
        return f"Grant(epoch={self.epoch}, cpus={self.cpus}, reason={self.reason!r})"


def numa_nodes(cpus: tuple[int, ...], root: str = "/sys") -> tuple[int, ...]:
    """Return the OS NUMA nodes of OS CPUs according to sysfs below `root`; (0,) if it has none.

    A node whose file cannot be read or parsed is skipped: some containers hide it, and nodes may be removed.
    """
    from contextlib import suppress
    from pathlib import Path

    from dromlib.cpulist import mask_of, parse_cpulist

    wanted = mask_of(cpus)
    nodes = {}
    for path in Path(root).glob("devices/system/node/node[0-9]*/cpulist"):
        with suppress(OSError, ValueError):
            nodes[int(path.parent.name[4:])] = parse_cpulist(path.read_text(encoding="ascii").strip())
    return tuple(sorted(node for node, mask in nodes.items() if mask & wanted)) if nodes else (0,)
