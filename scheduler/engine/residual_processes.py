# SPDX-License-Identifier: Apache-2.0
"""The slowdown from processes that jobs leave behind on processors of a pool.

A malleable job is started on every processor that it may use, and has a residual process on each that it does not have
at present (Kale, Kumar and DeSouza, CCGRID 2002). The world stores how many processors jobs have, not which: on P
processors the residual processes of job j, `most` less `held` of them, are assumed to lie evenly on all processors that
are not its own. So this share of the processors of job i carries residual processes of others, at most all of them:

    share(i) = min(1, sum over j other than i of (most(j) - held(j)) / (P - held(j)))

and its work takes 1 + residual * share(i) times as long. A processor counts once, however many processes lie on it.
Fractions are whole millionths, rounded down; speeds too, in ten-thousandths of a processor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.engine.state import CHANGES, RESIDUAL, RESIDUES, RUNNERS
from drom.scheduler.interface import MALLEABLE, MILLION, lean

if TYPE_CHECKING:
    from drom.scheduler.engine.state import World


@lean
def residue(world: World, job: int) -> int:
    """Return the residual processes of a job on each processor that is not its own, in millionths."""
    held, most = world.jobs.held[job], world.jobs.most[job]
    if world.jobs.cls[job] != MALLEABLE or most <= held:
        return 0
    return int((most - held) * MILLION // (len(world.nodes.up) - held))


@lean
def note_interference(world: World) -> None:
    """Recount all residual processes, and mark the ends of all running jobs for recalculation."""
    s = world.scalars
    s[CHANGES], s[RESIDUES] = s[RUNNERS], 0
    for i in range(s[RUNNERS]):
        world.changed[i] = world.running[i]
        s[RESIDUES] += residue(world, world.running[i])


@lean
def slowed_speed(world: World, job: int, speed: int) -> int:
    """Return the work per second of a job beside residual processes of others; without them it is `speed`."""
    s = world.scalars
    if s[RESIDUAL] == 0:
        return int(speed)
    share = min(MILLION, s[RESIDUES] - residue(world, job))
    return int(speed * MILLION // (MILLION + s[RESIDUAL] * share // MILLION))
