# SPDX-License-Identifier: Apache-2.0
"""The contenders: policies with their options, and the assumptions that each makes and others do not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from drom.scheduler.analysis.metrics import Power
from drom.scheduler.engine.compiler import BASELINES, load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.predictors.knowledge import PREDICTORS
from drom.scheduler.simulator.adaptive import LARGEST
from drom.scheduler.simulator.batch import Run
from drom.scheduler.simulator.simulation import PLANLESS
from drom.workloads.errors import short

if TYPE_CHECKING:
    from collections.abc import Sequence


class Candidate(NamedTuple):
    """A policy as options of `drom simulate`."""

    name: str
    """The name of its row and of its folder of results."""
    options: tuple[str, ...]
    premise: str = ""
    """Its assumptions about jobs or the machine that FCFS and backfilling do not make; a sentence without full stop."""
    pool: bool = False
    """Whether all cores are one pool, rather than parts of nodes."""

    @property
    def policy(self) -> str:
        """The policy that it runs."""
        return self.options[self.options.index("--policy") + 1]

    def assumption(self, addition: str, options: tuple[str, ...], premise: str) -> Candidate:
        """Return the contender with a named addition, its options, and its assumption."""
        premise = f"{self.premise}, and {premise}" if self.premise else premise
        return self._replace(name=f"{self.name}+{addition}", options=options, premise=premise)

    def choose(self, text: str | None) -> Candidate:
        """Return the contender with the parameters ``NAME=VALUE,...`` of its policy, which its name shows.

        Raises SchedulerError for parameters that the policy does not take.
        """
        if text is None:
            return self
        choices = [choice.strip() for choice in text.split(",")]
        load_policy(self.policy, choices)
        words = [word for choice in choices for word in ("--set", choice)]
        return self._replace(name=f"{self.name}({','.join(choices)})", options=(*self.options, *words))

    def with_set(self, choices: Sequence[str]) -> Candidate:
        """Return the contender with those of the parameters ``NAME=VALUE`` that its policy has; its own come after."""
        names = load_policy(self.policy).options
        own = [choice for choice in choices if choice.partition("=")[0] in names]
        if not own:
            return self
        load_policy(self.policy, own)
        premise = f"{self.premise}, with {', '.join(own)}" if self.premise else f"with {', '.join(own)}"
        words = [word for choice in own for word in ("--set", choice)]
        return self._replace(options=(*self.options[:2], *words, *self.options[2:]), premise=premise)

    def run(self, log: Path, nodes: int, cores: int, common: Sequence[str], out: Path) -> Run:
        """Return the simulation, with the `common` options of all contenders, which writes a folder below `out`.

        Raises SchedulerError for a machine that is too large for a pool.
        """
        options, folder = (*self.options, *common), out / self.name
        if not self.pool:
            return Run(log, nodes, cores, options, folder)
        if nodes * cores > LARGEST:
            msg = (
                f"{self.name} takes all {nodes * cores:,} cores for one pool, which has at most {LARGEST:,}: "
                "name others with --policies."
            )
            raise SchedulerError(msg)
        power = Power()
        watts = ("--idle-watts", f"{power.idle / cores:g}", "--peak-watts", f"{power.peak / cores:g}")
        return Run(log, nodes * cores, 1, (*options, *watts), folder)


_COMMA = re.compile(r",(?![^(]*\))")
"""A comma outside brackets."""
_NAME = re.compile(rf"([^()]+?)(?:\(([^()]*)\))?(?:\+(fill|{'|'.join(PREDICTORS)}))?")
"""A policy, perhaps with parameters and an addition."""


def _plain(name: str, premise: str = "", *, pool: bool = False) -> Candidate:
    return Candidate(name, ("--policy", name), premise, pool)


_POOL = "all cores are one pool, so that jobs may share a node"

_FILLED = {
    "A": "containers run in what is free for an hour, and regular jobs start and change at the full hour",
    "B": "containers run in its gaps until a regular job comes, which waits until they are saved, for 60 s",
}


def _filled(one: Candidate) -> Candidate:
    """Return a contender with filled gaps: by policy A if it runs on a pool, which cannot use B, else by policy B."""
    how = "A" if load_policy(one.policy).pooled else "B"
    return one.assumption("fill", (*one.options, "--fill", "--fill-set", f"policy={how}"), _FILLED[how])


_SINGLE = {
    one.name: one
    for one in (
        _plain("fcfs"),
        _plain("easy"),
        _plain("conservative"),
        *map(_plain, BASELINES),
        _plain("slurm", "it plans the first 100 jobs of the queue every 30 s, unless set otherwise"),
        _plain(
            "sd",
            "as slurm, and all jobs are malleable: they may run on part of the cores of their nodes, beside others",
        ),
        _plain("firstfit", _POOL, pool=True),
        _plain(
            "equipartition",
            f"{_POOL}, and all jobs are adaptive: half to twice their processors at any time, linear speedup, "
            "no limit by the request",
            pool=True,
        ),
        _plain("payoff", "as equipartition, but by the pay-off of jobs", pool=True),
        _plain("cp"),
    )
}
PAYOFF = "payoff"
"""The policy that uses contracts."""
DEFAULT = "default"
"""The name that stands for all default contenders."""


_USUAL = ("fcfs", "easy", "conservative", "conservative+fill", "slurm", "sd", "firstfit", "equipartition")


def usual(*, contracts: bool) -> tuple[str, ...]:
    """Return the names of the default contenders, in the order of the table: all but `cp`, which takes long."""
    return (*_USUAL, PAYOFF) if contracts else _USUAL


def candidates(names: str, *, contracts: bool = False, cores: int = 2) -> list[Candidate]:
    """Return the contenders in a list of names: policies of drom, and files that contain one.

    Parameters of a policy follow its name in brackets, as in ``sd(max_slowdown=5)``.

    `cores` is the number of cores of a node; nodes of a single core cannot be shared.

    Raises SchedulerError for unknown names, for a name given twice, and for the policy payoff without contracts.
    """
    found: list[Candidate] = []
    for name in map(str.strip, _COMMA.split(names)):
        chosen = usual(contracts=contracts) if name == DEFAULT else (name,)
        found += [_candidate(one, cores) for one in chosen]
    if not contracts and any(one.policy == PAYOFF for one in found):
        msg = "--policies: payoff needs contracts: add --contracts FILE, or for example --contracts tight=2."
        raise SchedulerError(msg)
    taken = [one.name for one in found]
    twice = next((name for name in taken if taken.count(name) > 1), None)
    if twice is not None:
        msg = f"--policies names {short(twice)} twice: name each policy once."
        raise SchedulerError(msg)
    return found


def with_parameters(chosen: Sequence[Candidate], choices: Sequence[str]) -> list[Candidate]:
    """Return the contenders, each with those of the parameters ``NAME=VALUE`` that its policy has.

    Raises SchedulerError for a parameter that none of them has, and for a value that it cannot have.
    """
    for choice in choices:
        name = choice.partition("=")[0]
        if not any(name in load_policy(one.policy).options for one in chosen):
            msg = f"--set {short(choice)}: none of these policies has a parameter {short(name)}: name another."
            raise SchedulerError(msg)
    return [one.with_set(choices) for one in chosen]


def _candidate(name: str, cores: int) -> Candidate:
    """Return the contender of a name: a policy, optionally with ``+recent`` or ``+learned`` for predicted run times.

    With ``+fill`` its gaps are filled. Raises SchedulerError for an unknown name.
    """
    found = _NAME.fullmatch(name)
    policy, text, addition = found.groups() if found else (name, None, None)
    if addition:
        one = _candidate(name.removesuffix(f"+{addition}"), cores)
        if addition == "fill":
            return _filled(one)
        how = f"run times by the predictor {addition}"
        if policy in PLANLESS:
            how += ", which it does not use"
        return one.assumption(addition, (*one.options, "--predict", addition), how)
    if policy == "sd" and cores == 1:
        return _plain(policy, "as slurm, because nodes of one core cannot be shared: set --cores").choose(text)
    if policy in _SINGLE:
        return _SINGLE[policy].choose(text)
    if policy.endswith(".py"):
        return Candidate(Path(policy).stem, ("--policy", policy)).choose(text)
    msg = (
        f"--policies: {short(name)} is none: choose of {', '.join(_SINGLE)}, with parameters in brackets as in "
        "sd(max_slowdown=5), with +recent or +learned behind it for predicted run times or +fill for filled gaps, or "
        "name a file that ends in .py."
    )
    raise SchedulerError(msg)
