# SPDX-License-Identifier: Apache-2.0
"""SD-Policy: when a job starts on shared nodes, who shrinks for it, what it costs, and what always holds."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.engine.state import view
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import MALLEABLE, MOLDABLE, NOBODY, RIGID
from drom.scheduler.policies.sd_mates import Mates, Rules, loss, pick_mates, stretched
from drom.scheduler.policies.timetable import counts_of
from drom.scheduler.simulator.simulation import Machine, Simulation
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.schedules import NODES, Row, logs, simulation

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)
"""The policy takes half a minute to compile, once."""

MINUTE = 60
AT_ONCE = "interval=1"
"""A pass at every second with an event."""
FREELY = (AT_ONCE, "max_slowdown=infinite")


def run_of(
    rows: Sequence[Row], *choices: str, machine: Machine | None = None, classes: Sequence[int] = ()
) -> Simulation:
    """Return a finished simulation under SD-Policy on 8 nodes of 4 cores."""
    run = simulation(rows, "sd", machine or Machine(NODES, 4), *(choices or FREELY))
    if classes:
        run.world.jobs.cls[:] = classes
    run.run()
    return run


def starts(rows: Sequence[Row], *choices: str, classes: Sequence[int] = ()) -> list[int]:
    """Return when each job starts."""
    started: list[int] = run_of(rows, *choices, classes=classes).world.jobs.start.tolist()
    return started


class TestWorkedExamples:
    """Section 5.2 of the specification, in seconds for its minutes, on nodes of 48 cores."""

    @pytest.mark.parametrize("model", ["ideal", "worst"])
    def test_1_a_guest_on_both_nodes_of_its_mate(self, model: str) -> None:
        """The guest takes 40 minutes for its 20, and the mate ends 20 later."""
        rows = [(0, 100 * MINUTE, 100 * MINUTE, 2), (30 * MINUTE, 20 * MINUTE, 20 * MINUTE, 2)]
        run = run_of(rows, machine=Machine(2, 48, runtime_model=model))

        assert run.world.end.tolist() == [120 * MINUTE, 70 * MINUTE]
        assert run.world.jobs.limit.tolist() == [120 * MINUTE, 40 * MINUTE]

    @pytest.mark.parametrize(("model", "guest", "second"), [("ideal", 90, 245), ("worst", 120, 260)])
    def test_2_one_of_two_mates_ends_early(self, model: str, guest: int, second: int) -> None:
        """The guest grows on part of its nodes: of use only where its work can be balanced."""
        rows = [(0, 15, 200, 1), (0, 200, 300, 1), (0, 60, 60, 2)]
        run = run_of(rows, machine=Machine(2, 48, runtime_model=model))

        assert run.world.end.tolist() == [30, second, guest]

    def test_3_a_quarter_of_the_cores(self) -> None:
        """The guest takes four times as long; the mate loses what the guest asked for, whatever the share."""
        rows = [(0, 200, 200, 2), (30, 20, 20, 2)]
        run = run_of(rows, *FREELY, "sharing_factor=0.25", machine=Machine(2, 48))

        assert run.world.end.tolist() == [220, 110]

    def test_5_a_guest_that_needs_less_than_it_asked_for(self) -> None:
        """The mate grows back when the guest ends; its limit stays."""
        run = run_of([(0, 100, 100, 2), (30, 5, 20, 2)], machine=Machine(2, 48))

        assert run.world.end.tolist() == [105, 40]
        assert run.world.jobs.limit.tolist() == [120, 40]

    @pytest.mark.parametrize(
        ("wait", "requested", "length", "cutoff", "shares"),
        [
            (10, 100, 20, "1.31", True),
            (10, 100, 20, "1.3", False),
            (300, 60, 20, "10", True),
            (300, 60, 20, "5", False),
        ],
    )
    def test_p_the_penalty_of_a_mate(self, wait: int, requested: int, length: int, cutoff: str, shares: bool) -> None:
        """(wait + requested + L) / requested, below MAX_SLOWDOWN (decision D5: strictly)."""
        rows = [(0, wait, wait, 2), (0, requested, requested, 2), (wait, length, length, 2)]
        run = run_of(rows, AT_ONCE, f"max_slowdown={cutoff}", machine=Machine(2, 48), classes=(RIGID, 2, 2))

        assert run.world.jobs.start.tolist() == [0, wait, wait if shares else wait + requested]

    def test_p_a_mate_that_has_lent_before(self) -> None:
        """Its limit has grown: 1.2 is no more than it may have once, 1.5 the second time."""
        rows = [(0, 100, 100, 2), (0, 20, 20, 2), (50, 30, 30, 2)]

        machine = Machine(2, 48)
        assert run_of(rows, AT_ONCE, "max_slowdown=1.51", machine=machine).world.jobs.start.tolist() == [0, 0, 50]
        assert run_of(rows, AT_ONCE, "max_slowdown=1.5", machine=machine).world.jobs.start.tolist() == [0, 0, 120]

    @pytest.mark.parametrize(("wait", "shares"), [(15, False), (20, False), (21, True)])
    def test_static_end_against_malleable_end(self, wait: int, shares: bool) -> None:
        """D1: a job shares if it would wait for longer than it is stretched by."""
        rows = [(0, 200, 200, 1), (0, wait, wait, 1), (0, 20, 20, 1)]
        run = run_of(rows, machine=Machine(2, 48), classes=(2, RIGID, 2))

        assert run.world.jobs.start.tolist() == [0, 0, 0 if shares else wait]
        assert run_of(rows, *FREELY, "test=0", machine=Machine(2, 48)).world.jobs.start.tolist() == [0, 0, 0]


class TestDecisions:
    """Each test is named after the decision of the specification that it is about."""

    def test_d2_a_start_beyond_the_window_is_infinitely_far(self) -> None:
        """Or as far as predicted, if so chosen: then a long job would rather wait."""
        rows = [(0, 400_000, 400_000, 4), (0, 90_000, 90_000, 4), (0, 100_000, 100_000, 4)]
        classes = (MALLEABLE, RIGID, MALLEABLE)

        assert starts(rows, classes=classes) == [0, 0, 0]
        assert starts(rows, *FREELY, "far=predicted", classes=classes) == [0, 0, 90_000]
        assert starts(rows, *FREELY, "window=100000", classes=classes) == [0, 0, 90_000]

    def test_d4_the_objective(self) -> None:
        """The sum of penalties prefers one mate of two nodes, the weighted sum two better ones of one node each."""
        rows = [(0, 100, 100, 2), (0, 300, 300, 1), (0, 300, 300, 1), (0, 900, 900, 4), (1, 10, 10, 2)]

        assert lenders(rows, AT_ONCE) == [0]
        assert lenders(rows, AT_ONCE, "objective=weighted") == [1, 2]

    def test_d6_the_cut_off_follows_the_running_jobs(self) -> None:
        """DynAVGSD: the mean of (1 + 1 + 3) / 3 admits a mate at 1.2; alone, nobody is below its own mean."""
        rows = [(0, 100, 100, 8), (0, 100, 100, 8)]
        late = [(0, 20, 20, 8), (0, 200, 200, 6), (1, 10, 10, 2), (21, 20, 20, 6)]

        assert starts(rows, AT_ONCE, "max_slowdown=dynavgsd") == [0, 100]
        assert starts(late, AT_ONCE, "max_slowdown=dynavgsd", classes=(RIGID, 2, 2, 2))[3] == 21
        assert starts(late, AT_ONCE, "max_slowdown=0", classes=(RIGID, 2, 2, 2))[3] == 220

    def test_d8_a_mate_gives_all_its_nodes(self) -> None:
        """No mate of more nodes is cut, and nothing is left of a smaller one."""
        assert starts([(0, 100, 100, 8), (1, 10, 10, 7)]) == [0, 100]

    def test_d9_free_nodes_among_the_guests_nodes(self) -> None:
        """With mix: there too the guest has its share, so that it stays balanced."""
        rows = [(0, 100, 100, 6), (1, 10, 10, 8)]
        run = run_of(rows, *FREELY, "mix=1")

        assert starts(rows) == [0, 100]
        assert run.world.jobs.start.tolist() == [0, 1]
        assert run.world.end.tolist() == [110, 21]

    def test_d10_a_guest_ends_inside_its_mates(self) -> None:
        """Where it can end with them, but no later."""
        assert starts([(0, 100, 100, 8), (80, 20, 20, 8)], *FREELY, "test=0") == [0, 80]
        assert starts([(0, 100, 100, 8), (81, 20, 20, 8)], *FREELY, "test=0") == [0, 100]
        assert starts([(0, 100, 100, 8), (81, 20, 20, 8)], *FREELY, "test=0", "inside=0") == [0, 81]

    def test_d11_at_most_two_mates_unless_more_are_allowed(self) -> None:
        """Three of one node need m = 3."""
        rows = [(0, 100, 100, 1)] * 3 + [(0, 999, 999, 5), (1, 10, 10, 3)]

        assert starts(rows)[4] == 100
        assert starts(rows, *FREELY, "mates=3")[4] == 1

    def test_d11_equal_combinations(self) -> None:
        """The earlier submitted wins."""
        assert lenders([(0, 100, 100, 2)] * 4 + [(1, 10, 10, 2)], *FREELY) == [0]

    def test_d12_only_the_first_candidates(self) -> None:
        """The best candidate has too few nodes, the second would do."""
        rows = [(0, 900, 900, 2), (0, 100, 100, 6), (1, 10, 10, 6)]

        assert starts(rows)[2] == 1
        assert starts(rows, *FREELY, "candidates=1")[2] == 100

    def test_d13_d14_who_shares_is_no_mate(self) -> None:
        """A second guest waits for the first, unless two are allowed on a node."""
        rows = [(0, 100, 100, 8), (1, 20, 20, 8), (2, 9, 9, 8)]

        assert starts(rows) == [0, 1, 41]
        third = ("sharing_factor=0.26", "guests=2")
        run = run_of(rows, *FREELY, *third, machine=Machine(NODES, 4, layers=3))
        assert run.world.jobs.start.tolist() == [0, 1, 2]
        assert run.world.end.tolist() == [129, 81, 38]

    def test_d13_no_more_guests_than_cores(self) -> None:
        """Said before there is a table with room for them."""
        with pytest.raises(SchedulerError, match=r"A node of 4 cores has no room for 1,000,000 guests: set fewer"):
            simulation([(0, 1, 1, 1)], "sd", Machine(5040, 4, layers=load_policy("sd", ["guests=1e6"]).layers))

    def test_d15_classes(self) -> None:
        """Rigid jobs neither shrink nor are guests; moldable ones may be guests, and do not grow when a mate ends."""
        rows = [(0, 10, 100, 8), (1, 20, 20, 8)]

        assert starts(rows, classes=(RIGID, MALLEABLE)) == [0, 10]
        assert starts(rows, classes=(MALLEABLE, RIGID)) == [0, 10]
        assert starts(rows, classes=(MOLDABLE, MALLEABLE)) == [0, 10]
        assert run_of(rows, classes=(MALLEABLE, MOLDABLE)).world.end.tolist() == [19, 41]
        assert run_of(rows, classes=(MALLEABLE, MALLEABLE)).world.end.tolist() == [19, 30]

    def test_d17_limits_are_corrected_when_sharing_ends(self) -> None:
        """As an option: the mate gives back what the short guest did not need."""
        rows = [(0, 100, 100, 8), (1, 2, 40, 8), (9, 50, 50, 8)]

        assert run_of(rows, *FREELY, "sharing_factor=0.5").world.jobs.limit.tolist()[0] == 190
        assert run_of(rows, *FREELY, "recompute=1").world.jobs.limit.tolist()[0] == 152

    def test_d17_a_pass_plans_with_the_corrected_limits(self) -> None:
        """The guest ends at 60, a pass: the mate has 315 s now, not 400, so that the last job fits no gap before it."""
        rows = [(0, 300, 300, 1), (0, 50, 1000, 1), (20, 15, 100, 1), (40, 500, 500, 2), (41, 300, 300, 1)]
        run = simulation(rows, "sd", Machine(2, 2), "resolution=1", "recompute=1")
        run.world.jobs.cls[[1, 3, 4]] = RIGID
        run.run()

        assert run.world.jobs.start.tolist() == [0, 0, 30, 330, 840]
        assert run.world.end.tolist()[0] == run.world.jobs.limit.tolist()[0] == 315

    def test_d19_a_guard_for_reservations(self) -> None:
        """The mate's longer stay would delay the first reservation: with a guard the guest waits."""
        rows = [(0, 100, 100, 4), (0, 100, 100, 4), (1, 50, 50, 8), (2, 10, 10, 4)]
        classes = (2, 2, RIGID, 2)

        assert starts(rows, classes=classes) == [0, 0, 110, 2]
        assert starts(rows, *FREELY, "guard=1", classes=classes) == [0, 0, 100, 150]

    def test_d20_a_pass_goes_on_after_a_malleable_start(self) -> None:
        """Two guests start at the same second, on different mates; jobs ahead of them have had their turn."""
        rows = [(0, 100, 100, 4), (0, 100, 100, 4), (1, 10, 10, 4), (1, 10, 10, 4), (1, 10, 10, 4)]

        assert starts(rows) == [0, 0, 1, 1, 21]

    def test_d22_without_a_combination_a_job_keeps_its_reservation(self) -> None:
        """And later jobs are planned around it."""
        rows = [(0, 100, 100, 5), (1, 10, 10, 8), (2, 99, 99, 3), (3, 97, 97, 3)]

        assert starts(rows, *FREELY, "resolution=1", classes=(2, 2, 0, 0)) == [0, 100, 110, 3]

    def test_d25_cores_that_a_job_keeps(self) -> None:
        """Three of four cores cannot be left to both."""
        rows = [(0, 100, 100, 8), (1, 20, 20, 8)]

        assert starts(rows, *FREELY, "min_cores=2") == [0, 1]
        assert starts(rows, *FREELY, "min_cores=3") == [0, 100]

    def test_a_job_that_started_in_this_pass_may_be_mate(self) -> None:
        """Both are submitted at once."""
        assert starts([(0, 100, 100, 8), (0, 10, 10, 8)]) == [0, 0]

    def test_a_former_mate_and_a_former_guest_may_be_mates(self) -> None:
        """When they have all their cores again."""
        rows = [(0, 5, 500, 8), (0, 50, 60, 8), (20, 9, 9, 8)]
        run = run_of(rows)

        assert run.world.jobs.start.tolist() == [0, 0, 20]
        assert run.world.jobs.lent.tolist() == [1, 1, 0]

    def test_odd_cores_round_to_what_is_enough(self) -> None:
        """Half of five cores is two: 3 seconds become 8, and the mate may lose 4."""
        run = run_of([(0, 100, 100, 8), (1, 3, 3, 8)], machine=Machine(NODES, 5))

        assert run.world.jobs.limit.tolist() == [104, 8]
        assert run.world.end.tolist() == [104, 9]

    def test_contiguous_nodes(self) -> None:
        """Four free nodes in two parts are no place for a job of four, nor are the nodes of two distant mates."""
        rows = [(0, 9, 9, 2), (0, 99, 99, 2), (0, 9, 9, 2), (0, 99, 99, 2), (10, 10, 10, 4)]
        rigid = (0, 0, 0, 0, 0)

        assert starts(rows, AT_ONCE, classes=rigid)[4] == 10
        assert starts(rows, AT_ONCE, "contiguous=1", classes=rigid)[4] == 99
        assert starts(rows, AT_ONCE, "contiguous=1", "mix=0") == [0, 0, 0, 0, 99]


