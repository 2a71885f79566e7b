# SPDX-License-Identifier: Apache-2.0
"""Nodes that are turned off without jobs: the parameters, and for how long nodes were off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from drom.scheduler.engine.state import NOW, OFF_AFTER, OFF_TIME, WAKE_UP, WAKES, Sleep
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import NOBODY
from drom.workloads.choices import number, read_choices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drom.scheduler.engine.state import World

MOST = 31_536_000


def parse_sleep(said: Sequence[str]) -> Sleep | None:
    """Return when nodes are turned off from texts ``NAME=VALUE``; None if they stay on. Raises SchedulerError."""
    if not said:
        return None
    found = read_choices("--sleep", said, Sleep._fields, _value, SchedulerError)
    if "after" not in found:
        msg = "--sleep: after is missing: write for example --sleep after=600."
        raise SchedulerError(msg)
    return Sleep(found["after"], found.get("wake", 0))


def _value(_: str, text: str) -> tuple[int | None, str]:
    value = number(text)
    return (int(value) if 0 <= value <= MOST and value % 1 == 0 else None), f"a whole number of seconds up to {MOST:,}"


def sleep_of(world: World) -> Sleep | None:
    """Return when the nodes of a simulation are turned off; None if they stay on."""
    s = world.scalars
    return Sleep(int(s[OFF_AFTER]), int(s[WAKE_UP])) if len(world.empty_since) else None


def off_seconds(world: World) -> int:
    """Return for how many node seconds nodes were off up to the last event."""
    if not len(world.empty_since):
        return 0
    empty = (world.nodes.resident[:, 0] == NOBODY) & (world.nodes.up == 1)
    off = world.scalars[NOW] - world.empty_since[empty] - world.scalars[OFF_AFTER]
    return int(world.scalars[OFF_TIME] + np.maximum(off, 0).sum())


def figures(world: World) -> dict[str, Any] | None:
    """Return for how long nodes were off, and how often one was turned on again; None if nodes stay on."""
    if not len(world.empty_since):
        return None
    return {"node_seconds_off": off_seconds(world), "wakes": int(world.scalars[WAKES])}
