# SPDX-License-Identifier: Apache-2.0
"""The requested time as the prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drom.scheduler.interface import Jobs
    from drom.scheduler.predictors.knowledge import RuntimeKnowledge


def predict(jobs: Jobs, _known: RuntimeKnowledge, job: int) -> int:
    """Return the requested time."""
    return int(jobs.requested[job])