def lenders(rows: Sequence[Row], *choices: str) -> list[int]:
    """Return the jobs that have been mates."""
    found: list[int] = np.flatnonzero(run_of(rows, *choices).world.jobs.lent).tolist()
    return found


class TestPickMates:
    """The search against all combinations."""

    @settings(max_examples=300, deadline=None)
    @given(
        st.lists(st.tuples(st.integers(1, 6), st.integers(8, 40)), min_size=1, max_size=9),
        st.integers(1, 12),
        st.integers(0, 3),
        st.integers(1, 4),
        st.booleans(),
    )
    def test_the_least_impact(
        self, found: list[tuple[int, int]], need: int, spare: int, most: int, weighted: bool
    ) -> None:
        """Equations 1 to 3; ties go to fewer mates, then to the first in order."""
        found.sort(key=lambda one: one[1])
        weights, penalties = [w for w, _ in found], [p / 8 for _, p in found]  # exact in binary
        mates = Mates(np.arange(len(found)), np.array(penalties), np.array(weights), np.zeros(len(found), np.int64))
        run = simulation([(0, 1, 1, 1)], "sd")
        nothing = counts_of(view(run.world), 0)
        rules = rules_with(mates=most, weighted=weighted)
        picked = pick_mates(view(run.world), rules, mates, need, min(spare, need - 1), 1, nothing).picked
        spare = min(spare, need - 1)
        cost = [p * w if weighted else p for p, w in zip(penalties, weights, strict=True)]
        fitting = [
            (sum(cost[i] for i in chosen), size, chosen)
            for size in range(1, most + 1)
            for chosen in itertools.combinations(range(len(found)), size)
            if need - spare <= sum(weights[i] for i in chosen) <= need
        ]

        assert tuple(picked.tolist()) == (min(fitting)[2] if fitting else ())


