# SPDX-License-Identifier: Apache-2.0
"""Backfilling as Slurm's plug-in sched/backfill does it, in numbers of nodes.

Every `interval` seconds, if anything has happened since, the first `depth` jobs of the queue are planned anew, in
order: each starts now if that delays no reservation made before it, else it has a reservation at the earliest time,
unless that lies more than `window` ahead. Both ends of a reservation are rounded down to `resolution`. Passes are at
`phase` + k * `interval`. With `main` 1 the heads of the queue also start at each event while they fit, as Slurm's main
scheduler does it. Defaults are those of slurm.conf(5), bf_interval and so on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.interface import NEVER, Actions, Event, Floats, State, compilable, plan, start
from scheduler.profile import earliest, profile_of, take

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler.interface import Ints

OPTIONS = {"interval": 30, "depth": 100, "window": 86400, "resolution": 60, "phase": 0, "main": 0}
INTERVAL, DEPTH, WINDOW, RESOLUTION, PHASE, MAIN = range(6)


def check(options: Mapping[str, float]) -> str:
    """Return what is wrong with the parameters; empty if nothing is."""
    for name, value in options.items():
        least = 1 if name in {"interval", "depth", "window", "resolution"} else 0
        if not least <= value <= 1e9 or value != int(value):
            return f"{name} is a whole number from {least} to 1000000000, not {value:g}."
    return "" if options["main"] <= 1 else "main is 0 or 1."


def decide(state: State, _event: Event, options: Floats, actions: Actions) -> int:
    """Make a pass at its time; between passes wait for the next one."""
    interval, phase = int(options[INTERVAL]), int(options[PHASE])
    since = (state.now - phase) % interval
    if since == 0:
        make_pass(state, int(options[DEPTH]), int(options[WINDOW]), int(options[RESOLUTION]), actions)
        return NEVER
    started = start_heads(state, actions) if options[MAIN] > 0 else 0
    return int(state.now - since + interval) if started < len(state.queue) else NEVER


@compilable
def start_heads(state: State, actions: Actions) -> int:
    """Start heads of the queue while they fit, and return how many."""
    free, started = state.free, 0
    for job in state.queue:
        if state.jobs.nodes[job] > free:
            break
        start(actions, job)
        free -= state.jobs.nodes[job]
        started += 1
    return started


@compilable
def make_pass(state: State, depth: int, window: int, resolution: int, actions: Actions) -> None:
    """Plan the first `depth` jobs; stop when no job that is left could start now."""
    jobs, queue, free = state.jobs, state.queue[:depth], state.free
    least = smallest_from(state, queue)
    if len(queue) == 0 or free < least[0]:
        return
    profile = profile_of(state, len(queue))
    for place in range(len(queue)):
        job = queue[place]
        if free < least[place]:
            return
        begin = earliest(profile, jobs.nodes[job], jobs.requested[job])
        if begin == state.now:
            start(actions, job)
            free -= jobs.nodes[job]
            take(profile, begin, begin + jobs.requested[job], jobs.nodes[job])
        elif begin <= state.now + window:
            if jobs.planned[job] != begin:
                plan(actions, job, begin)
            end = begin + jobs.requested[job]
            take(profile, begin - begin % resolution, end - end % resolution, jobs.nodes[job])


@compilable
def smallest_from(state: State, queue: Ints) -> Ints:
    """Return, for each place of a queue, the nodes of the smallest job from there on."""
    least = state.jobs.nodes[queue]
    for place in range(len(queue) - 2, -1, -1):
        least[place] = min(least[place], least[place + 1])
    return least
