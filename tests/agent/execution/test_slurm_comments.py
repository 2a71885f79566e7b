# SPDX-License-Identifier: Apache-2.0
"""Admin comments of Slurm's jobs say what these use. Slurm's commands are scripts here, real processes."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest
from drom.agent.execution.slurm_comments import SETTLE, TURN
from drom.agent.execution.slurm_jobs import SlurmJobs
from drom.agent.execution.slurm_rows import LATER
from drom.agent.model.core_use import CoreUse, read_uses
from drom.agent.model.jobs import Arrival
from drom.agent.observe.log import Log

from tests.support.slurm_stage import SlurmStage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SQUEUE = """#!/bin/sh
job=$3
[ -f "$0.error" ] && { cat "$0.error"; exit 1; }
[ -f "$0.$job" ] || exit 0
[ -f "$0.$job.mates" ] && cat "$0.$job.mates"
s=';drom;'
printf "%s$s%s$s%s${s}RUNNING$s%s$s%s$s\\n" "$job" "$job" "$(cat "$0.$job.task" || echo N/A)" \\
    "$(cat "$0.$job")" "$(cat "$0.$job.comment")"
"""
SCONTROL = """#!/bin/sh
[ -f "$0.error" ] && { cat "$0.error"; exit 1; }
job=${2#jobid=}
printf '%s\\n' "${3#admincomment=}" > "${0%/*}/squeue.${job%_*}.comment"
echo "${2#jobid=}" >> "$0.calls"
"""


class Stage(SlurmStage):
    """A node of four cores with an agent, and Slurm as it answers: `running` jobs with their nodes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SQUEUE, SCONTROL)
        self.jobs = self.agent()

    def agent(self) -> SlurmJobs:
        """Return the part of a new agent that writes comments."""
        return SlurmJobs(self.node, Log(self.log), limits=False, comments=True, host="here")

    def start(self, number: int, now: float, nodes: str = "here", comment: str = "(null)") -> int:
        """Let Slurm start a job here; return its slot."""
        (self.folder / f"squeue.{number}").write_text(nodes, encoding="utf-8")
        (self.folder / f"squeue.{number}.comment").write_text(comment, encoding="utf-8")
        task, _ = self.node.arrive(Arrival(number, 1, number, f"slurm-{number}", batch_job=f"slurm-{number}"), now)
        return task.slot

    def end(self, number: int) -> None:
        """Let Slurm forget a job."""
        (self.folder / f"squeue.{number}").unlink()

    def fail(self, command: str, text: str) -> None:
        """Let a command fail with a text, or work again if there is none."""
        path = self.folder / f"{command}.error"
        path.write_text(text, encoding="utf-8")
        if not text:
            path.unlink()

    def run(self, now: float) -> list[int]:
        """Go on to this second, until no command is left to run; return the jobs that were written meanwhile."""
        return [int(line.partition("_")[0]) for line in self.calls_until(now)]

    def comment(self, number: int) -> str:
        """Return the comment of a job."""
        return (self.folder / f"squeue.{number}.comment").read_text(encoding="utf-8").strip()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Return a stage."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    stage = Stage(tmp_path)
    yield stage
    stage.jobs.close()


def test_a_word_is_written_when_cores_change(stage: Stage) -> None:
    """Not at once, as more changes may follow, and not again while nothing changes."""
    stage.run(0.0)
    stage.start(7, 0.0)
    assert stage.run(10.0) == []
    assert stage.run(10.0 + SETTLE) == [7]
    assert stage.run(100.0) == []
    stage.start(8, 100.0)
    stage.run(110.0)
    assert stage.run(110.0 + SETTLE) == [7, 8]

    word = read_uses(stage.comment(7))["here"]
    assert word.cores == CoreUse(2, 2, 0)
    assert word.total == CoreUse(4 * 100 + 2 * SETTLE, 2 * SETTLE, 0)
    assert word.at == pytest.approx(time.time(), abs=60)
    assert read_uses(stage.comment(8))["here"].cores == CoreUse(2, 0, 2)


