# SPDX-License-Identifier: Apache-2.0
"""The classes of jobs (rigid, moldable or malleable), drawn by shares and a seed.

A job's class depends only on its number and the seed: it stays the same when other jobs are filtered out, and a job
that is malleable at a share of 30 % is malleable at any larger share.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from drom.workloads.errors import WorkloadError, short

if TYPE_CHECKING:
    from drom.workloads.workload import Floats, Ints
    from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class JobClass(IntEnum):
    """Rigid jobs keep their size; moldable jobs may start with another size; malleable jobs may change it any time."""

    RIGID = 0
    MOLDABLE = 1
    MALLEABLE = 2


@dataclass(frozen=True, slots=True)
class Shares:
    """Fractions of the jobs, from 0 to 1; the rest are rigid. By default every job is malleable (decision D15)."""

    malleable: float = 1.0
    moldable: float = 0.0

    def __post_init__(self) -> None:
        if not (self.malleable >= 0 and self.moldable >= 0 and self.malleable + self.moldable <= 1 + 1e-12):
            msg = (
                f"Shares of {self.malleable:g} malleable and {self.moldable:g} moldable jobs cannot be: "
                "write fractions that add up to at most 1."
            )
            raise WorkloadError(msg)


def parse_shares(text: str) -> Shares:
    """Return the shares in ``malleable=0.3,moldable=0.2``; missing ones are 0, and the rest of the jobs are rigid.

    Raises WorkloadError for any other text.
    """
    shares = {"malleable": 0.0, "moldable": 0.0}
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        try:
            shares[name if name in shares else ""] = float(number)
        except ValueError:
            name = ""
        if name not in shares:
            msg = f"{short(text)} does not give shares of jobs: write for example malleable=0.3,moldable=0.2."
            raise WorkloadError(msg)
    return Shares(**shares)


def classes(job: Ints, shares: Shares, seed: int) -> NDArray[np.int8]:
    """Return the JobClass of each job number; shape as `job`."""
    point = uniform(job, seed)
    cls = np.full(job.shape, JobClass.RIGID, dtype=np.int8)
    cls[point < shares.malleable + shares.moldable] = JobClass.MOLDABLE
    cls[point < shares.malleable] = JobClass.MALLEABLE
    return cls


def uniform(job: Ints, seed: int) -> Floats:
    """Return a number in [0, 1) for each job number, the same on every machine.

    SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) of the job number, with the seed as where its sequence starts.
    Classes use the seed itself; every other purpose uses ``seed ^ salt`` with its own salt, so that its numbers depend
    neither on classes nor on those of another seed.
    """
    start = _mix(np.array([seed & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64))
    mixed = _mix(start + _GOLDEN * (job.astype(np.uint64) + np.uint64(1)))
    return np.asarray((mixed >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(value ^ (value >> np.uint64(31)), dtype=np.uint64)
