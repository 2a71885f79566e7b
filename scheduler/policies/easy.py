# SPDX-License-Identifier: Apache-2.0
"""EASY backfilling: later jobs may start early if they do not delay the head of the queue.

The rule of Lifka (JSSPP 1995), as Mu'alem and Feitelson list it (IEEE TPDS 12(6), 2001). A job may end exactly at the
shadow time. The reservation of the head is made anew at each call.
"""

from __future__ import annotations

from drom.scheduler.interface import NEVER, Actions, Event, Floats, State, compilable, plan, start
from drom.scheduler.policies.profile import by_end, predicted_end


def decide(state: State, _event: Event, _options: Floats, actions: Actions) -> int:
    """Start heads while they fit, reserve for the first that does not, and backfill around its reservation."""
    head, free = start_heads(state, actions)
    backfill(state, head, free, len(state.queue), actions)
    return NEVER


@compilable
def start_heads(state: State, actions: Actions) -> tuple[int, int]:
    """Start heads of the queue while they fit; return the place of the first that does not, and the free nodes left."""
    jobs, free, head = state.jobs, state.free, 0
    while head < len(state.queue) and jobs.nodes[state.queue[head]] <= free:
        start(actions, state.queue[head])
        free -= jobs.nodes[state.queue[head]]
        head += 1
    return head, free


@compilable
def backfill(state: State, head: int, free: int, most: int, actions: Actions) -> None:
    """Plan the head at this place of the queue, and start those of the next `most` jobs that do not delay it."""
    if head == len(state.queue):
        return
    jobs = state.jobs
    shadow, extra = reserve(state, head, free)
    if jobs.planned[state.queue[head]] != shadow:
        plan(actions, state.queue[head], shadow)
    for job in state.queue[head + 1 : head + 1 + most]:
        if free == 0:
            break
        need = jobs.nodes[job]
        ends_in_time = state.now + jobs.requested[job] <= shadow
        if need <= free and (ends_in_time or need <= extra):
            start(actions, job)
            free -= need
            if not ends_in_time:
                extra -= need


@compilable
def reserve(state: State, head: int, free: int) -> tuple[int, int]:
    """Return the latest time at which the job at this place of the queue starts, and the nodes left over then.

    `free` are the nodes left by the jobs before it, which start now.
    """
    need, shadow = state.jobs.nodes[state.queue[head]], state.now
    for job in by_end(state, head):
        end = predicted_end(state, job)
        if free >= need and end > shadow:
            break
        shadow = end
        free += state.jobs.nodes[job]
    return (shadow, free - need) if free >= need else (NEVER, 0)
