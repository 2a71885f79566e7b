# SPDX-License-Identifier: Apache-2.0
"""The settings of a scheduler besides its policy. Durations are in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drom.scheduler.allocation.gaps import Gaps
from drom.scheduler.live.cluster.partitions import EXPECTED_WAIT

if TYPE_CHECKING:
    from drom.scheduler.live.cluster.home_rules import HomeRule
    from drom.scheduler.live.cluster.partitions import Partition
    from drom.scheduler.live.cluster.spec import Spec


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a cluster.

    An agent that is silent for `silence` gets no more jobs, and its jobs are given up `give_up` later. A shrink that is
    not applied within `shrink_within` has failed, as has the save of a filler that takes longer than `save_within`. An
    adaptive job has ranks on a node that it joins within `spawn_within`, or gives the node back.
    Fillers run in `gaps`. A job that is being ended has `kill_wait` between SIGTERM and SIGKILL. Clocks may differ by
    `skew` before a warning is logged. Jobs without a time limit get `default_time`; limits are at most `max_time` (0:
    any), but fillers may have any. Jobs are deleted `history` after their end, or when their user has more than
    `keep_jobs` that are over.

    Each user except root and the scheduler's own may have `max_jobs` jobs that wait or run, of which `max_running` run
    at once (0: any), with `max_bytes` of scripts, variables and commands, and may give `max_orders` changing orders a
    second.
    """

    name: str = "drom"
    heartbeat: float = 1.0
    silence: float = 15.0
    give_up: float = 300.0
    shrink_within: float = 30.0
    spawn_within: float = 300.0
    save_within: float = 300.0
    gaps: Gaps = field(default_factory=Gaps)
    kill_wait: float = 30.0
    skew: float = 5.0
    default_time: int = 3600
    max_time: int = 0
    history: float = 90 * 86400.0
    keep_jobs: int = 100_000
    max_jobs: int = 10_000
    max_running: int = 0
    max_bytes: int = 128 << 20
    max_orders: int = 50
    half_life: float = 0.0
    """The time after which usage counts for half, if users have equal shares; 0: jobs start in order of arrival."""
    operators: frozenset[int] = frozenset({0})
    """The uids of root and of the scheduler's own user."""
    partitions: tuple[Partition, ...] = ()
    keep: int = 1000
    """Jobs that are over and kept in memory to answer requests."""
    home: str = ""
    """The home partition; empty if the cluster has none."""
    home_rules: tuple[HomeRule, ...] = ()
    """Which home partitions new nodes go to whose agents name none; without any, the one with fewest nodes."""
    first_job: int = 1
    """The number of the first job."""
    lends: bool = True
    """Whether home partitions lend each other nodes."""

    def priority(self, spec: Spec) -> int:
        """Return the priority of a job, with that of its partition."""
        return spec.priority + sum(one.priority for one in self.partitions if one.name == spec.partition)

    def expected_wait(self, spec: Spec) -> int:
        """Return the expected wait of a job in seconds: that of its partition."""
        return next((one.expected_wait for one in self.partitions if one.name == spec.partition), EXPECTED_WAIT)

    def limit(self, asked: int) -> int:
        """Return the time limit in seconds of a job that asks for `asked` seconds (0: it asks for none)."""
        return asked or (min(self.default_time, self.max_time) if self.max_time else self.default_time)

    def left(self, asked: int, ran: float) -> int:
        """Return how many seconds are left of `limit` for a waiting job, a filler that `ran` before; at least 1."""
        return max(1, self.limit(asked) - int(ran))


LIVE = {
    "sd": ("interval=1", "reservations=nodes", "resolution=1"),
    "slurm": ("interval=1", "reservations=nodes", "resolution=1"),
}
"""Policy parameters that differ in a live cluster: passes cost little there, and starts should not wait for one."""
