# SPDX-License-Identifier: Apache-2.0
"""The messages of `drom simulate`: notes on stderr, and a summary as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from drom.workloads.errors import counted

if TYPE_CHECKING:
    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.simulator.simulation import Simulation


RIGID = ("fcfs", "firstfit", "easy", "conservative", "slurm", "cp", "resources")
"""The policies under which every job gets exactly what it asks for, as under the baselines."""


def say(sentence: str) -> None:
    """Print a message on stderr."""
    typer.echo(sentence, err=True)


def warn_about_missing_data() -> None:
    """Print which file cannot be written."""
    from drom.scheduler.analysis.results import has_parquet

    if not has_parquet():
        say("note: jobs.parquet is not written: run pip install 'drom[parquet]'.")


def announce(policy: Policy, predict: str) -> None:
    """Print that a policy is being compiled for a simulation, if it is."""
    from drom.scheduler.engine.compiler import announcement
    from drom.scheduler.predictors.knowledge import USER

    if announced := announcement(policy, ordered=predict == USER):
        say(f"drom: {announced}")


def describe_policy(policy: Policy, cores: int, event_rule: str, predict: str, *, adaptive: bool) -> None:
    """Print notes on options that have an unexpected effect with this policy."""
    from drom.scheduler.predictors.knowledge import USER
    from drom.scheduler.simulator.simulation import PLANLESS

    if policy.built_in == "sd" and cores == 1 and not adaptive:
        say("note: nodes of one core cannot be shared, so sd acts as slurm does: set --cores.")
    if policy.built_in == "sd" and event_rule == "pyss":
        say("note: under the pyss rule sd is not called for a job that does not fit, so it finds no mates for it then.")
    if event_rule == "cqsim" and policy.built_in not in {"easy", "fcfs", "firstfit", "equipartition"}:
        say(f"note: under the cqsim rule {policy.name} knows the real run times of waiting jobs.")
    if predict != USER and policy.built_in in PLANLESS:
        say(f"note: {policy.name} does not use run times: --predict has no effect.")


def describe_jobs(run: Simulation) -> None:
    """Print what was rounded in a log, and which partitions have no job."""
    from drom.workloads.summary import roundings

    for sentence in roundings(run.work):
        say(f"note: {sentence}.")
    for number, _ in run.machine.partitions:
        if not (run.work.partition == number).any():
            say(f"note: no job of this log is in partition {number}.")


def describe_pool(run: Simulation, cores: int, plots: str | None) -> None:
    """Print what a policy that allots processors does not provide."""
    if run.policy.pooled and cores > 1:
        say(f"note: {run.policy.name} allots the {run.machine.nodes:,} cores as one pool.")
    if run.policy.pooled and plots:
        say(f"note: there is no Gantt chart: {run.policy.name} says how many processors jobs have, not which.")


def warn_about_ineffective_options(run: Simulation, classes: str | None) -> None:
    """Print which options change nothing, because the policy resizes no jobs or lets none share a node."""
    from drom.scheduler.engine.compiler import BASELINES

    policy = run.policy
    is_rigid = policy.built_in in {*RIGID, *BASELINES}
    if classes is not None and is_rigid:
        say(f"note: {policy.name} gives all jobs what they request: --classes has no effect.")
    if run.machine.runtime_model != "worst" and (policy.pooled or is_rigid):
        say(f"note: under {policy.name} no jobs share a node: --runtime-model has no effect.")


def lines(told: dict[str, Any]) -> list[str]:
    """Return a summary as lines of text."""
    from drom.scheduler.analysis.comparison import number, size_of

    jobs, nodes = told["jobs"], size_of(told)[0]
    first = (
        f"{counted(jobs['ended'], 'job')} of {told['log']} on {counted(nodes, 'node')} under "
        f"{told['policy']} in {told['seconds']:.2f} s"
    )
    lines = [first]
    if not told["complete"]:
        rest = ", ".join(f"{jobs[name]:,} {name}" for name in ("running", "waiting", "future"))
        lines.append(f"partial ({told['stopped']}): {rest}")
    lines += [f"  {finding['sentence']}" for finding in told["cleaning"]["findings"]]
    if told["ended_at_limit"]:
        lines.append(f"  {counted(told['ended_at_limit'], 'job')} ended at the limit with work left")
    figures = dict(told["metrics"])
    for part in ("leaving", "failures", "sleep", "contracts", "filling"):
        figures |= {f"{part}: {name}": value for name, value in (told.get(part) or {}).items()}
    for key, value in figures.items():
        if isinstance(value, int | float):
            lines.append(f"{key:29}{number(value):>15}")
    return lines
