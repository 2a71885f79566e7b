# SPDX-License-Identifier: Apache-2.0
"""The two drivers of policies: over whole nodes of one size, and over resources of any nodes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.allocation.gaps import Gaps
from drom.scheduler.cp.model import require
from drom.scheduler.live.cluster.controller import Controller
from drom.scheduler.live.cluster.controller import check as check_whole
from drom.scheduler.live.cluster.resource_controller import ResourceController

if TYPE_CHECKING:
    from drom.scheduler.engine.compiler import Policy

Driver = Controller | ResourceController


def driver_of(policy: Policy, cores: int, gaps: Gaps = Gaps()) -> Driver:  # noqa: B008 - immutable
    """Return the driver of a policy; `cores` are those of each node, if it plans with whole nodes.

    Otherwise fillers run in the `gaps`.

    Raises SchedulerError for a policy that cannot decide here, and for one that cannot be compiled.
    """
    return ResourceController(policy, gaps) if policy.divides_nodes else Controller(policy, cores)


def prepare(policy: Policy) -> None:
    """Compile a policy, which may take a minute, before requests wait for it. Raises as `driver_of`."""
    driver_of(policy, 1)


def check(policy: Policy) -> None:
    """Raise SchedulerError for a policy that cannot decide on a live cluster, or without OR-tools for `cp`."""
    if policy.built_in == "cp":
        require()
    if not policy.divides_nodes:
        check_whole(policy)
