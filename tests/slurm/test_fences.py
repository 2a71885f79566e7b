# SPDX-License-Identifier: Apache-2.0
"""Jobs of a real Slurm below `drom run`: each has CPUs that Slurm gave it, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.slurm.rig import Slurm

ROUNDS = 50


def test_jobs_on_different_cores_each_have_exactly_slurms_cpus(slurm: Slurm) -> None:
    """Two at a time, again and again: no binding fails, and neither waits for the other."""
    for _ in range(ROUNDS):
        slurm.start("a")
        slurm.start("b")
        slurm.await_true(lambda: sorted(slurm.tasks().values()) == ["0", "1"], "a CPU for each of two jobs")
        assert slurm.tasks() == slurm.cpus_of_slurm()
        slurm.cancel("a", "b")
    assert "bind_failed" not in slurm.log("agent")


def test_jobs_that_slurm_puts_on_the_same_cores_share_them(slurm: Slurm) -> None:
    """The first shrinks for the second, and has everything back when that has ended."""
    slurm.start("first", "shared", cpus=2)
    slurm.await_true(lambda: slurm.tasks() == {"first": "0-1"}, "a job on both CPUs")
    slurm.start("second", "shared", cpus=2)
    slurm.await_true(lambda: slurm.tasks() == {"first": "0", "second": "1"}, "one CPU for each")
    slurm.cancel("second")
    slurm.await_true(lambda: slurm.tasks() == {"first": "0-1"}, "both CPUs for the first again")
    slurm.cancel("first")
