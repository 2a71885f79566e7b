# SPDX-License-Identifier: Apache-2.0
"""Equipartition: who is let in, who has how many processors, and what changes cost."""

from __future__ import annotations

import csv
import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.engine.pool import cost
from drom.scheduler.engine.state import NOTHING, make_actions, view
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import ALLOT, MALLEABLE, MILLION, MOLDABLE, NEVER, RIGID, RUNNING, WAITING
from drom.scheduler.policies.equipartition import decide
from drom.scheduler.policies.pool_math import divide
from drom.scheduler.simulator.adaptive import SCALE, PoolModel, parse_adaptive, speeds
from drom.scheduler.simulator.simulation import Machine, Simulation
from drom.workloads.swf import write_swf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.commands import drom
from tests.support.job_logs import synthetic
from tests.support.schedules import NODES, Row, logs, starts, workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FREE = PoolModel(minimum=0.5, maximum=2, shrink=0, expand=0, memory=0)
"""Changes cost nothing, and speedup is linear."""


def pool(
    rows: Sequence[Row], adaptive: PoolModel = FREE, processors: int = NODES, classes: Sequence[int] = ()
) -> Simulation:
    """Return a simulation of these jobs under equipartition before its first event."""
    kinds = np.array(classes, np.int64) if classes else None
    return Simulation.of(workload(rows), Machine(processors), load_policy("equipartition"), kinds, adaptive)


def ends(run: Simulation) -> list[int]:
    """Return when each job ends."""
    run.run()
    ended: list[int] = run.world.end.tolist()
    return ended


def held(run: Simulation, until: int) -> list[int]:
    """Return the processors of each job at a time."""
    run.run(until)
    processors: list[int] = run.world.jobs.held.tolist()
    return processors


class TestShares:
    """Minima first, then equal parts up to the maxima."""

    def test_the_example_of_the_paper(self) -> None:
        """On 100 processors a job of 64 shrinks to 60 for one of 40, which a rigid scheduler would let wait."""
        rows = [(0, 100, 100, 64), (10, 100, 100, 40)]

        assert held(pool(rows, FREE._replace(maximum=1), 100, (MALLEABLE, RIGID)), 10) == [60, 40]
        assert starts(rows, "firstfit", Machine(100)) == [0, 100]

    def test_the_rest_is_shared_equally(self) -> None:
        """Minima of 1, 2 and 1 leave 8 - 4 = 4: one each, and the one that cannot be divided to the first."""
        assert held(pool([(0, 90, 90, 2), (0, 90, 90, 4), (0, 90, 90, 2)]), 0) == [3, 3, 2]

    def test_nobody_exceeds_its_maximum(self) -> None:
        """What a job cannot use goes to the others."""
        assert held(pool([(0, 90, 90, 1), (0, 90, 90, 4)]), 0) == [2, 6]

    def test_first_fit(self) -> None:
        """A job whose minimum does not fit waits, and a later one that fits does not."""
        run = pool([(0, 60, 60, 8), (1, 60, 60, 10), (2, 60, 60, 4)], FREE._replace(minimum=1), 12)

        assert held(run, 2) == [8, 0, 4]

    def test_moldable_jobs_choose_once(self) -> None:
        """A moldable job starts with its share and keeps it; the malleable one takes what comes free."""
        run = pool([(0, 20, 20, 4), (0, 60, 60, 4), (0, 90, 90, 4)], FREE, 12, (RIGID, MOLDABLE, MALLEABLE))

        assert held(run, 0) == [4, 4, 4]
        assert held(run, 20) == [0, 4, 8]

    @given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 40))
    def test_dividing_is_dealing_one_by_one(self, room: list[int], spare: int) -> None:
        """Equal parts up to the maxima are what dealing single processors in turn gives."""
        share, left = np.zeros(len(room), np.int64), np.array(room, np.int64)
        divide(share, left, spare)
        dealt = [0] * len(room)
        while spare and dealt != room:
            for i in range(len(room)):
                if spare and dealt[i] < room[i]:
                    dealt[i] += 1
                    spare -= 1

        assert share.tolist() == dealt

    def test_shrinks_come_first_then_starts_then_expansions(self) -> None:
        """No job needs processors that one before it in the answer still has."""
        run = pool([(0, 9, 9, 6), (0, 9, 9, 2), (0, 9, 9, 2), (5, 9, 9, 2)], FREE._replace(minimum=1), 10)
        jobs, actions = run.world.jobs, make_actions(run.world)
        jobs.state[:3], jobs.state[3], jobs.held[:3] = RUNNING, WAITING, (6, 1, 3)
        jobs.most[:] = (6, 4, 2, 2)
        state = view(run.world)._replace(now=5, free=0, running=np.arange(3), queue=np.array([3]))
        jobs.least[:] = (1, 1, 1, 2)

        assert decide(state, NOTHING, np.zeros(1), actions) == NEVER
        rows = actions.rows[: actions.used[0]]
        assert (rows[:, 0] == ALLOT).all()
        assert rows[:, [1, 4]].tolist() == [[0, 3], [2, 2], [3, 2], [1, 3]]


