# SPDX-License-Identifier: Apache-2.0
"""Contracts: what jobs pay when, and the policy that goes by it."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.analysis.contracts import check_possible, contract_outcome, shortest_times
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import MALLEABLE, MOLDABLE, NEVER, RIGID, RUNNING
from drom.scheduler.policies.pool_math import worth
from drom.scheduler.simulator.adaptive import PoolModel
from drom.scheduler.simulator.simulation import Machine, Simulation
from drom.workloads.classes import uniform
from drom.workloads.contracts import LARGEST, UNBOUND, Contracts, Terms, draw_contracts
from drom.workloads.errors import WorkloadError
from drom.workloads.swf import write_swf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.commands import drom
from tests.support.job_logs import synthetic
from tests.support.schedules import NODES, Row, logs, workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FREE = PoolModel(minimum=0.5, maximum=2, shrink=0, expand=0, memory=0)
"""Changes cost nothing, and speedup is linear."""

Terms4 = tuple[int, int, int, int]
"""Soft and hard deadline, pay-off, penalty."""


def bound(terms: Sequence[Terms4]) -> Contracts:
    """Return these contracts."""
    soft, hard, payoff, penalty = np.array(terms, np.int64).T
    return Contracts(soft, hard, payoff, penalty)


def pool(
    rows: Sequence[Row], terms: Sequence[Terms4], adaptive: PoolModel = FREE, classes: Sequence[int] = ()
) -> Simulation:
    """Return a simulation of these jobs on eight processors under `payoff` before its first event."""
    kinds = np.array(classes, np.int64) if classes else None
    return Simulation.of(workload(rows), Machine(NODES), load_policy("payoff"), kinds, adaptive, contracts=bound(terms))


def held(run: Simulation, until: int) -> list[int]:
    """Return the processors of each job at a time."""
    run.run(until)
    processors: list[int] = run.world.jobs.held.tolist()
    return processors


def test_what_an_end_is_worth() -> None:
    """All until the soft deadline, half of it halfway, nothing at the hard one, then the penalty."""
    terms = np.array([(100, 200, 50, 7)])

    assert [worth(terms, 0, end) for end in (0, 100, 150, 151, 200, 201)] == [50, 50, 25, 24, 0, -7]


def test_what_an_end_is_worth_of_the_largest_contract() -> None:
    """To the unit, although pay-off times seconds is beyond 64 bits."""
    span = 10**9 - 7
    terms = np.array([(0, span, LARGEST, 0)])

    assert [worth(terms, 0, end) for end in (1, 333, span - 1)] == [
        LARGEST * left // span for left in (span - 1, span - 333, 1)
    ]


class TestPolicy:
    """Who runs, and on how many processors."""

    def test_no_more_than_needed(self) -> None:
        """400 processor-seconds by 140 s need 3 processors, and by 80 s 5, which is all there are."""
        run = pool([(0, 100, 100, 4), (0, 80, 80, 5)], [(140, 200, 9, 0), (80, 200, 9, 0)], FREE._replace(maximum=1))

        assert held(run, 0) == [3, 5]

    def test_the_dearer_job_first(self) -> None:
        """Of two that need all processors the later pays more for each processor-second, and the other waits."""
        run = pool([(0, 10, 10, 8), (0, 20, 20, 8)], [(90, 99, 10, 0), (90, 99, 30, 0)], FREE._replace(minimum=1))

        assert held(run, 0) == [0, 8]

    def test_a_running_job_shrinks_for_a_dearer_one(self) -> None:
        """To what it needs for its own deadline, and no further while others have enough."""
        rows = [(0, 50, 50, 8), (10, 30, 30, 5)]
        run = pool(rows, [(120, 150, 100, 0), (30, 60, 1000, 0)], FREE._replace(maximum=1, minimum=0.1))

        assert held(run, 9) == [8, 0]
        assert held(run, 10) == [3, 5]
        run.run()
        assert run.world.end.tolist() == [10 + 30 + 29, 40]  # 320 left at 10 s: 90 of them on 3, the others on 8

    def test_a_hopeless_job_waits_for_those_that_pay(self) -> None:
        """A job that cannot meet its hard deadline starts once no other job waits that can; it is not lost."""
        rows = [(0, 10, 10, 8), (0, 10, 10, 8), (0, 10, 10, 8)]
        run = pool(rows, [(5, 8, 99, 0), (30, 40, 1, 0), (30, 40, 1, 0)], FREE._replace(minimum=1))
        run.run()

        assert run.world.jobs.start.tolist() == [20, 0, 10]
        assert contract_outcome(run) == {
            "payoff": 2,
            "payoff_offered": 101,
            "contracts": 3,
            "soft_deadlines_met": pytest.approx(2 / 3),
            "hard_deadlines_met": pytest.approx(2 / 3),
        }

    def test_a_penalty_counts(self) -> None:
        """Of two that pay the same the one goes first that would cost something."""
        run = pool([(0, 10, 10, 8), (0, 10, 10, 8)], [(10, 10, 5, 0), (10, 10, 5, 1)], FREE._replace(minimum=1))
        run.run()

        assert run.world.jobs.start.tolist() == [10, 0]
        assert contract_outcome(run)["payoff"] == 5  # type: ignore[index]  # it has contracts

    def test_without_contracts(self) -> None:
        """Nobody pays, so that jobs start in order of the queue, and share the rest equally."""
        run = Simulation.of(workload([(0, 9, 9, 4), (0, 9, 9, 4)]), Machine(NODES), load_policy("payoff"))

        assert held(run, 0) == [4, 4]
        assert contract_outcome(run) is None


@given(logs(most=15), st.data())
@settings(deadline=None, max_examples=60)
def test_what_always_holds(rows: list[Row], data: st.DataObject) -> None:
    """Shares keep to their ranges, all jobs end, nothing idles that a running job could use."""
    time = st.integers(0, 40)
    terms = []
    for _ in rows:
        soft, later, payoff, penalty = (data.draw(time) for _ in range(4))
        terms.append((soft, soft + later, payoff, penalty))
    classes = [data.draw(st.sampled_from((RIGID, MOLDABLE, MALLEABLE))) for _ in rows]
    run = pool(rows, terms, FREE._replace(stall=data.draw(st.sampled_from((0, 3)))), classes)
    jobs, second = run.world.jobs, 0
    while not run.is_over:
        run.run(second)
        runs, free = jobs.state == RUNNING, NODES - int(jobs.held.sum())
        grows = runs & (jobs.cls == MALLEABLE)

        assert free >= 0
        assert ((jobs.least[runs] <= jobs.held[runs]) & (jobs.held[runs] <= jobs.most[runs])).all()
        assert free == 0 or (jobs.held[grows] == jobs.most[grows]).all()
        second += 1
    told = contract_outcome(run)

    assert told is not None
    assert -sum(one[3] for one in terms) <= told["payoff"] <= told["payoff_offered"]


class TestDrawn:
    """Contracts by seed."""

    def test_terms(self) -> None:
        """Deadlines between two multiples of the run time, prices of mean 1, by job number alone."""
        job, time, size = np.arange(1, 5001), np.full(5000, 100), np.full(5000, 4)
        drawn = draw_contracts(job, time, size, Terms(penalty=0.5), 3)
        alone = draw_contracts(job[7:], time[7:], size[7:], Terms(penalty=0.5), 3)

        assert 200 <= drawn.soft.min() < 210
        assert 590 < drawn.soft.max() <= 600
        assert (drawn.hard == 2 * drawn.soft).all()
        assert (drawn.payoff / 400).mean() == pytest.approx(1, rel=0.1)
        assert np.log(drawn.payoff / 400).std() == pytest.approx(1, rel=0.05)
        assert np.abs(drawn.penalty - drawn.payoff / 2).max() <= 1
        assert (alone.payoff == drawn.payoff[7:]).all()

    def test_nothing_is_drawn_twice(self) -> None:
        """Deadlines and prices go neither with classes, which the bare seed draws, nor with those of the next seed."""
        job, time, size = np.arange(1, 5001), np.full(5000, 10_000), np.full(5000, 4)
        one, other = (draw_contracts(job, time, size, Terms(), seed) for seed in (3, 4))
        drawn = (uniform(job, 3), one.soft, np.log(one.payoff), other.soft, np.log(other.payoff))

        assert np.abs(np.corrcoef(drawn) - np.eye(5)).max() < 0.06

    def test_a_large_job_is_worth_all_its_time(self) -> None:
        """A day of the whole of Curie, at a price of 1, and half of that as its penalty."""
        drawn = draw_contracts(np.array([1]), np.array([86_400]), np.array([79_808]), Terms(spread=0, penalty=0.5), 1)

        assert (drawn.payoff.tolist(), drawn.penalty.tolist()) == ([86_400 * 79_808], [86_400 * 79_808 // 2])

    @pytest.mark.parametrize(
        ("time", "size", "said"),
        [
            (10**9, 10**8, "pay-off of 100,000,000,000,000,000 is above the most in a contract, 10,000,000,000,000"),
            (10**9, 1, r"soft deadline of \d,\d{3},\d{3},\d{3} is above the most in a contract, 1,000,000,000"),
        ],
    )
    def test_contracts_that_cannot_be_drawn(self, time: int, size: int, said: str) -> None:
        """Refused, with the job, instead of cut."""
        terms = Terms(spread=0) if size == 1 else Terms(tight=1, loose=1, grace=0, spread=0)

        with pytest.raises(WorkloadError, match=rf"--contracts: job 7: a {said}: "):
            draw_contracts(np.array([5, 7]), np.array([1, time]), np.array([1, size]), terms, 1)

    def test_shortest_times(self) -> None:
        """The most processors that a job ever has count, in any of its phases."""
        run = pool([(0, 100, 100, 4)], [(UNBOUND, UNBOUND, 0, 0)])

        assert shortest_times(run).tolist() == [50]
        assert run.world.contracts.tolist() == [[NEVER, NEVER, 0, 0]]


class TestCommand:
    """`drom simulate --policy payoff --contracts`."""

    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        """Return a small log."""
        write_swf(synthetic(), tmp_path / "log.swf.gz")
        return tmp_path / "log.swf.gz"

    def test_results(self, log: Path, tmp_path: Path) -> None:
        """What came of them is in the summary, also of other policies; those of a saved run must be the same."""
        common = ("simulate", log, "--nodes", "64", "--contracts", "tight=2", "--contracts", "penalty=0.1")
        told = json.loads(drom(*common, "--policy", "payoff", "--json")[0])["contracts"]
        other = json.loads(drom(*common, "--policy", "easy", "--json")[0])["contracts"]
        drom(*common, "--policy", "payoff", "--until", "5000", "--save", tmp_path / "state")
        _, said = drom(*common[:-1], "penalty=0.2", "--policy", "payoff", "--resume", tmp_path / "state", code=1)

        assert told["contracts"] == other["contracts"] == 200
        assert told["payoff_offered"] == other["payoff_offered"] > told["payoff"] > other["payoff"]
        assert told["hard_deadlines_met"] >= told["soft_deadlines_met"]
        assert "was saved with contracts" in said

    def test_a_file(self, log: Path, tmp_path: Path) -> None:
        """A job without a line has no contract."""
        path = tmp_path / "contracts.csv"
        path.write_text("job,soft,hard,payoff,penalty\n5,90000000,90000001,70,1\n", encoding="utf-8")
        common = ("simulate", log, "--nodes", "64", "--contracts", path, "--policy", "payoff", "--json")

        assert json.loads(drom(*common, compiled=False)[0])["contracts"] == {
            "payoff": 70,
            "payoff_offered": 70,
            "contracts": 1,
            "soft_deadlines_met": 1,
            "hard_deadlines_met": 1,
        }

    def test_a_job_that_its_limit_ends(self) -> None:
        """A deadline between its limit and its run time can be met, one before its limit cannot."""
        work, machine = workload([(0, 100, 50, 1)]), Machine(1)
        for soft, possible in ((50, True), (49, False)):
            terms = bound([(soft, 80, 10, 0)])
            run = Simulation.of(work, machine, load_policy("fcfs"), contracts=terms)
            with nullcontext() if possible else pytest.raises(SchedulerError, match="job 1 takes at least 50 s"):
                check_possible(run, terms)
            run.run()
            told = contract_outcome(run)

            assert told is not None
            assert told["soft_deadlines_met"] == possible

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("5,1,90000,7,0", r"line 2: job 5 takes at least [\d,]+ s, and cannot end 1 s after its submission"),
            ("5,9,8,7,0", "line 2: the soft deadline 9 is after the hard one 8: exchange them."),
            ("5,90000,90000,-7,0", "line 2, payoff: -7 is not a whole number of at least 0."),
            ("5,90000,90000,0.5,0", "line 2, payoff: 0.5 is not a whole number of at least 0."),
            ("5,90000,9000000000,7,0", "line 2: a hard deadline of 9,000,000,000 is above the most in a contract, 1,"),
            ("5,90000,90000,7,90000000000000", "line 2: a penalty of 90,000,000,000,000 is above the most in a "),
            ("999,90000,90000,7,0", "line 2: there is no job 999 among those simulated: remove the line."),
            (
                "5,90000,90000,7,0\n5,90000,90000,7,0",
                "line 3: job 5 has a contract in .*line 2: remove one of them.",
            ),
        ],
    )
    def test_a_file_that_cannot_be(self, line: str, said: str, log: Path, tmp_path: Path) -> None:
        """One sentence with file, line and what is wrong."""
        path = tmp_path / "contracts.csv"
        path.write_text(f"job,soft,hard,payoff,penalty\n{line}\n", encoding="utf-8")
        _, told = drom("simulate", log, "--nodes", "64", "--contracts", path, "--policy", "payoff", code=1)

        assert f"{path}, " in told
        assert re.search(said, told)

    @pytest.mark.parametrize(
        ("terms", "said"),
        [
            ("x=1", "--contracts 'x=1': there is no 'x': choose tight, loose, grace, spread, penalty."),
            ("tight=-1", "--contracts 'tight=-1': tight is a number from 0 to 1000."),
            ("tight=0.5", "tight=0.5 and loose=6 cannot be: write 1 <= tight <= loose."),
        ],
    )
    def test_terms_that_cannot_be(self, terms: str, said: str, log: Path) -> None:
        """One sentence with what they have to be."""
        _, told = drom("simulate", log, "--nodes", "64", "--contracts", terms, code=1)

        assert said in told

    def test_a_table_and_terms(self, log: Path) -> None:
        """Either the one or the other."""
        _, told = drom("simulate", log, "--nodes", "64", "--contracts", "c.csv", "--contracts", "tight=2", code=1)

        assert told == "drom: --contracts: the table c.csv has all contracts: omit the other --contracts.\n"

    def test_the_policy_needs_contracts(self, log: Path) -> None:
        """Without any it refuses to start."""
        _, told = drom("simulate", log, "--nodes", "64", "--policy", "payoff", code=2)

        assert "--policy payoff needs contracts" in " ".join(told.replace("│", " ").split())
