# SPDX-License-Identifier: Apache-2.0
"""The data about run times while a log is simulated, for predictions of new jobs.

A predictor is a function ``predict(jobs, known, job) -> seconds`` that is called for each job when it is submitted. It
learns from the jobs in `RuntimeKnowledge.gone`, which have ended before, and from nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.interface import NOBODY

if TYPE_CHECKING:
    from drom.scheduler.interface import Floats, Ints
    from drom.workloads.workload import Workload

PREDICTORS = ("user", "recent", "learned")
USER = "user"
FEATURES = 9
"""How many properties of a job the learned predictor goes by."""


class RuntimeKnowledge(NamedTuple):
    """The data that a predictor reads and stores; all empty without predictions."""

    allowed: Ints
    """Shape ``(jobs,)``: how long a job may run at full speed: its requested time."""
    user: Ints
    """Shape ``(jobs,)``: the row of a job's user, NOBODY if unknown."""
    kind: Ints
    """Shape ``(jobs,)``: a number shared by all jobs of a user with the same request and size."""
    gone: Ints
    """Shape ``(jobs,)``: the jobs that have ended, in that order."""
    took: Ints
    """Shape ``(jobs,)``: the seconds that a job that has ended would have taken with all its resources."""
    raised: Ints
    """Shape ``(jobs,)``: how often the prediction of a job was raised."""
    counts: Ints
    """Shape ``(2,)``: how many jobs have ended, and how many of them the predictor has processed."""
    by_user: Floats
    """Shape ``(users, 3)``: for the predictor's own use."""
    by_kind: Floats
    """Shape ``(kinds, 3)``: likewise."""
    seen: Floats
    """Shape ``(jobs, features)``: likewise."""
    model: Floats
    """Shape ``(1 + features, features)``: likewise."""


def knowledge_of(work: Workload | None) -> RuntimeKnowledge:
    """Return the data before the first job of a workload ends; empty arrays without a workload."""
    if work is None:
        none, table = np.zeros(0, np.int64), np.zeros((0, 0))
        return RuntimeKnowledge(none, none, none, none, none, none, none, table, table, table, table)
    count = len(work)
    _, user = np.unique(work.user, return_inverse=True)
    kinds, kind = np.unique(np.stack((work.user, work.requested_time, work.allocated)), axis=1, return_inverse=True)
    return RuntimeKnowledge(
        allowed=work.requested_time.copy(),
        user=np.where(work.user == -1, NOBODY, user).astype(np.int64),
        kind=kind.reshape(count).astype(np.int64),
        gone=np.full(count, NOBODY, np.int64),
        took=np.zeros(count, np.int64),
        raised=np.zeros(count, np.int64),
        counts=np.zeros(2, np.int64),
        by_user=np.zeros((int(user.max(initial=0)) + 1, 3)),
        by_kind=np.zeros((kinds.shape[1], 3)),
        seen=np.zeros((count, FEATURES)),
        model=np.zeros((1 + FEATURES, FEATURES)),
    )
