# SPDX-License-Identifier: Apache-2.0
"""The agent lengthens time limits of a real Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.slurm.rig import Slurm


def test_jobs_that_share_their_cpus_get_more_time(slurm: Slurm) -> None:
    """Each gets what it loses, at least a minute and a twentieth of its limit."""
    slurm.start("first", "shared", cpus=2, minutes=5)
    slurm.await_true(lambda: slurm.tasks() == {"first": "0-1"}, "a job on both CPUs")
    slurm.start("second", "shared", cpus=2, minutes=60)
    slurm.await_true(
        lambda: slurm.limits() == {"first": "6:00", "second": "1:03:00"}, "a minute, and a twentieth of an hour"
    )
    slurm.cancel("first", "second")

    assert "event=slurm_failed" not in slurm.log("agent")
