# SPDX-License-Identifier: Apache-2.0
"""Backfilling as in Slurm's plug-in sched/backfill.

Every `interval` seconds, if anything has happened since, the first `depth` jobs of the queue are planned anew, in
order: each starts now if that delays no reservation made before it, otherwise it gets a reservation at the earliest
time, unless that lies more than `window` ahead. Both ends of a reservation are rounded down to `resolution`. Passes are
at `phase` + k * `interval`. With `main` 1 the heads of the queue also start at each event while they fit, as in Slurm's
main scheduler. Defaults are those of slurm.conf(5), bf_interval and so on. Reservations are numbers of nodes or,
with `reservations` nodes, sets of them as in Slurm; then jobs keep to their partitions and, with `contiguous` 1, to
consecutive nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.interface import NEVER, Actions, Event, Floats, State, lean, routine
from drom.scheduler.policies.backfill import (
    Plan,
    get_start,
    reserve_for,
    smallest_from,
    start_heads,
    start_now,
    table_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drom.scheduler.interface import Ints
    from drom.scheduler.policies.timetable import Timetable

OPTIONS = {
    "interval": 30,
    "depth": 100,
    "window": 86400,
    "resolution": 60,
    "phase": 0,
    "main": 0,
    "reservations": 0,
    "contiguous": 0,
}
WORDS: dict[str, dict[str, float]] = {"reservations": {"counts": 0, "nodes": 1}}
INTERVAL, DEPTH, WINDOW, RESOLUTION, PHASE, MAIN, RESERVATIONS, CONTIGUOUS = range(8)


def check(options: Mapping[str, float]) -> str:
    """Return what is wrong with the parameters; empty if nothing is."""
    if options["contiguous"] and not options["reservations"]:
        return "contiguous=1 needs reservations=nodes."
    return check_backfilling(options)


def check_backfilling(options: Mapping[str, float]) -> str:
    """Return what is wrong with the parameters that `sd` shares; empty if nothing is."""
    if options["reservations"] not in {0, 1}:
        return f"reservations is counts or nodes, not {options['reservations']:g}."
    for name in ("main", "contiguous"):
        if options[name] not in {0, 1}:
            return f"{name} is 0 or 1."
    for name in ("interval", "depth", "window", "resolution", "phase"):
        value, least = options[name], 0 if name == "phase" else 1
        if not least <= value <= 1e9 or value != int(value):
            return f"{name} is a whole number from {least} to 1000000000, not {value:g}."
    return ""


def decide(state: State, _event: Event, options: Floats, actions: Actions) -> int:
    """Make a pass when one is due; between passes wait for the next one."""
    interval, started = int(options[INTERVAL]), 0
    since = (state.now - int(options[PHASE])) % interval
    if since == 0:
        make_pass(state, options, actions)
        return NEVER
    if options[MAIN] > 0:
        started = start_heads(state, int(options[RESERVATIONS]), int(options[CONTIGUOUS]), actions)
    return int(state.now - since + interval) if started < len(state.queue) else NEVER


@routine
def make_pass(state: State, options: Floats, actions: Actions) -> None:
    """Plan the first `depth` jobs."""
    queue, least = state.queue[: int(options[DEPTH])], np.empty(len(state.queue), np.int64)
    smallest_from(state, queue, least)
    if len(queue) == 0 or state.free < least[0]:
        return
    table = table_of(state, int(options[RESERVATIONS]), len(queue))
    plan_jobs(state, plan_with(table, options), queue, least, actions)


@routine
def plan_with(table: Timetable, options: Floats) -> Plan:
    """Return the settings of a pass."""
    return Plan(table, int(options[CONTIGUOUS]), int(options[WINDOW]), int(options[RESOLUTION]))


@lean
def plan_jobs(state: State, known: Plan, queue: Ints, least: Ints, actions: Actions) -> None:
    """Start or plan one job after the other; stop when no remaining job could start now."""
    for place in range(len(queue)):
        if known.table.profile.free[0] < least[place]:
            return
        begin = get_start(state, known, queue[place])
        if begin == state.now:
            start_now(state, known, queue[place], actions)
        else:
            reserve_for(state, known, queue[place], begin, place, actions)
