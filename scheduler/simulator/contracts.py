# SPDX-License-Identifier: Apache-2.0
"""The contracts of the jobs of a simulation: read or drawn, checked for feasibility, and as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import NEVER
from drom.workloads.contracts import UNBOUND, Contracts, draw_contracts, parse_terms, read_contracts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drom.scheduler.interface import Ints
    from drom.workloads.workload import Workload


def contracts_of(said: Sequence[str], work: Workload, seed: int) -> Contracts | None:
    """Return the contracts of a file, or contracts drawn by ``NAME=VALUE``; None if neither is given.

    Drawn contracts depend on the run times and sizes of the log, so that they are the same under every policy.
    Raises SchedulerError if both are given.
    """
    if not said:
        return None
    if len(said) == 1 and "=" not in said[0]:
        return read_contracts(said[0], work.job)
    if file := next((one for one in said if "=" not in one), None):
        msg = f"--contracts: the table {file} has all contracts: omit the other --contracts."
        raise SchedulerError(msg)
    return draw_contracts(work.job, work.run_time, work.allocated, parse_terms(said), seed)


def table_of(contracts: Contracts, submit: Ints) -> Ints:
    """Return contracts as policies see them: of shape ``(jobs, 4)``, deadlines in seconds of the log."""
    deadlines = (np.where(when == UNBOUND, NEVER, submit + when) for when in (contracts.soft, contracts.hard))
    return np.stack((*deadlines, contracts.payoff, contracts.penalty), axis=1)
