# SPDX-License-Identifier: Apache-2.0
"""What jobs pay by their contracts, which are those of simulations (`drom simulate --contracts`). Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.live.cluster.jobs import COMPLETED
from drom.scheduler.live.cluster.spec import contract_of
from drom.scheduler.policies.pool_math import worth

if TYPE_CHECKING:
    from drom.scheduler.live.cluster.jobs import Job


def paid(job: Job) -> int | None:
    """Return what a job that is over has paid, minus its penalty if it did not complete; None without a contract."""
    if job.ended is None or not job.spec.contract:
        return None
    contract = contract_of(job.spec.contract)
    if job.state != COMPLETED:
        return -contract.penalty
    return int(worth(np.array([contract], np.int64), 0, math.ceil(job.ended - job.submitted)))
