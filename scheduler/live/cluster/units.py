# SPDX-License-Identifier: Apache-2.0
"""Jobs as sets of equal units, each of which gets cores, memory and counted resources of one node. Pure.

With `--nodes` or `--tasks-per-node` a unit is the part of a job on one of its nodes, and each is on another node.
Otherwise it is a task, and any number of them are on a node. Bridi et al. (CP scheduler for HPC) call these job units.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from drom.agent.text import counted, in_words
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import NEVER
from drom.scheduler.live.cluster import spec as specs
from drom.scheduler.live.cluster.resource_controller import CORES, MEMORY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from drom.scheduler.live.cluster.jobs import Node
    from drom.scheduler.live.cluster.spec import Spec


def sized(spec: Spec, nodes: Iterable[Node]) -> Spec:
    """Return a specification with nodes and tasks filled in; `nodes` stays 0 where tasks may be on any nodes.

    Raises SchedulerError if the numbers contradict each other, or if memory or resources of a node are asked for
    without saying on how many.
    """
    largest = max((node.cores for node in nodes), default=1)
    if spec.nodes or spec.tasks or spec.ranks <= 1:
        return specs.sized(spec if spec.nodes or spec.tasks else replace(spec, nodes=1, tasks=1), largest)
    if spec.memory or spec.resources:
        raise SchedulerError("--mem and --resources are amounts of a node: say with --nodes how many nodes there are.")
    return spec


def amounts(spec: Spec) -> dict[str, int]:
    """Return what a unit of a job asks for, by resource; memory in MiB."""
    cores = max(1, spec.threads) * (spec.tasks if spec.nodes else 1)
    return {**spec.resources, CORES: cores, MEMORY: -(-spec.memory >> 20)}


def units(spec: Spec) -> tuple[int, int]:
    """Return how many units a job has, and how many of them a node may have."""
    return (spec.nodes, 1) if spec.nodes else (spec.ranks, NEVER)


def check(spec: Spec, hosts: Collection[Node]) -> None:
    """Raise SchedulerError for a job that does not fit on the nodes that suit it, at least one, were they empty."""
    count, most = units(spec)
    rest, asked = count, amounts(spec)
    for node in hosts:
        rest -= min(_room(asked, node), most)
        if rest <= 0:
            return
    fit = count - rest
    wanted = f"{counted(count, 'part')} with {in_sentence(spec)} each" if count > 1 else in_sentence(spec)
    if len(hosts) == 1:
        where = f"the node that suits it {f'has room for {fit} of them' if fit else 'does not have so much'}"
    else:
        those = f"the {len(hosts)} nodes that suit it"
        where = f"{those} have room for {fit} of them" if fit else f"none of {those} has so much"
    unknown = [name for name in spec.resources if not any(node.resources.get(name) for node in hosts)]
    if unknown:
        msg = f"no node that suits the job has {unknown[0]}: see the resources in drom nodes."
    else:
        msg = f"the job asks for {wanted}, and {where}: ask for less."
    raise SchedulerError(msg)


def _room(asked: dict[str, int], node: Node) -> int:
    """Return how many units an empty node has room for."""
    has = {**node.resources, CORES: node.cores} | ({MEMORY: node.memory >> 20} if node.memory else {})
    return min(
        has.get(name, 0) // amount for name, amount in asked.items() if amount and (name != MEMORY or MEMORY in has)
    )


def in_sentence(spec: Spec) -> str:
    """Return what a unit asks for, in words: ``4 cores, 2 GiB of memory and gpu=1``."""
    asked = [counted(amounts(spec)[CORES], "core")]
    asked += [f"{in_words(spec.memory)} of memory"] if spec.memory else []
    asked += [f"{name}={amount}" for name, amount in spec.resources.items()]
    return asked[0] if len(asked) == 1 else f"{', '.join(asked[:-1])} and {asked[-1]}"
