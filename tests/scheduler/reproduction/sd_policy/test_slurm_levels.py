# SPDX-License-Identifier: Apache-2.0
"""The runs on a real Slurm: which there are, what they are compared by, and what is kept of them; without a Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from drom.scheduler.errors import SchedulerError
from drom.scheduler.reproduction.sd_policy.real import command, completed, levels, running_slurm
from drom.scheduler.reproduction.sd_policy.real.command import RunSelection, left, make_all
from drom.scheduler.reproduction.sd_policy.real.running import Task
from drom.scheduler.reproduction.sd_policy.real.settings import LEVELS, LOAD, SLURM
from drom.scheduler.testbed.namespaces import MachineError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from threading import Event

CORES = SLURM.cores


def job(number: int, submitted: float, started: float, ended: float, **more: Any) -> dict[str, Any]:
    """Return a job of a history that had all cores of one node."""
    return {
        "job": number,
        "name": "PILS",
        "user": "root",
        "class": "malleable",
        "nodes": 1,
        "requested": 60,
        "limit": 60,
        "submitted": submitted,
        "started": started,
        "ended": ended,
        "state": "completed",
        "shares": {"n1": CORES},
    } | more


def history(*jobs: dict[str, Any], mates: dict[int, list[int]] | None = None) -> dict[str, Any]:
    """Return a history of jobs on one node; `mates` are those beside which jobs started."""
    placed = [
        {
            "job": one["job"],
            "what": "placed",
            "at": one["started"],
            "detail": {"shares": one["shares"], "mates": (mates or {}).get(one["job"], [])},
        }
        for one in jobs
    ]
    return {
        "name": "test",
        "policy": "slurm",
        "parameters": {},
        "nodes": ["n1"],
        "cores": CORES,
        "time": max(one["ended"] for one in jobs),
        "jobs": list(jobs),
        "entries": placed,
        "said": {str(one["job"]): f"paced: {one['started']} {one['ended']}" for one in jobs},
        "problems": [],
        "busy": 0.25,
        "taken_back": 2,
        "joules": None,
    }


def test_the_runs_that_are_made() -> None:
    """The levels of a seed follow each other, options apply to them, and Slurm is not among the parts by default."""
    tasks = RunSelection(("slurm",), seed=4, seeds=2, first=20, compression=30.0, curves="ideal").tasks()

    assert [(task.seed, task.policy) for task in tasks] == [(seed, level) for seed in (4, 5) for level in LEVELS]
    assert {(task.first, task.compression, task.curves) for task in tasks} == {(20, 30.0, "ideal")}
    assert len(RunSelection(("slurm",)).tasks()) == 9
    assert "slurm" not in {task.scale for task in RunSelection().tasks()}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_jobs_come_within_a_third_of_the_time_that_they_need(seed: int) -> None:
    """The mix for Slurm has the load of workload 5, and no job has more than a third of the nodes."""
    jobs = Task("slurm", seed, "level-0", SLURM.jobs, SLURM.compression).jobs()
    needed = sum(one.nodes * one.run_time for one in jobs) / SLURM.nodes

    assert len(jobs) == SLURM.jobs == 200
    assert needed / jobs[-1].submit == pytest.approx(LOAD, rel=0.05)
    assert max(one.nodes for one in jobs) == SLURM.largest <= SLURM.nodes / 3
    assert min(one.run_time for one in jobs) / SLURM.compression >= 5


def test_a_mate_is_excluded_by_its_wait_and_by_the_request_of_the_guest() -> None:
    """The predicted slowdown of a mate is Equation 4: it has waited, and loses the guest's request at worst."""
    mate = job(1, 0, 300, 360)

    assert levels.predicted(job(2, 0, 310, 320), mate) == (300 + 60 + 60) / 60
    assert levels.predicted(job(2, 0, 310, 320, limit=3000), mate) == (300 + 60 + 3000) / 60


