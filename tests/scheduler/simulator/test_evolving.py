# SPDX-License-Identifier: Apache-2.0
"""Evolving jobs: ranges that change while jobs run, and what processes that are left behind cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import MALLEABLE, RIGID, RUNNING
from drom.scheduler.simulator.adaptive import PoolModel
from drom.scheduler.simulator.simulation import Machine, Simulation
from drom.workloads.classes import Shares
from drom.workloads.classes import classes as classes_of
from drom.workloads.errors import WorkloadError
from drom.workloads.evolving import draw_phases
from drom.workloads.swf import write_swf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.commands import drom
from tests.support.job_logs import synthetic
from tests.support.schedules import NODES, Row, logs, workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FREE = PoolModel(minimum=1, maximum=1, shrink=0, expand=0, memory=0)
"""Changes cost nothing, and speedup is linear."""


def pool(
    rows: Sequence[Row], evolving: str = "", adaptive: PoolModel = FREE, classes: Sequence[int] = (), seed: int = 1
) -> Simulation:
    """Return a simulation of these jobs on eight processors under equipartition before its first event."""
    kinds = np.array(classes, np.int64) if classes else None
    policy = load_policy("equipartition")
    return Simulation.of(workload(rows), Machine(NODES), policy, kinds, adaptive, evolving=evolving, seed=seed)


def held(run: Simulation, until: int) -> list[int]:
    """Return the processors of each job at a time."""
    run.run(until)
    processors: list[int] = run.world.jobs.held.tolist()
    return processors


class TestPhases:
    """A job's range changes when it has done so much of its work."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        """Return a file in which job 1 needs two processors, then five to six, then one."""
        path = tmp_path / "phases.csv"
        path.write_text("job,progress,least,most\n1,0,2,2\n1,0.25,5,6\n1,0.75,1,1\n", encoding="utf-8")
        return path

    def test_by_hand(self, file: Path) -> None:
        """Two jobs of 400 processor-seconds each; job 2 can use 2 to 6 processors.

        Job 1 does its first 100 on 2 processors. At 50 s it needs 5; with the minimum of job 2 one of 8 is left, and
        goes to the earlier job. So it does 204 in 34 s on 6, where 200 were enough, and the other 96 on 1.
        """
        run = pool([(0, 100, 100, 4), (0, 100, 100, 4)], str(file), FREE._replace(minimum=0.5, maximum=1.5))

        assert held(run, 49) == [2, 6]
        assert run.world.jobs.most[0] == 2
        assert held(run, 50) == [6, 2]
        assert held(run, 83) == [6, 2]
        assert held(run, 84) == [1, 6]
        run.run()
        assert run.world.end.tolist() == [50 + 34 + 96, 84 + -(-(400 - 50 * 6 - 34 * 2) // 6)]

    def test_seconds_of_the_run_time(self, tmp_path: Path) -> None:
        """Seconds count on the job's own size: a job on twice its size comes there in half of them."""
        path = tmp_path / "phases.csv"
        path.write_text("job,seconds,least,most\n1,60,1,1\n", encoding="utf-8")
        run = pool([(0, 100, 100, 4)], str(path), FREE._replace(maximum=2))

        assert held(run, 29) == [8]
        assert held(run, 30) == [1]
        run.run()
        assert run.world.end.tolist() == [30 + 160]

    def test_a_minimum_that_has_no_room(self, tmp_path: Path) -> None:
        """Who cannot have its new minimum has as much of it as there is, and the rest when that comes free."""
        path = tmp_path / "phases.csv"
        path.write_text("job,progress,least,most\n1,0.5,8,8\n", encoding="utf-8")
        run = pool([(0, 40, 40, 2), (0, 60, 60, 4)], str(path), classes=(MALLEABLE, RIGID))

        assert held(run, 19) == [2, 4]
        assert held(run, 20) == [4, 4]
        run.run()
        assert run.world.end.tolist() == [30, 60]

    def test_phases_within_a_second(self, tmp_path: Path) -> None:
        """A job that passes two phases and its end within a second passes all of them, and ends."""
        path = tmp_path / "phases.csv"
        path.write_text("job,progress,least,most\n1,0.5,3,3\n1,0.6,4,4\n", encoding="utf-8")
        run = pool([(0, 1, 1, 2)], str(path))
        run.run()

        assert run.world.end.tolist() == [1]
        assert run.world.jobs.least.tolist() == [4]

    def test_drawn(self) -> None:
        """A job's phases depend on its number and the seed alone, and keep to the machine."""
        job, most = np.arange(1, 1001), np.full(1000, 6)
        cls = np.full(1000, MALLEABLE, np.int8)
        found = draw_phases(job, cls, most // 2, most, 8, 0.3, 5)
        alone = draw_phases(job[99:], cls[99:], most[99:] // 2, most[99:], 8, 0.3, 5)

        assert 0.25 < len(found) / 1000 < 0.35
        assert alone == {number: phases for number, phases in found.items() if number > 99}
        assert {(p.least, p.most) for phases in found.values() for p in phases} == {(2, 3), (3, 6), (6, 8)}
        assert all(0 < a.progress < b.progress < c.progress < 1 for a, b, c in found.values())
        assert not draw_phases(job, np.full(1000, RIGID, np.int8), most, most, 8, 1, 5)

    def test_drawn_apart_from_classes_and_other_seeds(self) -> None:
        """Of malleable jobs as many evolve as of all, and the phases of a seed are not those of its neighbour."""
        job, most = np.arange(1, 10_001), np.full(10_000, 6)
        cls = classes_of(job, Shares(0.3), 5)
        found = draw_phases(job, cls, most, most, 8, 0.3, 5)
        one, other = (draw_phases(job, np.full_like(cls, MALLEABLE), most, most, 8, 1, seed) for seed in (5, 6))
        begins = [{phase.progress for phases in drawn.values() for phase in phases} for drawn in (one, other)]

        assert len(found) / np.count_nonzero(cls == MALLEABLE) == pytest.approx(0.3, abs=0.04)
        assert begins[0].isdisjoint(begins[1])


@given(logs(), st.integers(1, 9), st.sampled_from((0, 3)), st.sampled_from((0.0, 0.02, 0.5)))
@settings(deadline=None)
def test_what_always_holds(rows: list[Row], seed: int, stall: int, residual: float) -> None:
    """After each event no job is above its range, nothing idles that somebody can use, and no work is lost."""
    adaptive = FREE._replace(minimum=0.5, maximum=2, stall=stall, residual=residual)
    run = pool(rows, "1", adaptive, seed=seed)
    world, jobs, second = run.world, run.world.jobs, 0
    work = world.run * world.speed[jobs.nodes]
    while not run.is_over:
        run.run(second)
        runs, free = jobs.state == RUNNING, NODES - int(jobs.held.sum())
        passed = np.where(runs, jobs.since - jobs.start, 0)
        done = passed * world.speed[jobs.nodes] - jobs.lost

        assert run.world.scalars[1] == free >= 0
        assert (jobs.held[runs] <= jobs.most[runs]).all()
        assert free == 0 or (jobs.held[runs] == jobs.most[runs]).all()
        assert (done[runs] + world.left[runs] == work[runs]).all()
        second += 1
    took = world.end - jobs.start
    assert (took * world.speed[jobs.nodes] - jobs.lost >= work).all()


class TestResidualProcesses:
    """Processes that jobs leave on processors of others."""

    def test_two_jobs_of_eight_on_sixteen(self) -> None:
        """The paper's Table 5: both may use all 16 processors and have 8; with 1.98 % each takes 1.98 % longer."""
        rows = [(0, 1000, 1000, 8), (0, 1000, 1000, 8)]
        adaptive = FREE._replace(maximum=2, residual=0.0198)
        run = Simulation.of(workload(rows), Machine(16), load_policy("equipartition"), None, adaptive)
        run.run()

        assert run.world.end.tolist() == [1020, 1020]

    def test_a_share_of_the_processors(self) -> None:
        """Job 1 may use 6 of 8 and has 4, so 2 of the 4 others carry its processes; job 2, rigid, leaves none.

        Half of 50 % makes job 2 take 125 s for 100 s of work: 80 s of it are done when job 1 ends.
        """
        rows = [(0, 100, 100, 4), (0, 100, 100, 4)]
        adaptive = FREE._replace(maximum=1.5, residual=0.5)
        run = pool(rows, "", adaptive, (MALLEABLE, RIGID))
        run.run()

        assert run.world.end.tolist() == [100, 100 + 20]

    def test_none_without_it(self) -> None:
        """Without the parameter nobody is disturbed."""
        run = pool([(0, 100, 100, 4), (0, 100, 100, 4)], "", FREE._replace(maximum=2))
        run.run()

        assert run.world.end.tolist() == [100, 100]


def test_a_table_of_a_spreadsheet(tmp_path: Path) -> None:
    """What Excel calls CSV UTF-8 begins with a byte order mark."""
    path = tmp_path / "phases.csv"
    path.write_text("job,progress,least,most\r\n1,0,2,2\r\n", encoding="utf-8-sig")

    assert held(pool([(0, 5, 5, 4)], str(path)), 0) == [2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("job,progress\n1,0.5\n", "line 1: write job,progress,least,most or job,seconds,least,most"),
        ("job,progress,least,most\n1,0.5,3,2\n", "line 2: the least 3 is above the most 2"),
        ("job,progress,least,most\n1,0.5,0,2\n", "line 2, least: 0 is not a whole number of at least 1"),
        ("job,progress,least,most\n1,1,1,2\n", "line 2, progress: 1 is not a fraction"),
        ("job,seconds,least,most\n1,-1,1,2\n", "line 2, seconds: -1 is less than 0"),
        ("job,progress,least,most\n1,x,1,2\n", "line 2, progress: 'x' is not a number"),
        ("job,progress,least,most\n1,0.5,1\n", "line 2: 3 columns where the first line has 4"),
        ("job,progress,least,most\n1,0.5,1,2\n1,0.5,1,2\n", "line 3: 0.5 is not after 0.5"),
        ("job,progress,least,most\n1,0.5,1,9\n", "line 2: the machine has 8 processors, fewer than 9"),
        ("job,progress,least,most\n7,0.5,1,2\n", "line 2: there is no malleable job 7"),
        ("job,progress,least,most\n2,0.5,1,2\n", "line 2: there is no malleable job 2"),
    ],
)
def test_a_file_that_cannot_be(text: str, said: str, tmp_path: Path) -> None:
    """One sentence with file, line and what is wrong."""
    path = tmp_path / "phases.csv"
    path.write_text(text, encoding="utf-8")

    with pytest.raises((SchedulerError, WorkloadError), match=said):
        pool([(0, 5, 5, 2), (0, 5, 5, 2)], str(path), classes=(MALLEABLE, RIGID))


def test_command(tmp_path: Path) -> None:
    """A fraction of the jobs evolves; a saved run goes on to the same schedule; other policies know nothing of it."""
    log = tmp_path / "log.swf.gz"
    write_swf(synthetic(), log)
    common = ("simulate", log, "--nodes", "64", "--policy", "equipartition", "--evolving", "0.5")
    drom(*common, "--adaptive", "residual=0.02", "--out", tmp_path / "whole")
    drom(*common, "--adaptive", "residual=0.02", "--until", "5000", "--save", tmp_path / "state")
    drom(*common, "--adaptive", "residual=0.02", "--resume", tmp_path / "state", "--out", tmp_path / "parts")
    told = json.loads((tmp_path / "whole" / "summary.json").read_text(encoding="utf-8"))
    _, none = drom("simulate", log, "--nodes", "64", "--policy", "easy", "--evolving", "0.5", code=2)
    _, much = drom(*common[:-1], "1.5", code=1)

    assert (told["evolving"], told["adaptive"]["residual"]) == ("0.5", 0.02)
    assert (tmp_path / "parts" / "jobs.csv").read_text() == (tmp_path / "whole" / "jobs.csv").read_text()
    assert "--evolving is for policies that allot" in " ".join(none.replace("│", " ").split())
    assert "give a fraction of the jobs from 0 to 1, or a file" in much
