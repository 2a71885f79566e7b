# SPDX-License-Identifier: Apache-2.0
"""Partitions: named sets of nodes with limits for the jobs that run there. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drom.agent.text import counted, duration
from drom.scheduler.errors import SchedulerError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from drom.scheduler.live.cluster.jobs import Node
    from drom.scheduler.live.cluster.spec import Spec

EXPECTED_WAIT = 3600
"""The expected wait of a job, in seconds, unless its partition has another."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A set of nodes: those in `nodes` (empty: all) that have all `features`. Times are in seconds; 0: no limit.

    Jobs without a time limit have `default_time`; fillers may run for any time. `priority` is added to that of each
    job. Users with a uid in `users` or a gid in `groups` may use it; all may if both are empty. Jobs that name no
    partition go to the one with `default`. Policy `cp` divides the waits of its jobs by `expected_wait`.
    """

    name: str
    nodes: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()
    max_time: int = 0
    default_time: int = 0
    max_nodes: int = 0
    priority: int = 0
    users: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()
    default: bool = False
    expected_wait: int = EXPECTED_WAIT

    def has(self, node: Node) -> bool:
        """Return whether a node belongs to it."""
        return (not self.nodes or node.name in self.nodes) and self.features.issubset(node.features)

    @property
    def is_open(self) -> bool:
        """Whether all users may use it."""
        return not self.users and not self.groups

    def limit(self, usual: int) -> int:
        """Return the time limit of jobs that ask for none, which is `usual` outside of partitions."""
        limit = self.default_time or usual
        return min(limit, self.max_time) if self.max_time else limit

    def check(self, spec: Spec) -> None:
        """Raise SchedulerError for a job beyond its limits."""
        if self.max_time and spec.time > self.max_time and not spec.saving:
            asks, most, option = duration(spec.time), duration(self.max_time), "--time"
        elif self.max_nodes and (nodes := spec.nodes or spec.ranks) > self.max_nodes:  # a task may be on each node
            asks, most, option = counted(nodes, "node"), counted(self.max_nodes, "node"), "--nodes"
        else:
            return
        allows = f"the job asks for {asks}, and partition {self.name} allows {most}"
        msg = f"{allows}: request less with {option}, or another --partition."
        raise SchedulerError(msg)


def partition_of(name: str, partitions: Collection[Partition]) -> Partition | None:
    """Return the partition of a job that names it, or names none; None if there are no partitions.

    Raises SchedulerError if there is no such partition.
    """
    names = ", ".join(one.name for one in partitions)
    found = next((one for one in partitions if (one.name == name if name else one.default)), None)
    if found or (not name and not partitions):
        return found
    if not name:
        msg = f"the job names no partition, and none is the default: choose --partition from {names}."
        raise SchedulerError(msg)
    choose = f"choose from {names}" if partitions else "there are none here, so omit --partition"
    msg = f"there is no partition {name[:64]}: {choose}."
    raise SchedulerError(msg)


def names_of(node: Node, partitions: Iterable[Partition]) -> list[str]:
    """Return the names of the partitions to which a node belongs."""
    return [one.name for one in partitions if one.has(node)]
