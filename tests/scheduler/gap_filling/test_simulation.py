# SPDX-License-Identifier: Apache-2.0
"""Gap filling: time slots, policies A and B on examples worked out by hand, and what always holds."""

from __future__ import annotations

import csv
import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.analysis.metrics import Power, metrics
from drom.scheduler.analysis.schedule import columns
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.gap_filling import simulation as outcome
from drom.scheduler.gap_filling.parameters import FillingOptions, parse_filling
from drom.scheduler.gap_filling.simulation import FilledSimulation, shifts, without
from drom.scheduler.interface import MILLION, NEVER
from drom.scheduler.simulator.contracts import contracts_of
from drom.scheduler.simulator.simulation import Machine, Simulation
from drom.workloads.swf import write_swf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.commands import drom
from tests.support.job_logs import synthetic
from tests.support.reference_schedules import Job, conservative, simulate
from tests.support.schedules import NODES, Row, logs, simulation, workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

A = FillingOptions(slot=10, restore=1, save=2)
B = FillingOptions(policy="B", restore=1, save=2)
POLICIES = ("fcfs", "easy", "conservative", "slurm", "sd")
POOLS = ("equipartition", "payoff")


def filled(
    rows: Sequence[Row], filling: FillingOptions, nodes: int = NODES, policy: str = "conservative"
) -> FilledSimulation:
    """Return a simulation whose gaps have been filled."""
    cores, passes = (2, ("interval=5",)) if policy in {"slurm", "sd"} else (1, ())
    machine = Machine(nodes, cores, slot=filling.time_slot)
    found = FilledSimulation.of(Simulation.of(workload(rows, cores), machine, load_policy(policy, passes)), filling, 1)
    found.run.run()
    found.finish()
    return found


def starts(found: FilledSimulation) -> list[int]:
    """Return when each regular job started."""
    started: list[int] = found.run.world.jobs.start.tolist()
    return started


