# SPDX-License-Identifier: Apache-2.0
"""Complete synthetic workloads: a model's jobs with requested times, load, cores per node and applications."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drom.workloads.cirne import cirne_like
from drom.workloads.errors import WorkloadError, short
from drom.workloads.estimates import maximum_for, tsafrir
from drom.workloads.limits import MOST_CORES, MOST_JOBS, MOST_NODES
from drom.workloads.lomonosov import lomonosov
from drom.workloads.lublin import lublin
from drom.workloads.mix import with_mix

if TYPE_CHECKING:
    from drom.workloads.workload import Workload

MODELS = ("lublin", "cirne-like", "lomonosov")
ESTIMATES = ("model", "exact")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The parameters of a synthetic workload.

    `kind` belongs to Lublin's model, `fit` and `largest` (in nodes) to the Cirne-like one, `accuracy` to that of
    Lomonosov-1; with another model they have their defaults.
    """

    model: str = "lublin"
    jobs: int = 1000
    nodes: int = 128
    cores: int = 1
    seed: int = 1
    load: float | None = None
    kind: str = "untyped"
    fit: str = "ctc"
    largest: int | None = None
    estimates: str = "model"
    mix: bool = False
    accuracy: float = 0.5


SAMPLE = Recipe(jobs=200, nodes=64, seed=20190805, load=0.9)
"""The small sample that is used if there is no real log."""
_MODEL_OF = {"kind": "lublin", "fit": "cirne-like", "largest": "cirne-like", "accuracy": "lomonosov"}

_BOUNDS = {
    "jobs": (1, MOST_JOBS),
    "nodes": (1, MOST_NODES),
    "cores": (1, MOST_CORES),
    "seed": (0, 2**64 - 1),
    "accuracy": (0, 1),
}


def make(recipe: Recipe) -> Workload:
    """Return the workload of a recipe; the same recipe gives the same jobs.

    Sizes are in processors, and whole nodes. Raises WorkloadError for a recipe that is impossible.
    """
    if recipe.model not in MODELS or recipe.estimates not in ESTIMATES:
        msg = (
            f"There is no model {short(recipe.model)} with {short(recipe.estimates)} estimates: "
            f"choose a model of {', '.join(MODELS)} and estimates of {', '.join(ESTIMATES)}."
        )
        raise WorkloadError(msg)
    for name, model in _MODEL_OF.items():
        if model != recipe.model and getattr(recipe, name) != getattr(Recipe(), name):
            msg = f"{name} is for the model {model}: omit it with {recipe.model}."
            raise WorkloadError(msg)
    for name, (least, most) in _BOUNDS.items():
        if not least <= (number := getattr(recipe, name)) <= most:
            msg = f"{name} of a workload is a number from {least} to {most:,}, not {number:,}."
            raise WorkloadError(msg)
    work = _MAKERS[recipe.model](recipe)
    if recipe.estimates == "exact":
        work = work.with_columns(requested_time=work.run_time.copy())
    if recipe.cores > 1:
        size = work.allocated * recipe.cores
        comments = tuple(
            f"; MaxProcs: {recipe.nodes * recipe.cores}" if "MaxProcs:" in comment else comment
            for comment in work.comments
        )
        work = work.with_columns(allocated=size, requested_processors=size.copy()).commented(comments)
    return with_mix(work, recipe.seed) if recipe.mix else work


def _cirne_like(recipe: Recipe) -> Workload:
    load = 0.8 if recipe.load is None else recipe.load
    return cirne_like(recipe.jobs, recipe.nodes, recipe.seed, fit=recipe.fit, largest=recipe.largest, load=load)


def _lublin(recipe: Recipe) -> Workload:
    work = lublin(recipe.jobs, recipe.nodes, recipe.seed, recipe.kind, recipe.load)
    if recipe.estimates == "exact":
        return work
    maximum = maximum_for(work.run_time)
    note = f"; Note: requested times by the model of Tsafrir et al. (JSSPP 2005), at most {maximum} s"
    requested = tsafrir(work.run_time, maximum, recipe.seed)
    return work.with_columns(requested_time=requested).with_comments(note)


def _lomonosov(recipe: Recipe) -> Workload:
    load = 0.9 if recipe.load is None else recipe.load
    return lomonosov(recipe.jobs, recipe.nodes, recipe.seed, recipe.accuracy, load)


_MAKERS = {"lublin": _lublin, "cirne-like": _cirne_like, "lomonosov": _lomonosov}
