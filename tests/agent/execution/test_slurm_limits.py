# SPDX-License-Identifier: Apache-2.0
"""Time limits of Slurm's jobs are lengthened by what they lose. Slurm's commands are scripts here, real processes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from drom.agent.execution import slurm_commands
from drom.agent.execution.slurm_jobs import SlurmJobs
from drom.agent.execution.slurm_rows import LATER, PAUSE
from drom.agent.model.jobs import Arrival
from drom.agent.observe.log import Log

from tests.support.slurm_stage import SlurmStage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SQUEUE = """#!/bin/sh
echo >> "$0.calls"
[ "$(cat "$0.code")" = 0 ] || { cat "$0.answer"; exit 1; }
read -r limit nodes < "$0.answer" || [ "$limit" ] || exit 0
s=';drom;'
printf "%s$s%s$s%s$s%s$s%s$s\\n" 99 7 1 2:00:00 other "$3" 7 "$(cat "$0.task" || echo N/A)" "$limit" "$nodes"
"""
SCONTROL = '#!/bin/sh\necho "$@" >> "$0.calls"\n'


class Stage(SlurmStage):
    """A node on which two jobs of Slurm share all CPUs from second 0 on, and Slurm as it answers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SQUEUE, SCONTROL)
        self.answer("1:00:00 here")
        self.jobs = SlurmJobs(self.node, Log(self.log), limits=True, comments=False, host="here")
        for number in (7, 8):
            self.node.arrive(Arrival(number, 1, number, f"slurm-{number}", batch_job=f"slurm-{number}"), 0.0)
        self.jobs.run(0.0)

    def answer(self, text: str, code: int = 0) -> None:
        """Let squeue answer so."""
        (self.folder / "squeue.answer").write_text(text, encoding="utf-8")
        (self.folder / "squeue.code").write_text(str(code), encoding="utf-8")


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Return a stage."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    stage = Stage(tmp_path)
    yield stage
    stage.jobs.close()


def test_a_job_gets_at_least_what_it_has_lost(stage: Stage) -> None:
    """A twentieth of its limit at a time: three minutes of an hour."""
    assert stage.calls_until(8.0) == []
    assert stage.calls_until(12.0) == ["update jobid=7 timelimit=+3", "update jobid=8 timelimit=+3"]
    stage.answer("1:03:00 here")
    assert stage.calls_until(360.0) == []
    assert stage.calls_until(372.0) == ["update jobid=7 timelimit=+3", "update jobid=8 timelimit=+3"]


def test_the_last_task_of_an_array_is_lengthened_alone(stage: Stage) -> None:
    """It has the number of the array, by which scontrol would lengthen all tasks."""
    (stage.folder / "squeue.task").write_text("3")

    assert stage.calls_until(12.0)[0] == "update jobid=7_3 timelimit=+3"


def test_jobs_that_slurm_has_forgotten_are_not_asked_for_again(stage: Stage) -> None:
    """Otherwise each job that lost time would cost a command a minute for as long as the agent runs."""
    stage.answer("slurm_load_jobs error: Invalid job id specified", 1)
    stage.calls_until(100.0)
    asked = (stage.folder / "squeue.calls").read_text()
    for second in range(1000, 10000, 1000):
        stage.calls_until(float(second))

    assert (stage.folder / "squeue.calls").read_text() == asked
    assert "slurm_failed" not in stage.log.getvalue()


def test_a_short_job_gets_whole_minutes(stage: Stage) -> None:
    """As many as cover the loss."""
    stage.answer("5:00 here")

    assert stage.calls_until(150.0) == ["update jobid=7 timelimit=+2", "update jobid=8 timelimit=+2"]


def test_minutes_that_somebody_else_adds_count(stage: Stage) -> None:
    """A scheduler, or an operator; the loss is covered by them."""
    stage.calls_until(12.0)
    stage.answer("2:00:00 here")

    assert stage.calls_until(400.0) == []
    assert stage.calls_until(7200.0) == []


def test_a_limit_that_an_operator_lowers_stays_lower(stage: Stage) -> None:
    """The job still gets what it loses from then on."""
    stage.calls_until(12.0)
    stage.answer("30:00 here")

    assert stage.calls_until(372.0) == ["update jobid=7 timelimit=+1", "update jobid=8 timelimit=+1"]


@pytest.mark.parametrize("answer", ["UNLIMITED here", "1:00:00 other[1-2],here", "1:00:00", "INVALID here", ""])
def test_jobs_without_a_limit_and_of_other_first_nodes_are_left_alone(stage: Stage, answer: str) -> None:
    """They are looked at again much later."""
    stage.answer(answer)
    assert stage.calls_until(100.0) == []
    stage.answer("1:00:00 here[1-2]".replace("here[1-2]", "here,other"))
    assert stage.calls_until(100.0 + LATER - 1) == []
    assert len(stage.calls_until(100.0 + LATER)) == 2


def test_a_failure_is_logged_and_tried_again(stage: Stage) -> None:
    """The message is the last line that the command wrote."""
    stage.answer("slurm_load_jobs error: Unable to contact slurm controller", 1)
    assert stage.calls_until(100.0) == []
    assert "event=slurm_failed" in stage.log.getvalue()
    assert 'reason="squeue: slurm_load_jobs error: Unable to contact slurm controller"' in stage.log.getvalue()

    stage.answer("1:00:00 here")
    assert stage.calls_until(100.0 + PAUSE - 1) == []
    assert len(stage.calls_until(100.0 + PAUSE)) == 2


def test_a_node_without_slurms_commands_is_told_so(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says what to do."""
    monkeypatch.setenv("PATH", "/nowhere")
    stage.calls_until(100.0)

    assert "squeue cannot be run: No such file or directory. Install Slurm's commands" in stage.log.getvalue()


def test_a_command_that_hangs_is_killed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one runs."""
    monkeypatch.setattr(slurm_commands, "TIMEOUT", -1.0)
    (stage.folder / "squeue").write_text("#!/bin/sh\nexec sleep 1000\n", encoding="utf-8")
    stage.calls_until(100.0)

    assert re.findall(r"job=(\S+) reason=\"squeue has not answered", stage.log.getvalue()) == ["slurm-7", "slurm-8"]
