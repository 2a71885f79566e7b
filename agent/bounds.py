# SPDX-License-Identifier: Apache-2.0
"""How few and how many cores the tasks of an arriving job may have, or why this node can never run it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent import layouts
from agent.jobs import Refused
from agent.rules import refuse_memory
from agent.words import counted

if TYPE_CHECKING:
    from agent.jobs import Arrival
    from agent.plan import Plan


def bounds(arrival: Arrival, plan: Plan) -> tuple[int, int]:
    """Return the least and the most cores of each task of the job that arrives with this one, or raise `Refused`."""
    cores, rules, size = plan.cores, plan.rules, max(1, arrival.size)
    total, wide = len(cores), cores.widest
    can = rules.most(arrival.job_class, cores, layouts.most(arrival.layout, cores.sizes))
    now = min(can, cores.count(plan.usable) or can)
    if not 0 <= arrival.rank < size:
        msg = f"local rank {arrival.rank} is outside a job of {size} tasks: check the launcher's variables."
        raise Refused(msg)
    if arrival.max_cpus and arrival.min_cpus > arrival.max_cpus:
        msg = f"--min {arrival.min_cpus} is above --cpus {arrival.max_cpus}: ask for at least the minimum."
        raise Refused(msg)
    least = max(1, cores.needed_for(arrival.min_cpus))
    most = cores.needed_for(arrival.max_cpus) or -(-total // size)
    if arrival.job_class == "rigid":
        least = most = cores.needed_for(arrival.max_cpus) or max(least, now // size)
    needs = f"it needs at least {counted(least * wide, 'CPU')}"
    if size > 1:
        needs = f"{size} tasks of at least {counted(least * wide, 'CPU')} need {least * size * wide}"
    if least * size > total:
        msg = f"{needs}, this node has {cores.all.bit_count()}: ask for fewer."
        raise Refused(msg)
    if arrival.layout.strict and least * size > can:
        can_have = counted(cores.cpus(can), "CPU")
        msg = f"{needs}, and {arrival.layout} gives a job at most {can_have} here: ask for more on each socket."
        raise Refused(msg)
    rules.refuse(arrival, least * size, cores)
    refuse_memory(arrival.memory * size, plan.memory)
    return least, max(least, min(most, can))