class TestSlots:
    """Policy A: the scheduler acts at multiples of the slot."""

    def test_regular_jobs_start_at_the_ends_of_slots(self) -> None:
        """What is submitted or ends within a slot counts at its end; requests count in whole slots."""
        rows = [(0, 13, 14, 2), (3, 5, 5, 1), (4, 5, 5, 2)]
        run = simulation(rows, "conservative", Machine(2, slot=10))
        run.run()

        assert run.world.jobs.start.tolist() == [0, 20, 30]
        assert run.world.end.tolist() == [13, 25, 35]
        assert run.world.jobs.limit.tolist() == [20, 10, 10]

    def test_one_slot(self) -> None:
        """Of a hole of one slot a container has 10 - 1 - 2 seconds at half speed; the rest of a job's slot is idle."""
        found = filled([(0, 20, 20, 2), (0, 5, 5, 1)], A._replace(efficiency=0.5), 3)
        told = found.figures(metrics(found.run, Power()))

        assert found.runs.tolist() == [[0, 2, 10, 20]]
        assert (told["useful_s"], told["overhead_s"], told["saves"]) == (3.5, 3, 1)
        assert told["gain"] == pytest.approx(3.5 / 60)
        assert told["gain"] == pytest.approx(told["idle_slots"] * 0.7 * 0.5)
        assert (told["regular_utilisation"], told["idle"]) == pytest.approx((45 / 60, 15 / 60))
        assert told["bound"] == pytest.approx(0.1 * 0.7 * 0.5)
        assert told["delayed_jobs"] == 0

    def test_a_container_goes_on(self) -> None:
        """A container keeps its node while that is empty, then waits, continues on another, and pays for each slot."""
        found = filled([(0, 30, 30, 1), (20, 30, 30, 1)], A._replace(jobs=1, length=10**6), 2)

        assert starts(found) == [0, 20]
        assert found.runs.tolist() == [[0, 1, 0, 20], [0, 0, 30, 50]]
        assert found.box.saved.tolist() == [4 * 7 * MILLION]
        assert (found.box.overhead[0], found.box.migrations[0], found.box.saves[0]) == (12, 1, 4)

    def test_a_filler_that_completes(self) -> None:
        """A container is not saved in its last slot, and the next waiting one begins with the next slot."""
        found = filled([(0, 40, 40, 1)], A._replace(jobs=2), 2)
        found = FilledSimulation(found.run, found.filling, found.filling.containers(2, 1, 1, 0, 1))
        found.box.need[:] = 10 * MILLION
        found.finish()

        assert found.runs.tolist() == [[0, 1, 0, 14], [1, 1, 20, 34]]
        assert found.box.end.tolist() == [14, 34]
        assert (found.box.saves.tolist(), found.box.worked.tolist()) == ([1, 1], [10, 10])

    def test_passes_of_its_own(self) -> None:
        """A policy with passes between the ends of slots would never make one: that is said."""
        with pytest.raises(SchedulerError, match=r"passes at 0 \+ k \* 30 s, not at the end of each slot of 45 s"):
            Simulation.of(workload([(0, 1, 1, 1)]), Machine(1, slot=45), load_policy("slurm"))

    @given(logs(), st.sampled_from(POLICIES), st.sampled_from((5, 10)), st.integers(0, 3))
    @settings(deadline=None, max_examples=40)
    def test_no_regular_job_is_delayed(self, rows: list[Row], policy: str, slot: int, jobs: int) -> None:
        """The schedule is the same without filling, whatever the policy."""
        filling = FillingOptions(slot=slot, restore=1, save=1, jobs=jobs, length=9)
        found = filled(rows, filling, policy=policy)
        cores, passes = (2, ("interval=5",)) if policy in {"slurm", "sd"} else (1, ())
        alone = simulation(rows, policy, Machine(NODES, cores, slot=slot), *passes)
        alone.run()

        assert (found.run.world.jobs.start == alone.world.jobs.start).all()
        assert (found.run.world.end == alone.world.end).all()
        assert (found.run.world.jobs.start % slot == 0).all()
        check(found)

    @given(logs(), st.sampled_from((5, 10)))
    @settings(deadline=None, max_examples=40)
    def test_starts_of_a_plain_reference(self, rows: list[Row], slot: int) -> None:
        """The reference without slots or containers, of jobs that come, end and ask in whole slots, starts them so."""

        def whole(time: int) -> int:
            return -(-time // slot) * slot

        jobs = [Job(i, whole(row[0]), whole(row[1]), whole(row[2]), row[3]) for i, row in enumerate(rows)]

        assert starts(filled(rows, FillingOptions(slot=slot, restore=1, save=1))) == simulate(jobs, NODES, conservative)


class TestPools:
    """Policy A where it is not known who has which processor."""

    def test_one_slot(self) -> None:
        """Of a hole of one slot a container has all but restoring and saving, as on nodes."""
        found = filled([(0, 20, 20, 1)], A, 3, "equipartition")
        told = found.figures(metrics(found.run, Power()))

        assert found.run.world.end.tolist() == [10]
        assert found.runs.tolist() == [[0, 2, 0, 10]]
        assert (told["useful_s"], told["overhead_s"]) == (7, 3)

    @given(logs(), st.sampled_from(POOLS), st.sampled_from((5, 10)), st.integers(0, 3))
    @settings(deadline=None, max_examples=40)
    def test_what_always_holds(self, rows: list[Row], policy: str, slot: int, jobs: int) -> None:
        """The schedule is the same without filling, and containers have what is free of whole slots, all if enough."""
        found = filled(rows, FillingOptions(slot=slot, restore=1, save=1, jobs=jobs, length=9), policy=policy)
        alone = simulation(rows, policy, Machine(NODES, slot=slot))
        alone.run()
        levels, (begin, end) = {-1: 0} | dict(found.levels), found.span
        held = [
            levels[max((time for time in levels if time <= second // slot * slot), default=-1)]
            for second in range(begin, end)
        ]
        there = np.zeros(end - begin, np.int64)
        for _, _, first, last in found.runs:
            there[first - begin : last - begin] += 1

        assert (found.run.world.end == alone.world.end).all()
        for second in range(-(-begin // slot) * slot, end // slot * slot):
            assert there[second - begin] <= NODES - held[second - begin]
            assert jobs or there[second - begin] == NODES - held[second - begin]


class TestConstraintProgramming:
    """The policy that is asked before each call sees what filling does to the schedule."""

    @given(logs(), st.sampled_from((A, B)))
    @settings(deadline=None, max_examples=15)
    def test_what_always_holds(self, rows: list[Row], filling: FillingOptions) -> None:
        """Every job ends and runs as long as it needs; under A nobody waits for a container."""
        pytest.importorskip("ortools", reason="OR-tools is not installed")
        found = filled(rows, filling, policy="cp")
        world = found.run.world

        check(found)
        assert found.run.is_over
        assert (world.end - world.jobs.start == world.run).all()
        assert filling == B or not found.box.delay.any()
        assert filling == A or used(found, "cp").all()


class TestReservations:
    """Policy B: a container runs on until a regular job comes."""

    ROWS = ((0, 20, 20, 1), (8, 5, 5, 1), (9, 5, 5, 2))

    def test_an_unexpected_job_waits_for_the_save_and_an_expected_one_does_not(self) -> None:
        """The second job comes at 8 and begins at 10; the third is planned for 20, so that saving begins at 18."""
        found = filled(self.ROWS, B, 2)

        assert starts(found) == [0, 10, 20]
        assert found.box.delay.tolist() == [0, 2, 0]
        assert found.run.world.end.tolist() == [20, 15, 25]
        assert found.runs.tolist() == [[0, 1, 0, 10], [0, 1, 15, 20]]
        assert (found.box.worked[0], found.box.overhead[0], found.box.saves[0]) == (7 + 2, 2 * 3, 2)

    def test_a_container_that_has_done_nothing_is_dropped(self) -> None:
        """A container that is still being restored when the job comes has nothing to save, so the job does not wait."""
        found = filled([(0, 9, 9, 2), (3, 4, 4, 1), (10, 5, 5, 2)], B._replace(restore=4), 2)

        assert starts(found) == [0, 9, 13]
        assert found.runs.tolist() == [[0, 1, 9, 13]]
        assert (found.box.worked[0], found.box.overhead[0], found.box.saves[0]) == (0, 4, 0)

    def test_work_that_is_too_short_to_save_is_lost(self) -> None:
        """A container that worked 90 s before a planned start, where saving takes 100, had its node all the same."""
        found = filled([(0, 150, 150, 1), (1, 100, 100, 2)], B._replace(restore=60, save=100), 2)
        told = found.figures(metrics(found.run, Power()))

        assert (starts(found), found.runs.tolist()) == ([0, 150], [[0, 1, 0, 150]])
        assert (told["useful_s"], told["lost_s"], told["overhead_s"], told["load"]) == (0, 90, 60, 1)

    def test_much_work(self) -> None:
        """More than 64 bits hold in millionths of a second."""
        found = filled([(0, 10**9, 10**9, 1)], FillingOptions(policy="B"), 20_000)
        told = found.figures(metrics(found.run, Power()))

        assert told["useful_s"] == pytest.approx(19_999 * (10**9 - 120))
        assert told["load"] == pytest.approx(1)

    def test_work_that_is_too_short_to_save_at_the_end(self) -> None:
        """The last regular job ends before the container could have been saved."""
        found = filled([(0, 50, 50, 1)], B._replace(restore=20, save=40), 2)
        told = found.figures(metrics(found.run, Power()))

        assert (told["useful_s"], told["lost_s"], told["overhead_s"], told["load"]) == (0, 30, 20, 1)

    def test_killed(self) -> None:
        """Nobody waits, and what was done since the last save is lost; an expected job costs nothing."""
        found = filled(self.ROWS, B._replace(kill=1), 2)
        told = found.figures(metrics(found.run, Power()))

        assert starts(found) == [0, 8, 20]
        assert found.runs.tolist() == [[0, 1, 0, 8], [0, 1, 13, 20]]
        assert (told["useful_s"], told["lost_s"], told["saves"], told["delayed_jobs"]) == (4, 7, 1, 0)

    def test_live_migration(self) -> None:
        """The only container moves to the empty node, which is quicker than saving, and is not restored there."""
        found = filled([(0, 20, 20, 1), (8, 5, 5, 1)], B._replace(jobs=1, length=10**6, save=5, migrate=3), 3)

        assert starts(found) == [0, 11]
        assert found.runs.tolist() == [[0, 1, 0, 11], [0, 2, 8, 20]]
        assert found.box.migrations.tolist() == [1]
        assert (found.box.worked[0], found.box.overhead[0], found.box.saves[0]) == (7 + 4, 1 + 2 * 3 + 5, 1)

    @pytest.mark.parametrize(("kill", "delays"), [(0, [0, 0, 50, 99, 158]), (1, [0, 0, 0, 0, 0])])
    def test_a_container_that_is_in_the_way_again_as_it_moves(self, kill: int, delays: list[int]) -> None:
        """Each job comes to the node that the container moves to: it moves on when it is there, or is killed."""
        rows = [(0, 1, 1, 1), *((100 + i, 500, 500, 1) for i in range(4))]
        how = B._replace(jobs=1, length=10**7, restore=0, save=60, migrate=50, kill=kill)
        found = filled(rows, how, 4, "fcfs")

        check(found)
        assert found.box.delay.tolist() == delays

    def test_the_mates_of_a_guest_that_waits(self) -> None:
        """They lend cores while a container on another of its nodes is saved, and may take as much longer for it."""
        rows = [(0, 100, 100, 3), (10, 20, 20, 4)]
        run = Simulation.of(workload(rows, 2), Machine(4, 2), load_policy("sd", ["interval=5", "mix=1"]))
        found = FilledSimulation.of(run, B._replace(save=21), 1)
        run.run()
        jobs = run.world.jobs

        assert (starts(found), found.box.delay.tolist()) == ([0, 31], [0, 21])
        assert jobs.limit.tolist() == [100 + 20 + 11, 40]
        assert run.world.end.tolist() == [131, 71]
        assert (run.world.left <= 0).all()

    def test_a_guest_begins_no_earlier_than_a_mate_that_waits(self) -> None:
        """Its mate waits for a save on the very node; that one loses nothing until it begins, and then half of it."""
        rows = [(0, 1, 1, 1), (10, 100, 100, 1), (11, 20, 20, 1)]
        run = Simulation.of(workload(rows, 2), Machine(1, 2), load_policy("sd", ["interval=5"]))
        found = FilledSimulation.of(run, B._replace(save=60), 1)
        run.run()

        assert found.runs.tolist() == [[0, 0, 1, 70]]
        assert (starts(found), found.box.delay.tolist()) == ([0, 70, 70], [0, 60, 55])
        assert run.world.end.tolist() == [1, 70 + 100 + 20, 70 + 40]
        told = found.figures(metrics(run, Power()))
        assert told["idle"] == pytest.approx(1 - (1 + 120) / 190)

    def test_what_has_not_happened_in_a_partial_run(self) -> None:
        """A job that still waits for a container has not started, and no time after the last event counts."""
        rows = [(0, 1, 1, 1), (10, 100, 100, 1), (11, 20, 20, 1)]
        run = Simulation.of(workload(rows, 2), Machine(1, 2), load_policy("sd", ["interval=5"]))
        found = FilledSimulation.of(run, B._replace(save=60), 1)
        run.run(until=20)
        found.finish()
        table, told = columns(run), found.figures(metrics(run, Power()))

        assert [table[name].tolist() for name in ("start", "state")] == [[0, -1, -1], ["ended", "waiting", "waiting"]]
        assert all(0 <= told[name] <= 1 for name in ("idle", "load", "utilisation"))

    def test_containers_that_come_and_go_while_nothing_regular_happens(self) -> None:
        """A partial run ends with the last event, be it one of a container."""
        run = Simulation.of(workload([(0, 10, 1000, 1), (100_000, 10, 10, 1)], 4), Machine(4), load_policy("easy"))
        found = FilledSimulation.of(run, B._replace(jobs=20, gap=1000, length=10), 1)
        run.run(until=50_000)
        found.finish()
        told = found.figures(metrics(run, Power()))

        assert (told["completed"], told["useful_s"]) == (20, int(found.box.need.sum()) / MILLION)
        assert found.span[1] == run.now == found.runs[:, 3].max() > 10_000
        assert told["load"] == pytest.approx((40 + int(found.box.worked.sum()) + told["overhead_s"]) / (4 * run.now))
        assert told["utilisation"] == pytest.approx((40 + told["useful_s"]) / (4 * run.now))

    def test_slots_are_filled_a_few_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """People may look on, and stop it; the outcome is the same."""
        rows = [(0, 13, 14, 2), (3, 5, 5, 1), (4, 35, 35, 2), (60, 5, 5, 1)]
        for policy in ("conservative", "equipartition"):
            whole, shown = filled(rows, A, policy=policy), list[float]()
            monkeypatch.setattr(outcome, "AT_ONCE", 1)
            parts = FilledSimulation.of(whole.run, A, 1)
            parts.levels = whole.levels
            parts.finish(shown.append)
            monkeypatch.undo()

            assert len(shown) == whole.span[1] // A.slot - whole.span[0] // A.slot > 3
            assert (parts.runs.tolist(), parts.empty) == (whole.runs.tolist(), whole.empty)
            assert parts.box.saved.tolist() == whole.box.saved.tolist()

    def test_later_and_earlier_jobs(self) -> None:
        """Starts are compared with those of the same simulation without filling."""
        run = filled(self.ROWS, B, 2).run
        regular = without(run)
        unknown = shifts(run, regular)
        regular.run()
        told = shifts(run, regular)

        assert unknown == {"later_jobs": None, "earlier_jobs": None, "mean_shift_s": None, "longest_shift_s": None}
        assert told == {"later_jobs": 1, "earlier_jobs": 0, "mean_shift_s": pytest.approx(2 / 3), "longest_shift_s": 2}

    def test_contracts_are_there_without_filling(self) -> None:
        """A policy of one's own may go by them."""
        work = workload(self.ROWS)
        run = Simulation.of(work, Machine(2), load_policy("fcfs"), contracts=contracts_of(["tight=2"], work, 1))

        assert len(run.world.contracts) == 3
        assert without(run).world.contracts.tolist() == run.world.contracts.tolist()

    @given(
        logs(),
        st.sampled_from(POLICIES),
        st.integers(0, 3),
        st.integers(0, 5),
        st.sampled_from((math.inf, 0, 2)),
        st.sampled_from((0, 1)),
        st.sampled_from((0, 3, 30)),
    )
    @settings(deadline=None, max_examples=60)
    def test_what_always_holds(  # noqa: PLR0917 - hypothesis
        self, rows: list[Row], policy: str, restore: int, save: int, migrate: float, kill: int, jobs: int
    ) -> None:
        """Every job ends and runs as long as it needs; a queue that is always full leaves no node empty."""
        filling = FillingOptions("B", 1, restore, save, 0.5, migrate, kill, jobs, 9, 1)
        found = filled(rows, filling, policy=policy)
        world = found.run.world

        check(found)
        assert found.run.is_over
        assert policy == "sd" or (world.end - world.jobs.start == world.run).all()
        assert not kill or not found.box.delay.any()
        assert jobs or used(found, policy).all()


def used(found: FilledSimulation, policy: str) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return which seconds of which nodes are somebody's, of shape ``(nodes, seconds)``; each is one's alone.

    A regular job has its nodes while it waits for a container there to be saved, but for that one.
    """
    world, (begin, end) = found.run.world, found.span
    owners = np.zeros((found.run.machine.nodes, end), np.int64)
    for _, node, first, last in found.runs:
        owners[node, first:last] += 1
    assert (owners <= 1).all()
    contained, waits = owners.astype(np.bool_), owners.astype(np.bool_)
    for job, start in enumerate(world.jobs.start):
        nodes = world.nodes.place[world.nodes.first[job] : world.nodes.first[job + 1]]
        owners[nodes, start : world.end[job]] += 1
        assert not contained[nodes, start : world.end[job]].any()
        waits[nodes, start - found.box.delay[job] : start] = True
    assert policy == "sd" or (owners <= 1).all()
    return np.asarray(((owners > 0) | waits)[:, begin:])


def check(found: FilledSimulation) -> None:
    """Compare what containers did with their runs: no node is two's, no work comes from nowhere, none is lost."""
    box, speed = found.box, round(found.filling.efficiency * MILLION)
    complete = box.end != NEVER
    length = np.bincount(found.runs[:, 0], found.runs[:, 3] - found.runs[:, 2], len(box.arrival))

    used(found, found.run.policy.name)
    assert (found.runs[:, 2] <= found.runs[:, 3]).all()
    assert (box.saved[~complete] == (box.worked - box.lost)[~complete] * speed).all()
    assert (box.saved[complete] == box.need[complete]).all()
    assert (np.abs(box.saved - (box.worked - box.lost) * speed)[complete] < speed).all()
    assert (box.worked + box.overhead == length).all()
    assert (box.overhead >= 0).all()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a small log."""
    write_swf(synthetic(), tmp_path / "log.swf.gz")
    return tmp_path / "log.swf.gz"


def test_results(log: Path, tmp_path: Path) -> None:
    """The figures in the summary, a row per filler job, and one per run; another run into the folder removes them."""
    options = ("simulate", log, "--nodes", "64", "--policy", "conservative", "--out", tmp_path / "r")
    drom(*options, "--fill", "--fill-set", "policy=B", "--fill-set", "jobs=20", "--fill-set", "length=3600")
    told = json.loads((tmp_path / "r" / "summary.json").read_text(encoding="utf-8"))["filling"]
    tables = {
        name: list(csv.DictReader((tmp_path / "r" / f"{name}.csv").read_text(encoding="utf-8").splitlines()))
        for name in ("fillers", "filler_runs")
    }
    drom(*options)

    assert (told["fillers"], told["completed"]) == (20, 20)
    assert all(row["length"] == row["done"] for row in tables["fillers"])
    assert sum(int(row["runs"]) for row in tables["fillers"]) == len(tables["filler_runs"])
    assert told["useful_s"] == sum(int(row["done"]) for row in tables["fillers"])
    assert {"later_jobs", "earlier_jobs", "mean_shift_s", "longest_shift_s"} <= told.keys()
    assert not list((tmp_path / "r").glob("filler*"))


def test_pictures(log: Path, tmp_path: Path) -> None:
    """Fillers have a colour in the Gantt chart."""
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    out, _ = drom("simulate", log, "--nodes", "64", "--fill", "--plots", "svg", "--out", tmp_path / "r")

    assert "filling: delayed_jobs                      0\n" in out
    assert "<!-- filler -->" in (tmp_path / "r" / "gantt.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (["kill=1"], "--fill-set kill means nothing under policy=A: omit it, or choose policy=B."),
        (["slot=60", "policy=B"], "--fill-set slot means nothing under policy=B: omit it, or choose policy=A."),
        (["length=60"], "--fill-set length applies to filler jobs that end: omit it, or set their number with jobs=N."),
        (["save=-1"], "--fill-set 'save=-1': save is a whole number from 0 to 31,536,000."),
        (["restore=x"], "restore is a whole number from 0 to 31,536,000."),
        (["efficiency=1.5"], "efficiency is a number above 0, and at most 1."),
        (["efficiency=-1"], "efficiency is a number above 0, and at most 1."),
        (["efficiency=nan"], "efficiency is a number above 0, and at most 1."),
        (["slot=0"], "slot is a whole number from 1 to 31,536,000."),
        (["slot=100", "save=50", "restore=50"], "save and restore take 100 s, no less than the slot of 100 s"),
        (["policy=C"], "policy is A or B."),
        (
            ["policy=B", "kill=1", "migrate=5"],
            "with kill=1 containers are killed, not moved: omit kill or migrate.",
        ),
        (["migrate=1.5"], "migrate is a whole number from 0 to 31,536,000, or infinite."),
        (["kill=2"], "kill is 0 or 1."),
        (["jobs=1e9"], "jobs is a whole number from 0 to 10,000,000."),
        (["t=5"], "there is no 't': choose policy, slot, restore, save, efficiency, migrate, kill, jobs, length, gap."),
    ],
)
def test_bad_choices(choice: list[str], said: str) -> None:
    """One sentence with what it has to be."""
    with pytest.raises(SchedulerError) as error:
        parse_filling(choice)

    assert said in str(error.value)


@pytest.mark.parametrize(
    ("options", "said", "code"),
    [
        (("--fill-set", "slot=60"), "--fill-set sets how gaps are filled: add --fill", 2),
        (("--fill", "--fill-set", "policy=B", "--save", "s"), "--save and --resume do not store containers", 2),
        (
            ("--fill", "--fill-set", "policy=B", "--policy", "equipartition"),
            "Under B a job waits for the container on its node, and equipartition says how many processors jobs have",
            1,
        ),
        (
            ("--fill", "--policy", "equipartition", "--save", "s"),
            "--save and --resume do not store the free processors of a pool",
            2,
        ),
    ],
)
def test_what_does_not_go_together(log: Path, options: tuple[str, ...], said: str, code: int) -> None:
    """One sentence before anything is simulated."""
    out, errors = drom("simulate", log, "--nodes", "64", *options, code=code)

    assert said in errors
    assert out == ""