def test_what_sharing_did_to_jobs() -> None:
    """Guests are counted once, those that the policy would have excluded too; stretches are those of mates alone."""
    jobs = [job(1, 0, 0, 30), job(2, 0, 0, 20), job(3, 5, 6, 16), job(4, 5, 20, 25, limit=6000)]
    found = levels.sharing_of(history(*jobs, mates={3: [1, 2], 4: [1]}), {1: 10, 2: 20, 3: 1, 4: 1})

    assert found == levels.Sharing(2, 1, (60 + 6000) / 60, mean_stretch=2.0, worst_stretch=3.0)
    assert levels.sharing_of(history(*jobs), {1: 10, 2: 20, 3: 1, 4: 1}) == levels.Sharing(0, 0, 1.0, 1.0, 1.0)


def test_jobs_that_start_together_may_be_either_one_s_guest() -> None:
    """Where two jobs start within Slurm's cycles, the one that loses less by its request counts as the mate."""
    long, short = job(1, 0, 10, 30, limit=6000), job(2, 0, 9, 20)
    alone = {1: 10, 2: 10}

    assert levels.sharing_of(history(short, long, mates={1: [2]}), alone).excluded == 0
    assert levels.sharing_of(history(short | {"started": 5}, long, mates={1: [2]}), alone).excluded == 1


def test_changes_are_paired_by_seed(tmp_path: Path) -> None:
    """Changes are means over seeds of those from level 0 of the same seed; half a seed counts for nothing."""
    lasts = {"level-0": (100, 200), "level-1": (90, 160), "level-2": (80, 180)}
    for level, ends in lasts.items():
        for seed, end in enumerate(ends, 1):
            task = Task("slurm", seed, level, 2, SLURM.compression)
            completed.keep(tmp_path, task, history(job(1, 0, 0, 10), job(2, 0, 10, end)))
    completed.keep(
        tmp_path, Task("slurm", 3, "level-0", 2, SLURM.compression), history(job(1, 0, 0, 1), job(2, 0, 0, 1))
    )
    runs = completed.all_in(tmp_path)
    found = {(row.what.partition(" (")[0], row.unit): row for row in levels.rows(runs)}

    assert found["level 0, Slurm's backfill: makespan", "s"].here == pytest.approx(150)
    assert found["level 1, shared nodes, agents: makespan", "%"].here == pytest.approx(-15)
    assert found["level 2, drom slurm: makespan", "%"].here == pytest.approx(-15)
    assert found["level 2, drom slurm: makespan", "%"].paper is not None
    assert found["level 1, shared nodes, agents: guests", "jobs"].here == 0
    notes = " ".join(levels.notes(runs))
    assert "busy for 25 to 25 %" in notes
    assert "took back 4 jobs" in notes
    assert levels.rows([]) == []
    assert not list(levels.notes([]))


def test_a_machine_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there can be no Slurm, one sentence says why, before anything is made."""
    monkeypatch.setattr(command, "why_no_slurm", lambda: "a cluster with Slurm needs munge: apt-get install them.")

    with pytest.raises(SchedulerError, match="apt-get install"):
        left(RunSelection(("slurm",)), tmp_path)
    assert not list(tmp_path.iterdir())


def test_runs_that_have_ended_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails stops those beside it; what has ended before is kept, and not made again."""
    made: list[str] = []

    def run(task: Task, _show: Callable[[float], None], stop: Event) -> dict[str, Any]:
        made.append(task.policy)
        if task.policy == "level-1" and made.count("level-1") == 1:
            raise MachineError("the machine is broken.")
        if task.policy == "level-2" and made.count("level-1") == 1:
            assert stop.wait(60)
            raise MachineError("the run was stopped.")
        return history(job(1, 0, 0, 10))

    monkeypatch.setattr(command, "why_no_slurm", lambda: "")
    monkeypatch.setattr(command, "prepare_policy", lambda _: None)
    monkeypatch.setattr(running_slurm, "run", run)
    wanted = RunSelection(("slurm",), seeds=1, first=1)
    first = left(wanted, tmp_path)
    make_all(first[:1], tmp_path, lambda _: None)
    with pytest.raises(MachineError, match="broken"):
        make_all(left(wanted, tmp_path), tmp_path, lambda _: None)
    again = left(wanted, tmp_path)
    make_all(again, tmp_path, lambda _: None, at_once=1)

    assert [task.policy for task in again] == ["level-1", "level-2"]
    assert made.count("level-0") == 1
    assert len(completed.all_in(tmp_path)) == 3
