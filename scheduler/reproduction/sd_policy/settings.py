# SPDX-License-Identifier: Apache-2.0
"""The simulations of the SD-Policy paper: the workloads of its Table 1, and the settings of its Figures 1 to 8."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from drom.workloads.making import SAMPLE, Recipe


class Setting(NamedTuple):
    """A policy with parameters, and the runtime model."""

    name: str
    """The name of its folder of results."""
    label: str
    """The paper's name for it."""
    policy: str = "sd"
    choices: tuple[str, ...] = ()
    """Its parameters, as ``NAME=VALUE``."""
    model: str = "ideal"

    @property
    def options(self) -> tuple[str, ...]:
        """The same as options of `drom simulate`."""
        words = [word for choice in self.choices for word in ("--set", choice)]
        return ("--policy", self.policy, *words, "--runtime-model", self.model)


STATIC = Setting("static", "static", "slurm", model="worst")
MAXSD_10 = Setting("maxsd-10", "MAXSD 10", choices=("max_slowdown=10",))
DYNAMIC = Setting("dynavgsd", "DynAVGSD", choices=("max_slowdown=dynavgsd",))
DYNAMIC_WORST = DYNAMIC._replace(name="dynavgsd-worst", label="DynAVGSD, worst case", model="worst")
FIXED = (
    Setting("maxsd-5", "MAXSD 5", choices=("max_slowdown=5",)),
    MAXSD_10,
    Setting("maxsd-50", "MAXSD 50", choices=("max_slowdown=50",)),
    Setting("maxsd-infinite", "MAXSD infinite", choices=("max_slowdown=infinite",)),
)
CUTOFFS = (*FIXED, DYNAMIC)
"""Figures 1 to 3: SD-Policy with other values of MAX_SLOWDOWN, jobs by the ideal model."""
SETTINGS = (STATIC, *CUTOFFS, DYNAMIC_WORST)


class Real(NamedTuple):
    """A real log: its possible file names, and the jobs of it that are used."""

    names: tuple[str, ...]
    jobs: int
    condition: str
    """The condition on its jobs, for `drom.workloads.where`; a log that has no other jobs is used unchanged."""
    source: str
    """Its origin."""
    stand_in: Recipe
    """A sample that is simulated if the log is missing, on a machine of the sample's size."""


class Experiment(NamedTuple):
    """A workload of Table 1 and its machine."""

    number: int
    title: str
    nodes: int
    cores: int
    jobs: Real | Recipe


CIRNE = Recipe(model="cirne-like", jobs=5000, nodes=1024, cores=48, largest=128)
RICC = Real(
    ("RICC-2010-sept-10000.swf.gz", "RICC-2010-2.swf.gz"),
    10_000,
    "job >= 415000 and job <= 424999",
    "the RICC log of the Parallel Workloads Archive (RICC-2010-2), of which jobs 415,000 to 424,999 are taken",
    replace(SAMPLE, cores=8),
)
CURIE = Real(
    ("CEA-Curie-2011-primary.swf.gz", "CEA-Curie-2011-2.1-cln.swf.gz"),
    198_509,
    "partition == 10",
    "the cleaned CEA-Curie log of the Parallel Workloads Archive (CEA-Curie-2011-2.1-cln), of which the jobs of "
    "partition 10 are taken",
    replace(SAMPLE, cores=16),
)
EXPERIMENTS = {
    1: Experiment(1, "Cirne-like model", 1024, 48, CIRNE),
    2: Experiment(2, "Cirne-like model, exact requests", 1024, 48, replace(CIRNE, estimates="exact")),
    3: Experiment(3, "RICC, September 2010", 1024, 8, RICC),
    4: Experiment(4, "CEA-Curie 2011, primary partition", 5040, 16, CURIE),
}
"""Workload 5 is a run on a real machine, not a simulation."""
