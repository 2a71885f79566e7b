# SPDX-License-Identifier: Apache-2.0
"""Jobs of a real Slurm that run no program under drom keep their CPUs."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.slurm.rig import Slurm


@pytest.fixture(autouse=True)
def no_jobs(slurm: Slurm) -> Iterator[None]:
    """End all jobs after the test."""
    yield
    slurm.cancel_all()
    slurm.await_true(lambda: not slurm.left_alone(), "the CPUs of all jobs to be free")


def test_a_job_of_slurm_shares_cpus_with_a_foreign_job(slurm: Slurm) -> None:
    """Slurm gave both CPUs to both jobs: each has one, and the agent of a restart leaves it so."""
    slurm.start("plain", "shared", cpus=2, plain=True)
    slurm.await_true(lambda: slurm.left_alone() == "0-1", "the CPUs of a foreign job")
    slurm.start("ours", "shared", cpus=2)
    slurm.await_true(lambda: slurm.tasks() == {"ours": "0"}, "one CPU for each")
    slurm.restart_agent()
    slurm.await_true(lambda: (slurm.tasks(), slurm.left_alone()) == ({"ours": "0"}, "1"), "the same after a restart")
    slurm.cancel("plain")

    slurm.await_true(lambda: slurm.tasks() == {"ours": "0-1"}, "both CPUs")


def test_programs_outside_slurm_leave_a_foreign_job_its_cpus(slurm: Slurm) -> None:
    """They have the other CPU, wait if there is none, and have all CPUs after the end of the foreign jobs."""
    outside = slurm.start_outside("outside")
    slurm.await_true(lambda: slurm.tasks() == {"outside": "0-1"}, "all CPUs")
    slurm.start("first", plain=True)
    slurm.await_true(slurm.left_alone, "the CPU of a foreign job")
    theirs = slurm.cpus_of_slurm()["first"]
    slurm.await_true(lambda: slurm.tasks() == {"outside": {"0": "1", "1": "0"}[theirs]}, "the other CPU")
    outside.end(signal.SIGTERM)
    slurm.start("second", plain=True)
    slurm.await_true(lambda: slurm.left_alone() == "0-1", "two foreign jobs")
    outside = slurm.start_outside("outside")
    slurm.await_true(lambda: slurm.tasks() == {"outside": ""}, "a program that waits")
    slurm.cancel("first", "second")

    slurm.await_true(lambda: slurm.tasks() == {"outside": "0-1"}, "all CPUs again")
    outside.end(signal.SIGTERM)
