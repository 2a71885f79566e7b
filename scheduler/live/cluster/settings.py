# SPDX-License-Identifier: Apache-2.0
"""What a scheduler is told beside its policy. Durations are seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """How a cluster is run.

    An agent that is silent for `silence` gets no more jobs, and its jobs are given up `give_up` later. A shrink that is
    not applied within `shrink_within` has failed. A job that is to end has `kill_wait` to do so. Clocks may differ by
    `skew` before somebody is told. Jobs take `default_time` where they do not say, and at most `max_time` (0: any), and
    are forgotten `history` after their end, or when their user has more than `keep_jobs` that are over.

    Each user but root and the scheduler's own may have `max_jobs` that wait or run, of which `max_running` run at once
    (0: any), with `max_bytes` of scripts, variables and commands, and may change `max_orders` things a second.
    """

    name: str = "drom"
    heartbeat: float = 1.0
    silence: float = 15.0
    give_up: float = 300.0
    shrink_within: float = 30.0
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
    """After so long half of what a user has used counts, where users have equal shares; 0: jobs in order of arrival."""
    operators: frozenset[int] = frozenset({0})
    """The uids of root and of the scheduler's own user."""
    keep: int = 1000
    """Jobs that are over and still answered for from memory."""

    def limit(self, asked: int) -> int:
        """Return the time limit of a job that asks for so many seconds; 0: it does not say."""
        return asked or (min(self.default_time, self.max_time) if self.max_time else self.default_time)
