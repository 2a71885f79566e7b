# SPDX-License-Identifier: Apache-2.0
"""The least and the most cores that the tasks of an arriving job may have, or why this node can never run it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.agent.errors import Refused
from drom.agent.model import layouts
from drom.agent.policy.site_rules import check_memory
from drom.agent.text import counted

if TYPE_CHECKING:
    from drom.agent.model.cores import Cores
    from drom.agent.model.jobs import Arrival
    from drom.agent.node.plan import Plan


def bounds(arrival: Arrival, plan: Plan) -> tuple[int, int]:
    """Return the least and the most cores of each task of the job that arrives with this one, or raise `Refused`.

    The arrival's cpuset consists of whole cores.
    """
    cores, rules, size = plan.cores, plan.rules, max(1, arrival.size)
    cpuset = arrival.cpuset or cores.all
    total, wide = cores.count(cpuset), cores.widest
    can = min(total, rules.most(arrival.job_class, cores, layouts.most(arrival.layout, cores.sizes)))
    now = min(can, cores.count(plan.usable & cpuset) or can)
    if not 0 <= arrival.rank < size:
        msg = f"local rank {arrival.rank} is outside a job of {size} tasks: check the launcher's variables."
        raise Refused(msg)
    if arrival.max_cpus and arrival.min_cpus > arrival.max_cpus:
        msg = f"--min {arrival.min_cpus} is above --cpus {arrival.max_cpus}: ask for at least the minimum."
        raise Refused(msg)
    least = max(1, _least(arrival.min_cpus, size, cores))
    most = _least(arrival.max_cpus, size, cores) or -(-total // size)
    if arrival.job_class == "rigid":
        least = most = _least(arrival.max_cpus, size, cores) or max(least, now // size)
    asked = arrival.max_cpus if arrival.job_class == "rigid" else arrival.min_cpus
    each = asked if asked and cores.differ else (cores.needed_for(asked) or least) * wide
    needs = f"it needs at least {counted(each, 'CPU')}"
    if size > 1:
        needs = f"{size} tasks of at least {counted(each, 'CPU')} need {each * size}"
    if least * size > total:
        has = "this node has" if cpuset == cores.all else "the kernel lets it use"
        msg = f"{needs}, {has} {cpuset.bit_count()}: ask for fewer."
        raise Refused(msg)
    if arrival.layout.strict and least * size > can:
        can_have = counted(cores.cpus(can), "CPU")
        msg = f"{needs}, and {arrival.layout} gives a job at most {can_have} here: ask for more on each socket."
        raise Refused(msg)
    rules.check(arrival, least * size, cores)
    check_memory(arrival.memory * size, plan.memory)
    return least, max(least, min(most, can))


def _least(cpus: int, size: int, cores: Cores) -> int:
    """Return the cores on which each of `size` tasks has `cpus` hardware threads, whichever cores it gets.

    If cores differ and there are too few of them for all tasks, though enough threads: an equal part of the cores.
    """
    sure = cores.sure_of(cpus)
    if sure * size <= len(cores) or cpus * size > cores.all.bit_count():
        return sure
    return max(cores.needed_for(cpus), len(cores) // size)
