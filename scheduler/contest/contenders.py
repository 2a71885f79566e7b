# SPDX-License-Identifier: Apache-2.0
"""Who takes part: the policies with their options, and what each supposes that the others do not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from scheduler.errors import SchedulerError
from scheduler.foresight import PREDICTORS
from scheduler.metrics import Power
from scheduler.running import Run
from workloads.errors import short

if TYPE_CHECKING:
    from collections.abc import Sequence


class Contender(NamedTuple):
    """A policy as options of `drom simulate`."""

    name: str
    """That of its row and of its folder of results."""
    options: tuple[str, ...]
    premise: str = ""
    """What it supposes about jobs or the machine that FCFS and backfilling do not; a sentence without full stop."""
    pool: bool = False
    """Whether all cores are one pool, rather than parts of nodes."""

    @property
    def policy(self) -> str:
        """The policy that it runs."""
        return self.options[self.options.index("--policy") + 1]

    def run(self, log: Path, nodes: int, cores: int, common: Sequence[str], out: Path) -> Run:
        """Return the simulation, with options that all have in common, which writes a folder below `out`."""
        options, folder = (*self.options, *common), out / self.name
        if not self.pool:
            return Run(log, nodes, cores, options, folder)
        power = Power()
        watts = ("--idle-watts", f"{power.idle / cores:g}", "--peak-watts", f"{power.peak / cores:g}")
        return Run(log, nodes * cores, 1, (*options, *watts), folder)


def _plain(name: str, premise: str = "", *, pool: bool = False) -> Contender:
    return Contender(name, ("--policy", name), premise, pool)


_POOL = "all cores are one pool, so that jobs may share a node"

CONTENDERS = {
    one.name: one
    for one in (
        _plain("fcfs"),
        _plain("easy"),
        _plain("conservative"),
        _plain("slurm", "it plans the first 100 jobs of the queue every 30 s"),
        _plain(
            "sd",
            "as slurm, and all jobs are malleable: they may run on half the cores of their nodes, beside others",
        ),
        _plain("firstfit", _POOL, pool=True),
        _plain(
            "equipartition",
            f"{_POOL}, and all jobs are adaptive: half to twice their processors at any time, linear speedup, "
            "no limit by the request",
            pool=True,
        ),
    )
}
"""Those that take part by default, in the order of the table."""


def contenders(names: str) -> list[Contender]:
    """Return the contenders that a list names: policies that come with drom, and files that hold one.

    Raises SchedulerError for others, and for one that is named twice.
    """
    found = [_contender(name) for name in names.split(",")]
    taken = [one.name for one in found]
    twice = next((name for name in taken if taken.count(name) > 1), None)
    if twice is not None:
        msg = f"--policies names {short(twice)} twice: name each policy once."
        raise SchedulerError(msg)
    return found


def _contender(name: str) -> Contender:
    """Return who has a name: a policy, with ``+recent`` or ``+learned`` for other run times than users ask for."""
    policy, _, predictor = name.partition("+")
    if predictor in PREDICTORS:
        one = _contender(policy)
        known = f"run times by the predictor {predictor}"
        premise = f"{one.premise}, {known}" if one.premise else known
        return one._replace(
            name=f"{one.name}+{predictor}", options=(*one.options, "--predict", predictor), premise=premise
        )
    if name in CONTENDERS:
        return CONTENDERS[name]
    if name.endswith(".py"):
        return Contender(Path(name).stem, ("--policy", name))
    msg = (
        f"--policies: {short(name)} is none: choose of {', '.join(CONTENDERS)}, with +recent or +learned behind it for "
        "predicted run times, or name a file that ends in .py."
    )
    raise SchedulerError(msg)