class TestTimes:
    """When jobs end."""

    def test_linear_speedup(self) -> None:
        """A job on twice its size is twice as fast, until another one comes and takes half of it."""
        assert ends(pool([(0, 60, 60, 4), (10, 40, 40, 4)])) == [50, 50]

    def test_a_job_on_few_processors_has_no_limit(self) -> None:
        """Half of what it asked for takes twice the time it asked for, and does not end it."""
        run = pool([(0, 60, 60, 8), (0, 60, 60, 8)])

        assert ends(run) == [120, 120]

    def test_a_stall_of_five_seconds(self) -> None:
        """A job that shrinks and expands once each loses what it does in five seconds at its new size."""
        rows = [(0, 100, 100, 8), (20, 10, 10, 4)]
        adaptive = FREE._replace(maximum=1)

        assert ends(pool(rows, adaptive, classes=(MALLEABLE, RIGID))) == [105, 30]
        assert ends(pool(rows, adaptive._replace(stall=5), classes=(MALLEABLE, RIGID))) == [105 + 3 + 5, 30]

    def test_a_stall_of_a_day_on_many_processors(self) -> None:
        """What 20,000 processors do in a day is no number that overflows: 80 s are left, and the price of two days."""
        run = pool([(0, 100, 100, 20_000), (20, 10, 10, 10_000)], FREE._replace(maximum=1, stall=86_400), 20_000)
        run.world.jobs.cls[1] = RIGID
        run.world.jobs.least[1] = 10_000

        assert ends(run) == [30 + 80 - 10 // 2 + 86_400 // 2 + 86_400, 30]

    @pytest.mark.parametrize(("seconds", "minimum"), [(10**10, 1), (10**8, 1e-6)])
    def test_more_work_than_can_be_counted(self, seconds: int, minimum: float) -> None:
        """A million processors for centuries, or for years on one of them, are no number of 64 bits."""
        with pytest.raises(SchedulerError, match=r"The work of 1,000,000 processors in 10.* s is more than a pool can"):
            pool([(0, seconds, seconds, 10**6)], FREE._replace(minimum=minimum), 10**6)

    @pytest.mark.parametrize("choice", ["memory=1e300", "bandwidth=1e-300", "shrink=86400"])
    def test_changes_that_cost_more_than_a_year(self, choice: str) -> None:
        """Are refused, with what they would cost."""
        with pytest.raises(SchedulerError, match=r"would cost up to .* s, more than 31,536,000: choose less of stall"):
            pool([(0, 1, 1, 1)], parse_adaptive([choice]), 1000)

    def test_a_minimum_beyond_all_machines(self) -> None:
        """Jobs have all processors; what is out of reach of a float is never computed."""
        world = pool([(0, 1, 1, 3), (0, 1, 1, 8)], parse_adaptive(["minimum=1e308", "maximum=1.5e308"])).world

        assert (world.jobs.least.tolist(), world.jobs.most.tolist()) == ([NODES, NODES], [NODES, NODES])

    def test_what_the_paper_measured(self) -> None:
        """By default 86 ms to shrink from 128 to 64 processors, and 67.6 ms to expand again."""
        world = pool([(0, 1, 1, 128)], PoolModel(), 128).world

        assert cost(world, 128, 64) / MILLION == pytest.approx(0.086, abs=1e-4)
        assert cost(world, 64, 128) / MILLION == pytest.approx(0.0676, abs=1e-4)

    def test_ticks(self) -> None:
        """In a log of milliseconds the same change costs a thousand times as many of them."""
        world = pool([(0, 1, 1, 128)], PoolModel().by_ticks(1000), 128).world

        assert cost(world, 128, 64) / MILLION == pytest.approx(86, abs=1e-3)

    def test_speedup_curve(self) -> None:
        """Downey's curve with A = 64 and sigma = 1 has 64 * 64 / 95.5 on 64 processors."""
        assert speeds(64, math.inf, 1)[64] == 64 * SCALE
        assert speeds(64, 64, 1)[64] == round(64 * 64 / 95.5 * SCALE)
        assert speeds(64, 64, 1)[:2].tolist() == [0, SCALE]


@given(logs(), st.sampled_from((0.3, 0.5, 1.0)), st.sampled_from((1.0, 1.5, math.inf)), st.sampled_from((0, 5)))
@settings(deadline=None)
def test_what_always_holds(rows: list[Row], minimum: float, maximum: float, stall: float) -> None:
    """After each event shares lie in their range, nobody waits who fits, nothing is idle that somebody can use."""
    run = pool(rows, FREE._replace(minimum=minimum, maximum=maximum, stall=stall))
    world, jobs, second = run.world, run.world.jobs, 0
    while not run.is_over:
        run.run(second)
        second += 1
        runs, waits = jobs.state == RUNNING, jobs.state == WAITING
        share, free = jobs.held[runs], NODES - int(jobs.held.sum())
        extra = (share - jobs.least[runs])[share < jobs.most[runs]]

        assert view(world).free == free >= 0
        assert (jobs.held[~runs] == 0).all()
        assert ((jobs.least[runs] <= share) & (share <= jobs.most[runs])).all()
        assert (jobs.least[waits] > NODES - jobs.least[runs].sum()).all()
        assert free == 0 or (share == jobs.most[runs]).all()
        assert not len(extra) or (share - jobs.least[runs]).max() <= extra.min() + 1


@pytest.mark.parametrize(
    ("head", "row", "said"),
    [
        ("POOL = True", "start(actions, job)", "allots processors without POOL = True, or starts and resizes jobs"),
        ("", "allot(actions, job, 1)", "allots processors without POOL = True"),
        ("POOL = True", "allot(actions, job, 0)", "less than one core"),
        ("POOL = True", "allot(actions, job, 9)", "no room for it"),
    ],
)
def test_a_policy_that_does_wrong(head: str, row: str, said: str, tmp_path: Path) -> None:
    """What a policy of the user's asks of the wrong machine, or too much of a pool, is a sentence."""
    file = tmp_path / "wrong.py"
    body = (
        f"def decide(state, event, options, actions):\n    for job in state.queue:\n        {row}\n    return NEVER\n"
    )
    file.write_text(f"from drom.scheduler.interface import NEVER, allot, start\n{head}\n{body}", encoding="utf-8")
    run = Simulation.of(workload([(0, 5, 5, 2)]), Machine(NODES), load_policy(str(file)))

    with pytest.raises(SchedulerError, match=said):
        run.run()


class TestCommand:
    """`drom simulate --policy equipartition`."""

    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        """Return a small log."""
        write_swf(synthetic(), tmp_path / "log.swf.gz")
        return tmp_path / "log.swf.gz"

    def test_results(self, log: Path, tmp_path: Path) -> None:
        """The files and columns of other policies; the cores of all nodes are one pool, and a note says so."""
        _, said = drom(
            *("simulate", log, "--nodes", "16", "--cores", "4", "--policy", "equipartition"),
            *("--adaptive", "stall=5", "--plots", "svg", "--out", tmp_path / "r"),
        )
        rows = list(csv.DictReader((tmp_path / "r" / "jobs.csv").read_text(encoding="utf-8").splitlines()))
        told = json.loads((tmp_path / "r" / "summary.json").read_text(encoding="utf-8"))

        assert "allots the 64 cores as one pool" in said
        assert "no Gantt chart" in said
        assert {file.name for file in (tmp_path / "r").glob("*.svg")} == {"load.svg", "days.svg", "heatmaps.svg"}
        assert (told["machine"]["nodes"], told["adaptive"]["stall"]) == (64, 5)
        assert told["jobs"]["ended"] == len(rows) == 200
        assert {row["limit"] for row in rows} == {"-1"}
        assert all(int(row["start"]) >= int(row["submit"]) for row in rows)

    def test_what_is_infinite_is_null(self, log: Path, tmp_path: Path) -> None:
        """JSON has no word for it: any reader takes what is printed and written."""
        told, _ = drom(
            *("simulate", log, "--nodes", "64", "--policy", "equipartition", "--adaptive", "maximum=inf"),
            *("--json", "--out", tmp_path),
            compiled=False,
        )
        texts = (told, (tmp_path / "summary.json").read_text(encoding="utf-8"))
        values = [json.loads(text, parse_constant=pytest.fail) for text in texts]

        assert [(one["adaptive"]["maximum"], one["adaptive"]["parallelism"]) for one in values] == [(None, None)] * 2

    def test_stopping_and_going_on(self, log: Path, tmp_path: Path) -> None:
        """A saved run goes on to the same schedule, and not with other jobs."""
        common = ("simulate", log, "--nodes", "64", "--policy", "equipartition")
        drom(*common, "--out", tmp_path / "whole")
        drom(*common, "--until", "5000", "--save", tmp_path / "state")
        drom(*common, "--resume", tmp_path / "state", "--out", tmp_path / "parts")
        _, said = drom(*common, "--resume", tmp_path / "state", "--adaptive", "stall=5", code=1)

        assert (tmp_path / "parts" / "jobs.csv").read_text() == (tmp_path / "whole" / "jobs.csv").read_text()
        assert "was saved with adaptive stall 0.0, not 5.0: give the same log and options." in said

    def test_explain(self, log: Path) -> None:
        """A job's range, its first share and how often it shrank; nothing about nodes, which are not known."""
        told, _ = drom(
            "simulate", log, "--nodes", "64", "--policy", "equipartition", "--explain", "100", compiled=False
        )

        assert "processors, started with" in told
        assert "stayed free" not in told


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (["minimum=2", "maximum=1"], "the minimum 2 is above the maximum 1"),
        (["minimum=0"], "--adaptive 'minimum=0': minimum is a number above 0."),
        (["stall=-1"], "stall is a number of seconds from 0 to 86400"),
        (["bandwidth=nan"], "bandwidth is a number above 0"),
        (["parallelism=x"], "parallelism is a number from 1 to 1,000,000,000, or infinite"),
        (["sigma=1e308"], "sigma is a number from 0 to 1,000,000,000"),
        (["speed=1"], "there is no 'speed': choose minimum, maximum"),
    ],
)
def test_what_jobs_cannot_be(choice: list[str], said: str) -> None:
    """One sentence with what is wrong and what it has to be."""
    with pytest.raises(SchedulerError, match=said):
        parse_adaptive(choice)


def test_infinite_is_a_number() -> None:
    """The word that the sentences name is taken, as in `--set max_slowdown=infinite`."""
    assert parse_adaptive(["parallelism=infinite"]) == PoolModel()


def test_adaptive_is_for_pools(tmp_path: Path) -> None:
    """Other policies know nothing of processors in a pool."""
    _, said = drom("simulate", tmp_path / "x", "--nodes", "4", "--policy", "easy", "--adaptive", "stall=5", code=2)

    assert "add --policy equipartition or sd, not easy" in " ".join(said.replace("│", " ").split())
