# SPDX-License-Identifier: Apache-2.0
"""What a change of processors or nodes costs a job: time without progress, in millionths of a second."""

from __future__ import annotations

from drom.scheduler.interface import MILLION, lean

STALL, MEMORY, BANDWIDTH = 0.013, 1000.0, 145.0
"""Seconds of any change, megabytes of data of a job on each of its nodes, and megabytes per second that a node sends or
receives. With the first and the last a change costs more than on the line through the measured ones
(docs/adaptive.md); the second is an assumption.
"""
LONGEST = 86_400
"""The most seconds of a term of the cost."""


@lean
def change_cost(fixed: int, transfer: int, before: int, after: int) -> int:
    """Return ``fixed + transfer * max(1 / large, 1 / small - 1 / large)`` for a change from `before` to `after`.

    `transfer` is the time to send all data of a job through one link, and `fixed` that of any change, in millionths of
    a second. The last factor is the share of the data that the busiest processor sends or receives when the data lie
    evenly before and after: one of those that are vacated or added, or one of those that stay.
    """
    small, large = min(before, after), max(before, after)
    return int(fixed + max(transfer // large, transfer // small - transfer // large))


@lean
def seconds_of(millionths: int) -> int:
    """Return whole seconds, rounded up."""
    return int(-(-millionths // MILLION))
