# SPDX-License-Identifier: Apache-2.0
"""Partitions: the nodes on which the jobs of a partition of the log may run, as ``NUMBER=NODES``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import NOBODY
from drom.workloads.errors import counted, short

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from drom.scheduler.interface import Ints
    from drom.workloads.workload import Workload

NODE_LIST = re.compile(r"\d{1,8}(?:-\d{1,8})?(?:,\d{1,8}(?:-\d{1,8})?)*")
"""Nodes as text, such as 0-99,120."""
Partitions = tuple[tuple[int, str], ...]
"""The partitions' numbers in the log, and the texts of their nodes."""


def parse_partitions(texts: Iterable[str]) -> Partitions:
    """Return partitions from ``2=0-99,120``. Raises SchedulerError for any other text and for a repeated number."""
    found: dict[int, str] = {}
    for text in texts:
        match = re.fullmatch(rf"(\d{{1,15}})=({NODE_LIST.pattern})", text)
        if not match:
            msg = f"{short(text)} is not a partition: write its number in the log and its nodes, such as 2=0-99,120."
            raise SchedulerError(msg)
        if int(match[1]) in found:
            msg = f"Partition {match[1]} is given twice: write all its nodes at once, such as {match[1]}=0-99,120."
            raise SchedulerError(msg)
        found[int(match[1])] = match[2]
    return tuple(found.items())


def nodes_of_partitions(partitions: Partitions, nodes: int) -> Ints:
    """Return a row per partition with 1 for each of its nodes. Raises SchedulerError for nodes that do not exist."""
    allowed = np.zeros((len(partitions), nodes), np.int64)
    for row, (number, text) in zip(allowed, partitions, strict=True):
        for low, high in spans_of(text, nodes, f"Partition {number}"):
            row[low : high + 1] = 1
    return allowed


def spans_of(text: str, nodes: int, what: str) -> Iterator[tuple[int, int]]:
    """Yield the first and the last node of each part of a NODE_LIST. Raises SchedulerError for nodes that do not exist.

    `what` begins its sentence.
    """
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not low <= high < nodes:
            msg = f"{what}: {part} is not among nodes 0-{nodes - 1}, the lower number first."
            raise SchedulerError(msg)
        yield low, high


def partition_of_jobs(partitions: Partitions, allowed: Ints, work: Workload, need: Ints) -> Ints:
    """Return the row of each job's partition; NOBODY for a job of any other partition, which may use all nodes.

    `need` are the numbers of nodes of jobs. Raises SchedulerError for a job of more nodes than its partition has.
    """
    rows = np.full(len(work), NOBODY, np.int64)
    for row, (number, _) in enumerate(partitions):
        mine = work.partition == number
        rows[mine] = row
        large = np.flatnonzero(mine & (need > allowed[row].sum()))
        if len(large):
            asked = counted(int(need[large[0]]), "node")
            msg = f"{work.place(large[0])} asks for {asked}: partition {number} has {allowed[row].sum()}; leave it out."
            raise SchedulerError(msg)
    return rows
