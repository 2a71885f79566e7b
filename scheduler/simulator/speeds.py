# SPDX-License-Identifier: Apache-2.0
"""Nodes of several speeds, as ``SPEED=NODES``; those that are not named have speed 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.engine.state import ALIKE, SPEED_UNIT
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import NEVER
from drom.scheduler.simulator.partitions import NODE_LIST, spans_of
from drom.workloads.choices import number
from drom.workloads.errors import short

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drom.scheduler.interface import Ints
    from drom.workloads.workload import Workload

Speeds = tuple[tuple[float, str], ...]
"""Speeds, and the texts of the nodes that have them."""

SLOWEST, FASTEST = 0.01, 100


def parse_speeds(texts: Iterable[str]) -> Speeds:
    """Return speeds, rounded to 1 / SPEED_UNIT, from ``0.8=64-95``. Raises SchedulerError for any other text."""
    found = []
    for text in texts:
        speed, _, nodes = text.partition("=")
        if not (SLOWEST <= number(speed) <= FASTEST and NODE_LIST.fullmatch(nodes)):
            example = f"a speed from {SLOWEST} to {FASTEST} and its nodes, such as 0.8=64-95,120"
            msg = f"--speed {short(text)}: write {example}."
            raise SchedulerError(msg)
        found.append((round(number(speed) * SPEED_UNIT) / SPEED_UNIT, nodes))
    return tuple(found)


def speed_of_nodes(speeds: Speeds, nodes: int, work: Workload) -> Ints:
    """Return the speed of each node, as `World.node_speed`; empty if none is given.

    Raises SchedulerError for nodes that do not exist or have two speeds, and for jobs that are too large.
    """
    if not speeds:
        return ALIKE
    found = np.zeros(nodes, np.int64)
    for speed, text in speeds:
        for low, high in spans_of(text, nodes, f"--speed {speed:g}"):
            if found[low : high + 1].any():
                msg = f"--speed {speed:g}: a node among {low}-{high} already has a speed: name each node once."
                raise SchedulerError(msg)
            found[low : high + 1] = round(speed * SPEED_UNIT)
    found[found == 0] = SPEED_UNIT
    largest = float((work.allocated.astype(np.float64) * work.run_time).max(initial=0))
    if largest * FASTEST * SPEED_UNIT >= NEVER:
        msg = f"--speed: a job of {largest:,.0f} core-seconds is more than can be counted: leave it out of the log."
        raise SchedulerError(msg)
    return found


def mean_speed(node_speed: Ints) -> float:
    """Return the mean speed of the nodes of a simulation."""
    return float(node_speed.mean()) / SPEED_UNIT if len(node_speed) else 1.0
