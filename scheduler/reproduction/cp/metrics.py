# SPDX-License-Identifier: Apache-2.0
"""The metrics of Bridi et al., section 7.1; times in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from drom.scheduler.cp.jobs import Jobs
    from drom.scheduler.cp.platform import Platform
    from drom.scheduler.interface import Ints


class Metrics(NamedTuple):
    """The metrics of a schedule; less is better."""

    wqt: float
    """Weighted queue time: the sum of waits, each divided by the longest that its queue allows."""
    nl: int
    """Late jobs: those that wait longer than that."""
    tr: int
    """Tardiness: the sum of their waits beyond that, in seconds."""
    ao: float
    """Average overhead: CPU seconds per call of the scheduler."""


class LiveMetrics(NamedTuple):
    """The metrics of a live run: those above, and of its scheduler."""

    wqt: float
    nl: int
    tr: int
    ao: float
    """CPU seconds per plan of CP; seconds in passes of the loop per submission or end under a rule."""
    cores: float
    """The mean number of cores that jobs have while jobs are submitted."""
    loop: float
    """The longest turn of the scheduler's loop, in seconds, with the time in which other programs had the CPU."""
    loop_cpu: float
    """The most CPU time of a turn, in seconds."""
    solver: int
    """Plans in which CP-SAT had a part; 0 under a rule."""
    rule: int
    """Plans of the portfolio's rule, for a single job or very many."""
    fallback: int
    """Plans that did not come in time, in place of which a rule decided."""


def metrics_of(jobs: Jobs, platform: Platform, start: Ints, seconds: float, calls: int) -> Metrics:
    """Return the metrics of a schedule, for which the scheduler took the given seconds and calls."""
    most = np.array([queue.maximum_wait_s for queue in platform.queues], np.int64)[jobs.queue]
    wait = start - jobs.submit
    beyond = np.maximum(wait - most, 0)
    return Metrics(float((wait / most).sum()), int((beyond > 0).sum()), int(beyond.sum()), seconds / max(calls, 1))
