# SPDX-License-Identifier: Apache-2.0
"""The drivers of policies: over whole nodes of one size, over resources of any nodes, and over processors. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.allocation.gaps import Gaps
from drom.scheduler.cp.model import require
from drom.scheduler.live.cluster.controller import Controller
from drom.scheduler.live.cluster.pool_controller import PoolController
from drom.scheduler.live.cluster.resource_controller import ResourceController

if TYPE_CHECKING:
    from drom.scheduler.engine.compiler import Policy

Driver = Controller | ResourceController | PoolController


def driver_of(policy: Policy, cores: int, gaps: Gaps = Gaps()) -> Driver:  # noqa: B008 - immutable
    """Return the driver of a policy; `cores` are those of each node, if it plans with whole nodes.

    Fillers run in the `gaps` of nodes that it divides.

    Raises SchedulerError for a policy that cannot be compiled.
    """
    if policy.pooled:
        return PoolController(policy)
    return ResourceController(policy, gaps) if policy.divides_nodes else Controller(policy, cores)


def prepare(policy: Policy) -> None:
    """Compile a policy, which may take a minute, before requests wait for it. Raises as `driver_of`."""
    driver_of(policy, 1)


def check(policy: Policy) -> None:
    """Raise SchedulerError for a policy that cannot decide on a live cluster, or without OR-tools for `cp`."""
    if policy.built_in == "cp":
        require()
