# SPDX-License-Identifier: Apache-2.0
"""From jobs and options to a simulation, for `drom simulate` and for `drom.simulate` in Python."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.scheduler.analysis.contracts import check_possible
from drom.scheduler.cli.limits import MOST_CORES, MOST_NODES
from drom.scheduler.predictors.knowledge import USER
from drom.scheduler.simulator.adaptive import parse_adaptive
from drom.scheduler.simulator.contracts import contracts_of
from drom.scheduler.simulator.failures import outages_of
from drom.scheduler.simulator.leaving import NodeModel, parse_leaving
from drom.scheduler.simulator.partitions import parse_partitions
from drom.scheduler.simulator.simulation import GUIDED, Machine, Simulation
from drom.scheduler.simulator.sleep import parse_sleep
from drom.scheduler.simulator.speeds import parse_speeds
from drom.workloads import cleaning
from drom.workloads.classes import Shares, classes, parse_shares

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drom.scheduler.engine.compiler import Policy
    from drom.workloads.cleaning import CleaningReport
    from drom.workloads.workload import Workload


LEAVING = ("sd", "")
"""The policies under which jobs may leave whole nodes: also those from files."""
FOR_EQUAL_NODES = ("recompute", "feedback")
"""Parameters of policies that count what jobs lost in core-seconds of equal nodes."""


class Setup(NamedTuple):
    """A machine, and the options of `drom simulate` that change a schedule, each as it is written there."""

    nodes: int
    cores: int = 1
    event_rule: str = "instant"
    runtime_model: str = "worst"
    partition: Sequence[str] = ()
    classes: str | None = None
    predict: str = USER
    adaptive: Sequence[str] = ()
    evolving: str = ""
    contracts: Sequence[str] = ()
    rule: Sequence[str] = ()
    seed: int = 1
    slot: int = 1
    """Seconds of a time slot of the machine."""
    failures: Sequence[str] = ()
    sleep: Sequence[str] = ()
    speed: Sequence[str] = ()

    def fault(self, policy: Policy) -> str:
        """Return what is wrong with the machine, or with these options for this policy; empty if nothing is."""
        for name, most in (("nodes", MOST_NODES), ("cores", MOST_CORES)):
            if not 1 <= (number := getattr(self, name)) <= most:
                return f"{name} is a number from 1 to {most:,}, not {number:,}."
        if self.evolving and not policy.pooled:
            return f"--evolving is for policies that allot processors: add --policy equipartition, not {policy.name}."
        if self.adaptive and not policy.pooled and policy.built_in not in LEAVING:
            return (
                "--adaptive is for policies that allot processors, and for those that resize jobs by whole nodes: add "
                f"--policy equipartition or sd, not {policy.name}."
            )
        if policy.built_in == "payoff" and not self.contracts:
            return "--policy payoff needs contracts: add --contracts FILE, or for example --contracts tight=2."
        options = {"--failures": self.failures, "--sleep": self.sleep, "--speed": self.speed}
        if not policy.pooled:
            options["--adaptive"] = self.adaptive
        return next((self._fault_of(name, policy) for name, given in options.items() if given), "")

    def _fault_of(self, option: str, policy: Policy) -> str:
        """Return what an option about nodes cannot be with; empty if there is nothing."""
        if policy.pooled or policy.built_in in GUIDED:
            return f"{option} is for policies that place jobs on nodes, such as easy, slurm and sd, not {policy.name}."
        if self.event_rule != "instant":
            return f"{option} is for --event-rule instant, not {self.event_rule}: leave one of them out."
        if self.predict != USER:
            return f"{option} is for requested times, not --predict {self.predict}: leave one of them out."
        name = next(filter(policy.options.get, FOR_EQUAL_NODES), "")
        if option == "--speed" and name:
            return f"--speed is not for {name}=1, which takes all nodes for equal: leave one of them out."
        if option == "--adaptive" and name and not (parse_leaving(self.adaptive) or NodeModel()).is_linear:
            return f"--adaptive parallelism is not for {name}=1, which takes speedup for linear: leave one of them out."
        return ""

    def machine(self, policy: Policy) -> Machine:
        """Return the machine on which the policy decides."""
        partitions, speeds = parse_partitions(self.partition), parse_speeds(self.speed)
        rules = self.event_rule, self.runtime_model
        return Machine(self.nodes, self.cores, *rules, policy.layers, partitions, self.slot, speeds)

    def clean(self, jobs: Workload) -> tuple[Workload, CleaningReport]:
        """Return the jobs after cleaning, and what that changed. Raises WorkloadError for jobs that a rule refuses."""
        return cleaning.clean(jobs, cleaning.parse_rules(self.rule), cleaning.Machine(self.nodes, self.cores))

    def simulation(self, work: Workload, policy: Policy) -> Simulation:
        """Return the simulation of cleaned jobs before its first event. Raises SchedulerError, WorkloadError."""
        shares = Shares() if self.classes is None else parse_shares(self.classes)
        terms = contracts_of(self.contracts, work, self.seed)
        run = Simulation.of(
            work,
            self.machine(policy),
            policy,
            classes(work.job, shares, self.seed).astype(int),
            parse_adaptive(self.adaptive) if policy.pooled else parse_leaving(self.adaptive),
            evolving=self.evolving,
            seed=self.seed,
            contracts=terms,
            predictor=self.predict,
            outages=outages_of(self.failures, work, self.nodes, self.cores, self.seed),
            sleep=parse_sleep(self.sleep),
        )
        check_possible(run, terms)
        return run


def choices_of(values: Mapping[Any, Any] | str | os.PathLike[str] | None) -> list[str]:
    """Return options as the command has them: ``NAME=VALUE`` for each value, or the name of a table."""
    if isinstance(values, str | os.PathLike):
        return [os.fspath(values)]
    return [f"{name}={int(value) if isinstance(value, bool) else value}" for name, value in (values or {}).items()]
