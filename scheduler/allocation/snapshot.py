# SPDX-License-Identifier: Apache-2.0
"""The waiting and running jobs of a live cluster at one second, and a planner's answer. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from drom.scheduler.allocation.backfill import Held, Requests
    from drom.scheduler.interface import Ints


class Snapshot(NamedTuple):
    """What is asked: the jobs that wait, all of which fit on the empty nodes, and what running jobs hold.

    `numbers` are those of the waiting jobs, in the order of submission, and `expected` the waits that they expect, in
    seconds; `requests.kind` are rows of `suited`, which lists nodes by preference, then NOBODY. `capacity` has shape
    ``(nodes, resources)``.
    """

    now: int
    capacity: Ints
    suited: Ints
    numbers: list[int]
    submitted: Ints
    expected: Ints
    requests: Requests
    held: Held


class PlannedStarts(NamedTuple):
    """The answer: planned starts by job, NEVER without one, and their units by node for those that have one.

    `by_rule`: a rule has decided. `seconds` is the CPU time that it took.
    """

    starts: dict[int, int]
    units: dict[int, dict[int, int]]
    by_rule: bool = False
    seconds: float = 0.0