def test_use_is_not_measured_at_each_turn_of_a_busy_agent(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users can let its loop turn a thousand times a second."""
    measured: list[float] = []
    monkeypatch.setattr(stage.jobs._use, "update", lambda _, now: measured.append(now))
    for turn in range(1000):
        stage.jobs.run(turn / 1000)

    assert 40 <= len(measured) <= 51


def test_what_others_wrote_is_kept(stage: Stage) -> None:
    """A comment that is empty for Slurm has no words."""
    stage.start(7, 0.0, comment="drom:malleable=1:4 by hand")
    stage.run(0.0)
    assert stage.run(SETTLE) == [7]

    assert stage.comment(7).startswith("drom:malleable=1:4 by hand drom:use:here=held:")


def test_nodes_write_in_turn(stage: Stage) -> None:
    """A word that another node has overwritten is written again."""
    stage.start(7, 0.0, nodes="first[1-2],here")
    stage.run(0.0)
    assert stage.run(SETTLE) == []
    assert stage.run(SETTLE + 2 * TURN) == [7]
    written = SETTLE + 2 * TURN
    assert stage.run(written + 1) == []
    (stage.folder / "squeue.7.comment").write_text("drom:use:first1=held:1+1,lent:0+0,borrowed:0+0,at:9")
    assert stage.run(written + 5 * TURN) == [7]

    assert read_uses(stage.comment(7)).keys() == {"first1", "here"}
    assert stage.run(written + 100.0) == []


def test_a_word_that_another_node_has_set_back_is_written_again(stage: Stage) -> None:
    """Both have written at the same time, the other one with the comment as it was before."""
    stage.start(7, 0.0, nodes="here,second")
    stage.run(0.0)
    assert stage.run(SETTLE) == [7]
    before = stage.comment(7)
    assert stage.run(50.0) == []
    stage.start(8, 100.0)
    stage.run(100.0)
    assert stage.run(100.0 + SETTLE) == [7, 8]
    (stage.folder / "squeue.7.comment").write_text(before, encoding="utf-8")
    assert stage.run(100.0 + SETTLE + 3 * TURN) == [7]

    assert read_uses(stage.comment(7))["here"].cores == CoreUse(2, 2, 0)


def test_the_last_task_of_an_array_has_a_comment_of_its_own(stage: Stage) -> None:
    """It has the number of the array, of which squeue shows all tasks."""
    stage.start(7, 0.0)
    mates = "9;drom;7;drom;1;drom;RUNNING;drom;other;drom;drom:mate;drom;\n"
    (stage.folder / "squeue.7.mates").write_text(mates * 2000)
    (stage.folder / "squeue.7.task").write_text("2")
    stage.run(0.0)
    assert stage.run(SETTLE) == [7]

    assert (stage.folder / "scontrol.calls").read_text() == "7_2\n"
    assert stage.comment(7).startswith("drom:use:here=held:")


def test_changes_that_never_end_are_written_ever_more_rarely(stage: Stage) -> None:
    """A job whose cores change all the time costs Slurm one word a minute at last."""
    stage.start(7, 0.0)
    stage.run(0.0)
    written = other = 0
    for step in range(200):
        at = 6.0 * step
        if step % 2:
            stage.node.ended(other, at)
            stage.end(8)
        else:
            other = stage.start(8, at)
        stage.run(at)
        written += stage.run(at + SETTLE).count(7)

    assert 20 < written < 60


def test_a_host_with_another_name_than_its_node_is_told_once(stage: Stage) -> None:
    """Its jobs run elsewhere for Slurm."""
    for number in (7, 8):
        stage.start(number, 0.0, nodes="n[1-2]")
    stage.run(0.0)
    assert stage.run(SETTLE) == []

    assert stage.log.getvalue().count("it runs on n[1-2] for Slurm, and this is here: hosts must have") == 1


def test_a_new_agent_goes_on_with_the_last_word(stage: Stage) -> None:
    """Until it came, the job had the cores of that word."""
    at = time.time() - 1000
    stage.start(7, 0.0, comment=f"drom:use:here=held:5000+3,lent:50+1,borrowed:0+0,at:{at:.0f}")
    stage.run(0.0)
    assert stage.run(500.0) == [7]

    total = read_uses(stage.comment(7))["here"].total
    assert total.held == pytest.approx(5000 + 3 * 500 + 4 * 500, abs=60)
    assert total.lent == pytest.approx(50 + 500, abs=20)


def test_a_job_that_has_ended_is_logged(stage: Stage) -> None:
    """Its comment stays: Slurm takes none for it."""
    slot = stage.start(7, 0.0)
    stage.run(0.0)
    stage.run(SETTLE)
    stage.node.ended(slot, 100.0)
    stage.end(7)
    stage.run(100.0)
    assert stage.run(100.0 + SETTLE) == []

    assert re.findall(r"event=slurm_use job=slurm-7 (.*)", stage.log.getvalue()) == [
        "held_core_s=400.0 lent_core_s=0.0 borrowed_core_s=0.0"
    ]


@pytest.mark.parametrize("text", ["slurm_load_jobs error: Invalid job id specified"])
def test_a_job_that_slurm_does_not_know_any_more_has_ended(stage: Stage, text: str) -> None:
    """That is no failure."""
    slot = stage.start(7, 0.0)
    stage.run(0.0)
    stage.run(SETTLE)
    stage.node.ended(slot, 100.0)
    stage.fail("squeue", text)
    stage.run(100.0)
    stage.run(100.0 + SETTLE)

    assert "event=slurm_use job=slurm-7" in stage.log.getvalue()
    assert "slurm_failed" not in stage.log.getvalue()


def test_a_job_that_runs_again_is_written_again(stage: Stage) -> None:
    """As after a requeue; what it used before counts."""
    slot = stage.start(7, 0.0)
    stage.run(0.0)
    stage.run(SETTLE)
    stage.node.ended(slot, 100.0)
    stage.end(7)
    stage.run(100.0)
    stage.run(100.0 + SETTLE)
    stage.start(7, 200.0, comment=stage.comment(7))
    stage.run(200.0)
    assert stage.run(200.0 + SETTLE) == [7]

    assert read_uses(stage.comment(7))["here"].total.held == 400 + 4 * SETTLE


def test_a_job_that_ends_while_it_is_written_is_no_failure(stage: Stage) -> None:
    """Slurm says that it has finished."""
    stage.start(7, 0.0)
    stage.run(0.0)
    stage.fail("scontrol", "Job has already finished for job 7\nslurm_update error: Job has already finished")
    assert stage.run(SETTLE) == []

    assert "slurm_failed" not in stage.log.getvalue()


def test_a_failure_is_logged_and_tried_again(stage: Stage) -> None:
    """Other failures than the end of a job."""
    stage.start(7, 0.0)
    stage.run(0.0)
    stage.fail("scontrol", "Invalid user id")
    assert stage.run(SETTLE) == []
    assert "Invalid user id" in stage.log.getvalue()
    stage.fail("scontrol", "")
    assert stage.run(10.0) == []
    assert stage.run(70.0) == [7]


def test_a_node_that_slurm_calls_otherwise_writes_nothing(stage: Stage) -> None:
    """It looks again later."""
    stage.start(7, 0.0, nodes="other")
    stage.run(0.0)
    assert stage.run(10.0) == []
    (stage.folder / "squeue.7").write_text("here", encoding="utf-8")
    assert stage.run(10.0 + LATER - 1) == []
    assert stage.run(10.0 + LATER) == [7]
