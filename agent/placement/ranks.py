# SPDX-License-Identifier: Apache-2.0
"""The ranks that the placement works on, and the type of a placement kernel. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drom.agent.model.layouts import ANY, Layout

RankKey = tuple[str, int]
"""Identifies a task by job name and local rank."""


@dataclass(frozen=True, slots=True)
class RankRequest:
    """One rank to be placed: `cores` of the node; `fixed` is the exact mask it must have (0: free to move).

    `held`, `granted` and `target` are its CPUs today, `target` those of the plan; `layout` is that of its job, and
    `cpuset` the CPUs it may have (0: any).
    """

    key: RankKey
    cores: int
    held: int = 0
    granted: int = 0
    fixed: int = 0
    floor: int = 1
    target: int = 0
    layout: Layout = ANY
    cpuset: int = 0

    @property
    def now(self) -> int:
        """The CPUs it is to have today, or has."""
        return self.target or self.held


def fixed_cpus(ranks: Sequence[RankRequest]) -> int:
    """Return the mask of all CPUs that ranks with an exact mask have."""
    mask = 0
    for rank in ranks:
        mask |= rank.fixed
    return mask


PlacementKernel = Callable[[Sequence[RankRequest]], "dict[RankKey, int] | None"]
"""The distribution kernel: requests to masks. None: the counts do not fit, or moving fewest tasks is best."""


@dataclass(frozen=True, slots=True)
class NoPlacement:
    """Why jobs cannot be placed: a sentence for users, and the job with a strict layout or cpuset that prevents it."""

    reason: str
    job: str = ""
