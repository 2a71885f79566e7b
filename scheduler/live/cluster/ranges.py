# SPDX-License-Identifier: Apache-2.0
"""Jobs with a range of cores, which a policy of processors gives them anywhere, or with a range of nodes. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from drom.agent.text import counted
from drom.scheduler.errors import SchedulerError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.live.cluster.jobs import Node
    from drom.scheduler.live.cluster.spec import Spec

ELSEWHERE = {
    "nodes": "--nodes",
    "min_nodes": "--min-nodes",
    "tasks": "--tasks-per-node",
    "constraint": "--constraint",
    "memory": "--mem",
    "resources": "--resources",
    "nodelist": "--nodelist",
    "exclude": "--exclude",
    "partition": "--partition",
    "saving": "--filler",
}
"""The fields that mean something only to policies that know nodes, with their options."""


def refuse(spec: Spec, policy: Policy) -> None:
    """Raise SchedulerError for a job with a range, or a contract, under a policy that has none."""
    if spec.min_nodes and policy.divides_nodes:
        leave_out = "leave out --min-nodes, or run the scheduler with --policy sd."
        msg = f"under policy {policy.name} no job leaves nodes: {leave_out}"
        raise SchedulerError(msg)
    if spec.contract:
        leave_out = "leave out --contract, or run the scheduler with --policy payoff."
        msg = f"policy {policy.name} does not go by contracts: {leave_out}"
        raise SchedulerError(msg)
    if spec.least or spec.most:
        msg = (
            f"policy {policy.name} gives jobs no range of cores: leave out --min and --max, or run the scheduler with "
            "--policy equipartition."
        )
        raise SchedulerError(msg)


def check_nodes(spec: Spec) -> None:
    """Raise SchedulerError for a job of whole nodes that asks to leave some of them and cannot."""
    if not spec.min_nodes:
        return
    if spec.min_nodes > spec.nodes:
        has = f"--min-nodes {spec.min_nodes} is above the {counted(spec.nodes, 'node')} of the job"
        raise SchedulerError(f"{has}: write the most nodes as --nodes.")
    _check_adaptive(spec, "--min-nodes", "leave out --min-nodes")
    if spec.memory or spec.resources:
        option = "--mem" if spec.memory else "--resources"
        msg = f"a job keeps its {option} on nodes that it leaves to others: leave it out, or --min-nodes."
        raise SchedulerError(msg)


def sized(spec: Spec, nodes: Iterable[Node], policy: Policy) -> Spec:
    """Return a specification with its range, and as many tasks as it can have cores.

    Raises SchedulerError for a job that can never run, or that asks for what a policy of processors cannot give.
    """
    unknown = [option for name, option in ELSEWHERE.items() if getattr(spec, name)]
    unknown += ["--cpus-per-task"] if spec.threads > 1 else []
    if unknown:
        msg = f"policy {policy.name} gives each task one core, on any node: leave out {unknown[0]}."
        raise SchedulerError(msg)
    if (spec.least or spec.most) and spec.ranks not in (0, spec.most):
        raise SchedulerError("--ntasks is a fixed number of cores, --min and --max are a range: give one of them.")
    if spec.least and not spec.most:
        raise SchedulerError("--min has no --max: say how many cores the job can use at most.")
    if spec.least > spec.most:
        msg = f"--min {spec.least} is above --max {spec.most}: write the smaller one as --min."
        raise SchedulerError(msg)
    most = spec.most or max(1, spec.ranks)
    least = max(1, spec.least) if spec.most else most
    if least < most:
        _check_adaptive(spec, "--min and --max", "--ntasks")
    if least > (total := sum(node.cores for node in nodes)):
        has = f"the job needs at least {counted(least, 'core')}, and the nodes have {total}"
        raise SchedulerError(f"{has}: ask for less with --{'min' if least < most else 'ntasks'}.")
    return replace(spec, least=least, most=most, ranks=most)


def _check_adaptive(spec: Spec, options: str, instead: str) -> None:
    """Raise SchedulerError for a job with a range that mpirun does not start, or that may not be resized."""
    if spec.script or spec.terminal:
        what = "a script" if spec.script else "an interactive program"
        msg = f"mpirun starts the ranks of a job with {options}, and {what} is none: write -- PROGRAM, or {instead}."
        raise SchedulerError(msg)
    if spec.job_class != "malleable":
        first = options.split(maxsplit=1)[0]
        msg = f"a job with {options} is resized, and a {spec.job_class} one is not: leave out --class, or {first}."
        raise SchedulerError(msg)
