# SPDX-License-Identifier: Apache-2.0
"""The jobs of each experiment as a file: a real log if there is one, a model's jobs, or a sample in its place."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from drom.scheduler.errors import SchedulerError
from drom.scheduler.reproduction.sd_policy.settings import Real
from drom.workloads.logs import read_log
from drom.workloads.making import make
from drom.workloads.swf import write_swf
from drom.workloads.where import matching

if TYPE_CHECKING:
    from drom.scheduler.reproduction.sd_policy.settings import Experiment
    from drom.workloads.making import Recipe
    from drom.workloads.workload import Workload


class Source(NamedTuple):
    """The jobs to simulate, and their machine."""

    log: Path
    nodes: int
    cores: int
    note: str
    """A description of the jobs, as a sentence."""
    stands_in: bool = False
    """Whether the jobs differ from the paper's, so that its numbers do not apply to them."""


def source_of(experiment: Experiment, named: Path | None, scratch: Path, seed: int) -> Source:
    """Return the jobs of an experiment; jobs that are not in a file yet are written into `scratch`.

    A real log is the `named` one or, if none is named, is in the folder in the environment variable DROM_WORKLOADS;
    `seed` is the model's. Raises WorkloadError for a log that cannot be read, and SchedulerError for a log other than
    the paper's, and if `scratch` cannot be written.
    """
    nodes, cores, target = experiment.nodes, experiment.cores, scratch / f"workload-{experiment.number}.swf.gz"
    if not isinstance(experiment.jobs, Real):
        recipe = replace(experiment.jobs, seed=seed)
        return Source(_written(make(recipe), target), nodes, cores, _about(recipe))
    found = named or _in_folder(experiment.jobs)
    if found is not None:
        return Source(_selected(experiment.jobs, found, target), nodes, cores, f"The jobs are of {found.name}.")
    stand_in = experiment.jobs.stand_in
    note = (
        f"A synthetic sample of {stand_in.jobs} jobs stands in, about which the paper says nothing. The workload is "
        f"{experiment.jobs.source}: name it with --log, or its folder with DROM_WORKLOADS."
    )
    return Source(_written(make(stand_in), target), stand_in.nodes, stand_in.cores, note, stands_in=True)


def _about(recipe: Recipe) -> str:
    return (
        f"The jobs are of a Cirne-like model fitted anew ({recipe.fit}, seed {recipe.seed}), not of the model and the "
        f"ANL arrivals that the paper used."
    )


def _in_folder(real: Real) -> Path | None:
    folder = Path(os.environ.get("DROM_WORKLOADS", "/nonexistent"))
    return next((folder / name for name in real.names if (folder / name).is_file()), None)


def _selected(real: Real, log: Path, target: Path) -> Path:
    """Return a log with only the jobs of the experiment: the existing one, or a part of it."""
    work = read_log(log)
    which = matching(work, real.condition)
    if int(which.sum()) != real.jobs:
        msg = (
            f"{log} is not the log of this workload: {which.sum():,} of its jobs have {real.condition}, not "
            f"{real.jobs:,}. Name {real.source}."
        )
        raise SchedulerError(msg)
    return log if which.all() else _written(work.take(which), target)


def _written(work: Workload, target: Path) -> Path:
    try:
        write_swf(work, target)
    except OSError as error:
        msg = f"{target} cannot be written: {error.strerror}: name another folder with --out."
        raise SchedulerError(msg) from error
    return target