def rules_with(*, mates: int = 2, weighted: bool = False, share: int = 2, cores: int = 4) -> Rules:
    """Return the default rules but for these."""
    return Rules(
        share=share,
        cores=cores,
        max_slowdown=10.0,
        mates=mates,
        candidates=0,
        weighted=weighted,
        inside=True,
        guests=1,
        mix=False,
        guard=0,
        min_cores=1,
        contiguous=False,
        feedback=False,
        usual=share,
        least=share,
        most=share,
        stall=0,
        transfer=0,
    )


@given(st.integers(1, 10**6), st.integers(2, 128), st.data())
def test_a_guest_that_takes_its_time_costs_its_mates_what_they_are_given(
    length: int, cores: int, data: st.DataObject
) -> None:
    """In whole seconds, never less than the exact values, and less than two more."""
    share = data.draw(st.integers(1, cores - 1))
    rules = rules_with(share=share, cores=cores)

    assert 0 <= stretched(rules, length) - length * cores / share < 1
    assert length <= loss(rules, length) < length + 2


CHOICES = st.sampled_from(
    (
        FREELY,
        ("interval=3", "max_slowdown=5"),
        (AT_ONCE, "max_slowdown=dynavgsd"),
        (*FREELY, "objective=weighted", "mates=3"),
        (*FREELY, "test=0", "inside=0"),
        (*FREELY, "sharing_factor=0.3", "recompute=1"),
        (*FREELY, "guard=2", "far=predicted"),
        (*FREELY, "contiguous=1"),
        (*FREELY, "reservations=nodes"),
        (*FREELY, "reservations=nodes", "contiguous=1", "guard=1"),
    )
)


