# SPDX-License-Identifier: Apache-2.0
"""`drom bench day`: a simulated day under the node's own policy, beside rigid jobs that start first come, first served.

Nothing is timed: the same seeds give the same figures on every machine. Both policies get the same programs; only the
node's own policy also gets orders, lost cores, sudden deaths and a restart.
"""

from __future__ import annotations

import random
import statistics
from typing import TYPE_CHECKING, Any

from drom.agent.bench import simulated_day
from drom.agent.model.cores import Cores
from drom.agent.node.node import Node
from drom.agent.placement.kernel import distributor
from drom.agent.placement.kernel.background import CompiledKernel
from drom.agent.policy.site_rules import SiteRules
from drom.agent.topology.machine import usable_cores
from drom.agent.topology.synthetic import synthetic_topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drom.agent.bench.simulated_day import Accounts, Outcome

MACHINE = "pack:2 core:16"
MEMORY = 128 << 30
"""Bytes."""
POLICIES = {
    "first come, first served (rigid)": None,
    "equal shares": SiteRules(),
    "equal shares, residence 60 s, margin 0.2": SiteRules(residence=60.0, margin=0.2),
}
FIGURES = {
    "response_mean_s": "mean response, s",
    "response_median_s": "median response, s",
    "response_p95_s": "95 % respond within, s",
    "slowdown_mean": "mean bounded slowdown",
    "slowdown_median": "median bounded slowdown",
    "slowdown_p95": "95 % slowed down at most",
    "fairness": "fairness among users (Jain)",
    "utilisation": "utilisation while programs are there",
    "resizes_per_job_hour": "resizes per job and hour",
}


def simulate(days: int, seconds: float = simulated_day.DAY) -> dict[str, Any]:
    """Simulate `days` days, with seeds 1, 2, ...; return, for each policy, every figure's median and extremes."""
    distributor.kernel()
    placer, cores = CompiledKernel(synthetic_topology(MACHINE)), Cores.of(usable_cores(synthetic_topology(MACHINE)))
    found: dict[str, list[dict[str, float]]] = {name: [] for name in POLICIES}
    sent = 0
    for seed in range(1, days + 1):
        drawn = simulated_day.programs(random.Random(seed), len(cores), seconds=seconds, memory=MEMORY)  # noqa: S311
        sent += len(drawn)
        for name, rules in POLICIES.items():
            if rules is None:
                outcomes, book = simulated_day.first_come(drawn, len(cores), MEMORY)
            else:
                node = Node(cores, placer, rules=rules, memory=MEMORY)
                simulated = simulated_day.Day(node, drawn, random.Random(seed), check=False)  # noqa: S311
                outcomes, book = simulated.run(), simulated.book
            found[name].append(figures(outcomes, book, len(cores)))
    return {
        "schema_version": 1,
        "machine": MACHINE,
        "days": days,
        "programs": sent,
        "policies": [{"policy": name, "figures": _spread(runs)} for name, runs in found.items()],
    }


def figures(outcomes: Sequence[Outcome], book: Accounts, cores: int) -> dict[str, float]:
    """Return the figures of one day; programs that the node refused do not count."""
    served = [outcome for outcome in outcomes if not outcome.refused]
    responses = sorted(outcome.response for outcome in served)
    slowdowns = sorted(outcome.slowdown for outcome in served)
    return {
        "response_mean_s": statistics.fmean(responses),
        "response_median_s": statistics.median(responses),
        "response_p95_s": responses[int(0.95 * len(responses))],
        "slowdown_mean": statistics.fmean(slowdowns),
        "slowdown_median": statistics.median(slowdowns),
        "slowdown_p95": slowdowns[int(0.95 * len(slowdowns))],
        "fairness": book.fairness,
        "utilisation": book.worked / (cores * book.busy_seconds),
        "resizes_per_job_hour": book.resizes / (book.job_seconds / 3600),
    }


def _spread(runs: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        key: {"median": statistics.median(run[key] for run in runs)}
        | {"min": min(run[key] for run in runs), "max": max(run[key] for run in runs)}
        for key in FIGURES
    }
