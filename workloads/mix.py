# SPDX-License-Identifier: Apache-2.0
"""The mix of applications of the SD-Policy paper's real workload: D'Amico, Jokanovic and Corbalan, "Holistic
slowdown driven scheduling and resource management for malleable jobs", ICPP 2019, Table 2.

The paper gives each application's share of the jobs, and words, not numbers, for its use of a machine; the words are
kept as they are. It does not assign sizes and run times to applications, so that only the shares are available.
"""  # noqa: D205 - the source is the summary

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from drom.workloads.classes import uniform

if TYPE_CHECKING:
    from drom.workloads.workload import Ints, Workload

_SALT = 0x4D4958


@dataclass(frozen=True, slots=True)
class Application:
    """A row of Table 2: `share` in percent of the jobs, the other fields in the paper's words."""

    name: str
    share: float
    nodes: str
    time: str
    cpu: str
    memory: str
    kind: str


TABLE_2 = (
    Application("PILS", 30.5, "small-high", "small/med", "high", "low", "compute"),
    Application("STREAM", 30.8, "small-high", "small/med", "low", "high", "memory"),
    Application("CoreNeuron", 35.5, "small-high", "small-high", "high", "med", "simulation"),
    Application("NEST", 2.6, "small-high", "small-high", "high", "med", "simulation"),
    Application("Alya", 0.6, "small", "high", "high", "med", "simulation"),
)


def applications(job: Ints, seed: int) -> Ints:
    """Return the 0-based row of TABLE_2 of each job number, which depends only on that number and the seed."""
    shares = np.cumsum([row.share for row in TABLE_2])
    return np.searchsorted(shares / shares[-1], uniform(job, seed ^ _SALT), side="right").astype(np.int64)


def with_mix(workload: Workload, seed: int) -> Workload:
    """Return the workload with each job's application as its executable, from 1; a comment names them."""
    names = ", ".join(f"{number} {row.name}" for number, row in enumerate(TABLE_2, 1))
    note = f"; Note: executables by Table 2 of the SD-Policy paper (ICPP 2019), seed {seed}: {names}"
    return workload.with_columns(executable=applications(workload.job, seed) + 1).with_comments(note)