@settings(max_examples=250, deadline=None)
@given(rows=logs(), choices=CHOICES, model=st.sampled_from(("ideal", "worst")), cores=st.sampled_from((4, 5)))
def test_no_core_is_lost(rows: list[Row], choices: tuple[str, ...], model: str, cores: int) -> None:
    """At every second the shares of a node in use add up to its cores, and who is alone has them all."""
    run = simulation(rows, "sd", Machine(NODES, cores, runtime_model=model), *choices)
    second = 0
    while not run.is_over:
        run.run(until=second)
        second += 1
        house = run.world.nodes
        used = house.resident[:, 0] != NOBODY
        assert (house.share.sum(axis=1) == np.where(used, cores, 0)).all()
        assert ((house.resident == NOBODY) == (house.share == 0)).all()
        assert_residents_run(run)


def assert_residents_run(run: Simulation) -> None:
    """Check that each job is on as many nodes as it asks for while it runs, and on none else."""
    jobs, house = run.world.jobs, run.world.nodes
    here, counts = np.unique(house.resident[house.resident != NOBODY], return_counts=True)
    assert here.tolist() == np.flatnonzero(jobs.state == 2).tolist()
    assert counts.tolist() == jobs.nodes[here].tolist()


@settings(max_examples=250, deadline=None)
@given(rows=logs(), choices=CHOICES, model=st.sampled_from(("ideal", "worst")), cores=st.sampled_from((4, 5)))
def test_every_job_does_its_work(rows: list[Row], choices: tuple[str, ...], model: str, cores: int) -> None:
    """Predictions are upper bounds: no limit cuts a job short, and what it lost it has caught up."""
    run = simulation(rows, "sd", Machine(NODES, cores, runtime_model=model), *choices)
    run.run()
    jobs, world = run.world.jobs, run.world
    behind = -(-jobs.lost // (jobs.nodes * cores))

    assert (world.end - jobs.start == world.run + behind).all()
    assert (world.end <= jobs.start + jobs.limit).all()
    assert (jobs.lost[(jobs.lent == 0) & (world.given == cores)] == 0).all()


@settings(max_examples=100, deadline=None)
@given(rows=logs())
def test_sd_without_malleable_jobs_is_slurm(rows: list[Row]) -> None:
    """The static trial alone, with the same parameters."""
    choices = ("interval=3", "depth=4", "window=20", "resolution=7")
    static, rigid = simulation(rows, "slurm", None, *choices), simulation(rows, "sd", Machine(NODES, 4), *choices)
    rigid.world.jobs.cls[:] = RIGID
    static.run()
    rigid.run()

    assert rigid.world.jobs.start.tolist() == static.world.jobs.start.tolist()


@settings(max_examples=60, deadline=None)
@given(rows=logs(), choices=CHOICES)
def test_stopped_and_resumed_while_jobs_share(
    rows: list[Row], choices: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """At any second, to the same schedule, from a file as well."""
    machine = Machine(NODES, 4)
    whole, first, second = (simulation(rows, "sd", machine, *choices) for _ in range(3))
    whole.run()
    for until in range(rows[-1][0] + 8):
        first.run(until)
    path: Path = tmp_path_factory.mktemp("saved") / "run"
    first.save(path)
    second.resume(path)
    second.run()

    assert second.world.jobs.start.tolist() == whole.world.jobs.start.tolist()
    assert second.world.end.tolist() == whole.world.end.tolist()
    assert second.world.scalars.tolist() == whole.world.scalars.tolist()


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ("sharing_factor=1", "policy sd: sharing_factor is between 0 and 1, not 1."),
        ("max_slowdown=-1", "policy sd: max_slowdown is a number, infinite or dynavgsd."),
        (
            "max_slowdown=x",
            "'max_slowdown=x': the parameter max_slowdown of policy sd is a number, infinite, dynavgsd:",
        ),
        ("objective=2", "policy sd: objective is sum or weighted, not 2."),
        ("test=2", "policy sd: test is 0 or 1, not 2."),
        ("mates=0", "policy sd: mates is a whole number from 1 to 1000000, not 0."),
        ("depth=0", "policy sd: depth is a whole number from 1 to 1000000000, not 0."),
    ],
)
def test_wrong_parameters(choice: str, sentence: str) -> None:
    """A sentence says what there is."""
    with pytest.raises(SchedulerError) as raised:
        load_policy("sd", [choice])

    assert str(raised.value).startswith(sentence)


def test_parameters_are_told_as_they_are_written() -> None:
    """Words stand for what is no number."""
    told = load_policy("sd", ["max_slowdown=infinite"]).parameters()

    assert (told["max_slowdown"], told["objective"], told["sharing_factor"], told["depth"]) == (
        "infinite",
        "sum",
        0.5,
        100,
    )
    assert load_policy("sd", ["max_slowdown=dynavgsd"]).parameters()["max_slowdown"] == "dynavgsd"
    assert load_policy("sd", ["max_slowdown=0"]).parameters()["max_slowdown"] == 0
