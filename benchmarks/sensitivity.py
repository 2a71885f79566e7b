"""Simulate a log with each decision of docs/reproduction.md switched alone, and print a Markdown table.

python benchmarks/sensitivity.py LOG NODES CORES FOLDER [--jobs N] [--skip SWITCH]...

Each switch is tried from several starting points: passes at second 0, the same with reservations that are not rounded,
and passes at second 4; the defaults at more seconds. Results stay in FOLDER; what is whole there is not simulated
again, and Ctrl-C prints what there is.
"""  # noqa: INP001 - a program, not a package

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from drom.scheduler.analysis.results import load
from drom.scheduler.cli.progress import Bar
from drom.scheduler.errors import SchedulerError
from drom.scheduler.simulator.batch import Run, run_all

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drom.scheduler.reproduction.sd_policy.tables import Metrics

STATIC, IDEAL = ("--policy", "slurm"), ("--policy", "sd", "--runtime-model", "ideal")
WORST = "D3 worst-case model"
BASES = {"phase 0": (), "not rounded": ("resolution=1",), "phase 4": ("phase=4",)}
PHASES = (0, 4, 8, 11, 15, 19, 23, 26)

BACKFILL = {
    "default": (),
    "interval 10 s": ("--set", "interval=10"),
    "interval 60 s": ("--set", "interval=60"),
    "depth 50": ("--set", "depth=50"),
    "depth 1000": ("--set", "depth=1000"),
    "window 2 days": ("--set", "window=172800"),
    "window 7 days": ("--set", "window=604800"),
    "resolution 300 s": ("--set", "resolution=300"),
    "main 1": ("--set", "main=1"),
    "event rule pyss": ("--event-rule", "pyss"),
    "event rule cqsim": ("--event-rule", "cqsim"),
    "D30 overrun=raise": ("--rule", "overrun=raise"),
    "D30 zero_run_time=drop": ("--rule", "zero_run_time=drop"),
}
"""Switches of both policies."""
MALLEABLE = {
    "D1 test=0": ("--set", "test=0"),
    "D2 far=predicted": ("--set", "far=predicted"),
    WORST: ("--runtime-model", "worst"),
    "D4 objective=weighted": ("--set", "objective=weighted"),
    "D5 max_slowdown=5": ("--max-slowdown", "5"),
    "D5 max_slowdown=50": ("--max-slowdown", "50"),
    "D5 max_slowdown=infinite": ("--max-slowdown", "infinite"),
    "D6 max_slowdown=dynavgsd": ("--max-slowdown", "dynavgsd"),
    "D9 mix=1": ("--set", "mix=1"),
    "D10 inside=0": ("--set", "inside=0"),
    "D11 mates=1": ("--set", "mates=1"),
    "D11 mates=3, candidates=50": ("--set", "mates=3", "--set", "candidates=50"),
    "D12 candidates=10": ("--set", "candidates=10"),
    "D13 guests=2": ("--set", "guests=2"),
    "D15 half rigid": ("--classes", "malleable=0.5"),
    "D15 half moldable": ("--classes", "malleable=0.5,moldable=0.5"),
    "D16 sharing_factor=0.25": ("--set", "sharing_factor=0.25"),
    "D16 sharing_factor=0.75": ("--set", "sharing_factor=0.75"),
    "D17 recompute=1": ("--set", "recompute=1"),
    "D19 guard=1": ("--set", "guard=1"),
    "D19 guard=10": ("--set", "guard=10"),
    "contiguous=1": ("--set", "contiguous=1"),
    "D1, D4, main as in the published code": ("--set", "test=0", "--set", "objective=weighted", "--set", "main=1"),
}
"""Switches of SD-Policy alone."""


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("nodes", type=int)
    parser.add_argument("cores", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--skip", action="append", default=[])
    told = parser.parse_args()
    runs = {
        case: Run(told.log, told.nodes, told.cores, options, told.folder / "-".join(case).replace(" ", "-"))
        for case, options in plan().items()
        if case.switch not in told.skip
    }
    bar = Bar(sys.stderr, "simulating")
    with contextlib.suppress(KeyboardInterrupt):
        run_all([run for run in runs.values() if not is_whole(run)], told.jobs, bar.show)
    bar.clear()
    found = {case: load(run.folder)["metrics"] for case, run in runs.items() if is_whole(run)}
    for line in [*table(found), "", *spread(found)]:
        sys.stdout.write(line + "\n")


class Case(NamedTuple):
    """A simulation of the plan."""

    policy: str
    switch: str
    base: str


def plan() -> dict[Case, tuple[str, ...]]:
    """Return the options of each simulation, the most wanted first."""
    found: dict[Case, tuple[str, ...]] = {}
    bases = BASES | {f"phase {phase}": (f"phase={phase}",) for phase in PHASES[1:]}
    for base, sets in bases.items():
        given = tuple(word for one in sets for word in ("--set", one))
        for policy, options, switches in (("static", STATIC, BACKFILL), ("SD", IDEAL, BACKFILL | MALLEABLE)):
            for switch, extra in switches.items():
                if base in BASES or switch in {"default", WORST}:
                    found[Case(policy, switch, base)] = (*options, *given, *extra)
    return found


def is_whole(run: Run) -> bool:
    """Return whether a simulation is there already."""
    try:
        return bool(load(run.folder)["complete"])
    except SchedulerError:
        return False


def table(found: Mapping[Case, Metrics]) -> list[str]:
    """Return a Markdown table with a row for each switch."""
    head = " | ".join(f"{base}: response, slowdown" for base in BASES)
    lines = [f"| | {head} | starts; mates |", f"|---{'|---' * (len(BASES) + 1)}|"]
    for policy, switch in dict.fromkeys(case[:2] for case in found):
        runs = [found.get(Case(policy, switch, base)) for base in BASES]
        lines.append(f"| {policy}: {switch} | {' | '.join(map(means, runs))} | {counts(runs[0])} |")
    return lines


def spread(found: Mapping[Case, Metrics]) -> list[str]:
    """Return a Markdown table of the defaults with passes at other seconds."""
    kinds = (("static", "default"), ("SD", "default"), ("SD", WORST))
    lines = ["| phase | static | SD, ideal | starts; mates | SD, worst case | starts; mates |", f"|{'---|' * 6}"]
    for phase in PHASES:
        static, ideal, worst = (found.get(Case(*kind, f"phase {phase}")) for kind in kinds)
        cells = (means(static), means(ideal), counts(ideal), means(worst), counts(worst))
        lines.append(f"| {phase} | {' | '.join(cells)} |")
    return lines


def means(run: Metrics | None) -> str:
    """Return response and slowdown as text."""
    return "-" if run is None else f"{run['mean_response_s']:,.0f} s, {run['mean_slowdown']:,.1f}"


def counts(run: Metrics | None) -> str:
    """Return how often malleability was used, as text."""
    return f"{run['malleable_starts']:,}; {run['distinct_mates']:,}" if run and run["malleable_starts"] else "-"


if __name__ == "__main__":
    main()
