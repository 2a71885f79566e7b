# SPDX-License-Identifier: Apache-2.0
"""Event rules, faults, and jobs that share nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.simulator.simulation import Machine, Simulation
from drom.workloads.cleaning import clean
from drom.workloads.swf import read_swf
from hypothesis import given, settings

from tests.support.job_logs import real_log
from tests.support.schedules import NODES, Row, logs, simulation, starts

if TYPE_CHECKING:
    from pathlib import Path


def test_the_schedule_of_pyss() -> None:
    """All 28,481 starts of the schedule that another simulator made."""
    log = read_swf(real_log("KTH-SP2-pyss-easy.swf.gz"))
    work, _ = clean(log)
    run = Simulation.of(work, Machine(100, event_rule="pyss"), load_policy("easy"))
    run.run()

    assert np.array_equal(run.world.jobs.start, run.work.submit + run.work.wait)


def test_ends_come_before_submissions_under_the_rule_of_an_instant() -> None:
    """At 10 the first job ends and two come: one decision sees all of it, and the earlier one starts."""
    rows = [(0, 10, 10, 8), (10, 5, 5, 8), (10, 1, 1, 2)]

    assert starts(rows, "easy") == [0, 10, 15]


def test_a_call_per_event_under_the_rule_of_pyss() -> None:
    """The small job comes while the early end of the first is not yet seen, and is backfilled before the large one."""
    rows = [(0, 10, 99, 4), (5, 9, 9, 8), (10, 1, 1, 4)]

    assert starts(rows, "easy", Machine(NODES, event_rule="pyss")) == [0, 11, 10]
    assert starts(rows, "easy", Machine(NODES, event_rule="cqsim")) == [0, 10, 19]
    assert starts(rows, "easy") == [0, 10, 19]


def test_a_limit_that_is_reached_counts_from_the_first_event_of_a_second_under_the_rule_of_pyss() -> None:
    """The first job runs as long as it asked for: who is submitted at its end finds its nodes free."""
    rows = [(0, 10, 10, 8), (10, 5, 5, 8)]

    assert starts(rows, "fcfs", Machine(NODES, event_rule="pyss")) == [0, 10]


def test_real_run_times_of_waiting_jobs_under_the_rule_of_cqsim() -> None:
    """The last job asks for too long to be backfilled, but really is short."""
    rows = [(0, 10, 10, 4), (1, 5, 5, 8), (2, 3, 99, 4)]

    assert starts(rows, "easy") == [0, 10, 15]
    assert starts(rows, "easy", Machine(NODES, event_rule="cqsim")) == [0, 10, 2]


@pytest.mark.parametrize("policy", ["conservative", "slurm", "sd"])
def test_a_job_is_there_until_its_own_event_under_the_rule_of_cqsim(policy: str) -> None:
    """Two jobs end at one second: between the two events the nodes of the second one are not free yet."""
    rows = [(0, 10, 10, 4), (0, 10, 10, 4), (1, 5, 5, 8)]
    choices = () if policy == "conservative" else ("interval=1",)

    assert starts(rows, policy, Machine(NODES, event_rule="cqsim"), *choices) == [0, 0, 10]


def test_a_job_ends_at_its_limit() -> None:
    """Where cleaning keeps overruns, the machine does not."""
    run = simulation([(0, 50, 20, 1)], "fcfs")
    run.run()

    assert run.world.end.tolist() == [20]


@pytest.mark.parametrize("model", ["ideal", "worst"])
def test_a_guest_on_both_nodes_of_its_mate(sharing: str, model: str) -> None:
    """Example 1 of the specification: half speed for both while they share."""
    machine = Machine(2, 48, runtime_model=model)
    run = simulation([(0, 6000, 9000, 2), (1800, 1200, 1200, 2)], sharing, machine)
    run.run()

    assert run.world.end.tolist() == [7200, 4200]


@pytest.mark.parametrize(("model", "ends"), [("ideal", (1800, 14700, 5400)), ("worst", (1800, 15600, 7200))])
def test_a_mate_that_ends_before_its_guest(sharing: str, model: str, ends: tuple[int, ...]) -> None:
    """Example 2: the guest grows on the node whose owner has gone; balanced work gains by it at once."""
    machine = Machine(2, 48, "cqsim", model)  # a call per event: the guest finds its mates running
    rows = [(0, 900, 9999, 1), (0, 12000, 19999, 1), (0, 3600, 3600, 2)]
    run = simulation(rows, sharing, machine)
    run.run()

    assert tuple(run.world.end.tolist()) == ends


@pytest.mark.parametrize("model", ["ideal", "worst"])
def test_a_guest_with_a_quarter(sharing: str, model: str) -> None:
    """Example 3: the guest takes four times as long, and its mate loses what the guest asked for."""
    run = simulation(
        [(0, 12000, 12000, 2), (1800, 1200, 1200, 2)], sharing, Machine(2, 48, runtime_model=model), "share=0.25"
    )
    run.run()

    assert run.world.end.tolist() == [13200, 6600]


@pytest.mark.parametrize(("model", "end"), [("ideal", 6600), ("worst", 7200)])
def test_a_guest_on_one_of_two_nodes(sharing: str, model: str, end: int) -> None:
    """Example 4: the slowest node rules in the worst case."""
    run = simulation([(0, 6000, 9000, 2), (1800, 1200, 1200, 1)], sharing, Machine(2, 48, runtime_model=model))
    run.run()

    assert run.world.end.tolist() == [end, 4200]


def test_a_guest_that_needs_less_than_it_asked_for(sharing: str) -> None:
    """Example 5: the mate grows back at once, while its limit stays as long as it was made."""
    run = simulation([(0, 6000, 9000, 2), (1800, 300, 1200, 2)], sharing, Machine(2, 48))
    run.run()

    assert run.world.end.tolist() == [6300, 2400]
    assert run.world.jobs.limit.tolist() == [10200, 2400]
    assert run.world.jobs.lent.tolist() == [1, 0]


@settings(max_examples=100, deadline=None)
@given(logs())
def test_a_simulation_that_was_stopped_goes_on_to_the_same_schedule(rows: list[Row]) -> None:
    """Whenever it stops."""
    whole, parts = simulation(rows, "easy"), simulation(rows, "easy")
    whole.run()
    for until in range(rows[-1][0] + 20):
        parts.run(until)
    parts.run()

    assert parts.world.jobs.start.tolist() == whole.world.jobs.start.tolist()
    assert parts.world.scalars.tolist() == whole.world.scalars.tolist()


FAULTS = {
    "start(actions, 0); start(actions, 0)": "at 0 s: it starts or plans a job that is not waiting (job 1).",
    "start(actions, 1)": "at 0 s: it starts or plans a job that is not waiting (job 2).",
    "start(actions, 9)": "at 0 s: it returns an unknown action, or names an unknown job.",
    "resize(actions, 0, state.queue, 1)": "at 0 s: it resizes or extends a job that is not running (job 1).",
    "add(actions, 9, 0, 0, 0, 0)": ("at 0 s: it returns an unknown action, or names an unknown job (job 1)."),
    "return 0": (
        "at 0 s: it asks for its next call at a time that is not in the future, without having started a job or "
        "shortened a limit."
    ),
    "start(actions, 0); resize(actions, 0, state.queue, 2)": (
        "at 0 s: it gives a job less than one core of a node, more than there are, or fewer nodes or cores than it "
        "needs (job 1)."
    ),
    "start(actions, 0); resize(actions, 0, state.queue, 0)": "at 0 s: it gives a job less than one core of a node",
    "start(actions, 0); resize(actions, 0, state.queue + 7, 1)": (
        "at 0 s: it resizes a job on a node that is not its own (job 1)."
    ),
    "start(actions, 0); set_limit(actions, 0, 0)": "at 0 s: it gives a job a limit that has passed (job 1).",
    "place(actions, 0, state.queue + 9, 1)": "at 0 s: it starts a job on nodes that have no room for it (job 1).",
    "for _ in range(999): start(actions, 0)": "at 0 s: it returns more actions in one call than there is room for",
    "pass": "leaves 2 jobs waiting forever, the first is 1.",
}


@pytest.mark.parametrize("line", FAULTS)
def test_what_a_policy_can_do_wrong(line: str, tmp_path: Path) -> None:
    """One sentence says what, when and with which job."""
    file = tmp_path / "wrong.py"
    names = "NEVER, add, place, resize, set_limit, start"
    file.write_text(
        f"from drom.scheduler.interface import {names}\n\n"
        f"def decide(state, event, options, actions):\n    {line}\n    return NEVER\n",
        encoding="utf-8",
    )
    run = simulation([(0, 5, 5, 1), (1, 5, 5, 1)], str(file))
    with pytest.raises(SchedulerError) as raised:
        run.run()

    assert str(raised.value).removeprefix("Policy wrong").removeprefix(",").strip().startswith(FAULTS[line])
