# SPDX-License-Identifier: Apache-2.0
"""When the CPUs of jobs of Slurm are left to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from drom.agent.daemon.usable_cpus import PERIOD, ForeignJobs
from drom.agent.model.jobs import Arrival

from tests.support.nodes import make_node

if TYPE_CHECKING:
    from drom.agent.node.node import Node


class Stage:
    """A node of four CPUs, and the jobs of Slurm on it."""

    def __init__(self) -> None:
        self.node: Node = make_node([1, 2, 4, 8])
        self.jobs: dict[str, int] = {}
        self.now = 1.0
        self.monitor = ForeignJobs(
            self.node, lambda known: {j: cpus for j, cpus in self.jobs.items() if j not in known}
        )

    def look(self, **jobs: int) -> int:
        """Look half a second later, when Slurm has these jobs, and return the CPUs left to them."""
        self.jobs = {name.replace("_", "-"): cpus for name, cpus in jobs.items()}
        self.now += 2 * PERIOD
        self.monitor.look(self.now)
        return self.monitor.left


@pytest.fixture
def stage() -> Stage:
    """Return a stage."""
    return Stage()


def test_jobs_that_run_when_the_agent_starts_have_their_cpus_at_once(stage: Stage) -> None:
    """The first look suffices."""
    assert stage.look(slurm_12=0b0011) == 0b0011


def test_a_later_job_has_its_cpus_from_the_second_look_on(stage: Stage) -> None:
    """Its first program may be about to register."""
    stage.look()

    assert stage.look(slurm_12=0b0011) == 0
    assert stage.look(slurm_12=0b0011) == 0b0011


def test_a_job_whose_program_registers_is_not_foreign_from_then_on(stage: Stage) -> None:
    """That needs no look at the control groups."""
    stage.look(slurm_12=0b0011)
    stage.node.arrive(Arrival(1, 1, 1, "slurm-12", batch_job="slurm-12"), stage.now)

    assert stage.monitor.look(stage.now)
    assert (stage.monitor.left, stage.monitor.cpus) == (0, {})


def test_a_job_whose_last_program_has_ended_is_foreign_if_it_goes_on(stage: Stage) -> None:
    """Its group remains for a moment, which does not count."""
    task, _ = stage.node.arrive(Arrival(1, 1, 1, "slurm-12", batch_job="slurm-12"), stage.now)
    stage.look(slurm_12=0b0011)
    stage.node.ended(task.slot, stage.now)

    assert stage.look(slurm_12=0b0011) == 0
    assert stage.look(slurm_12=0b0011) == 0b0011
    assert stage.look() == 0


def test_a_look_in_which_nothing_changes_reports_no_change(stage: Stage) -> None:
    """Nor does a look that is not due."""
    stage.look(slurm_12=0b0011)
    stage.now += 2 * PERIOD

    assert not stage.monitor.look(stage.now)
    stage.jobs = {}
    assert not stage.monitor.look(stage.now)
