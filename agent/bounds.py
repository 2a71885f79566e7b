# SPDX-License-Identifier: Apache-2.0
"""How few and how many cores the tasks of an arriving job may have, or why this node can never run it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent import layouts
from agent.jobs import Refused
from agent.rules import refuse_memory

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
    if least * size > total:
        msg = (
            f"{size} task(s) of at least {_cpus(least * wide)} need {least * size * wide}, this node has "
            f"{cores.all.bit_count()}: ask for fewer."
        )
        raise Refused(msg)
    if arrival.layout.strict and least * size > can:
        msg = (
            f"{arrival.layout} gives a job at most {_cpus(cores.cpus(can))} here and {size} task(s) of at "
            f"least {_cpus(least * wide)} need {least * size * wide}: ask for more on each socket."
        )
        raise Refused(msg)
    rules.refuse(arrival, least * size, cores)
    refuse_memory(arrival.memory * size, plan.memory)
    return least, max(least, min(most, can))


def _cpus(count: int) -> str:
    return f"{count} CPU{'' if count == 1 else 's'}"
