# SPDX-License-Identifier: Apache-2.0
"""The baselines that order the queue by a score, against a slow reference and by hand, and scores of one's own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.engine.compiler import BASELINES, compile_program, compile_start, load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import MALLEABLE, NEVER
from drom.scheduler.live.cluster.controller import Controller, JobRequest
from drom.scheduler.simulator.simulation import Machine, Simulation
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core import event

from tests.support import reference_schedules as reference
from tests.support.schedules import NODES, Row, jobs_of, logs, simulation, starts, workload

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from drom.scheduler.engine.compiler import Policy

    from tests.support.reference_schedules import Job

pytestmark = pytest.mark.timeout(600)
"""Each policy takes some seconds to compile, once."""

CORES = 4
MACHINE = Machine(NODES, CORES)


def size(job: Job) -> int:
    """Return the cores of a job."""
    return CORES * job.nodes


def wfp3(job: Job, now: int) -> float:
    """Return minus the cube of wait over request, times cores."""
    ratio = (now - job.submit) / job.requested
    return -(ratio * ratio * ratio * size(job))


SCORES: dict[str, Callable[[Job, int], float]] = {
    "sjf": lambda job, _: job.requested,
    "ljf": lambda job, _: -job.requested,
    "saf": lambda job, _: job.requested * size(job),
    "wfp3": wfp3,
    "unicef": lambda job, now: -(now - job.submit) / (math.log2(size(job)) * job.requested),
    "f1": lambda job, _: math.log10(job.requested) * size(job) + 870 * math.log10(job.submit or 1),
    "f2": lambda job, _: math.sqrt(job.requested) * size(job) + 25_600 * math.log10(job.submit or 1),
    "f3": lambda job, _: job.requested * size(job) + 6_860_000 * math.log10(job.submit or 1),
    "f4": lambda job, _: job.requested * math.sqrt(size(job)) + 530_000 * math.log10(job.submit or 1),
}


@pytest.mark.parametrize("name", BASELINES)
@settings(max_examples=100, deadline=None)
@given(rows=logs(), seconds=st.sampled_from((1, 600)), most=st.sampled_from((None, 0, 2)))
def test_a_baseline(name: str, rows: list[Row], seconds: int, most: int | None) -> None:
    """Every job starts as in a plain simulation that sorts the queue at each decision, early and late in a log."""
    origin = 0 if seconds == 1 else 10_000_000
    rows = [
        (origin + submit * seconds, run * seconds, requested * seconds, nodes) for submit, run, requested, nodes in rows
    ]
    choices = [] if most is None else [f"backfill={most}"]
    expected = reference.simulate(jobs_of(rows), NODES, reference.by_score(SCORES[name], most))

    assert starts(rows, name, MACHINE, *choices) == expected


@pytest.mark.parametrize(
    ("name", "origin", "order"),
    [
        ("sjf", 0, "BCA"),  # 15, 17, 20 s
        ("ljf", 0, "ACB"),
        ("saf", 0, "CAB"),  # 17 * 5, 20 * 5, 15 * 8
        ("wfp3", 0, "BAC"),  # B: (8 / 15)^3 * 8 = 1.2, A: (9 / 20)^3 * 5 = 0.5; later A: 8.6, C: 4.2
        ("unicef", 0, "ABC"),  # A: 9 / (log2(5) * 20) = 0.19, B: 8 / (log2(8) * 15) = 0.18; later B: 0.62, C: 0.53
        ("f1", 100, "ABC"),  # 6.5 + 1743.8, 9.4 + 1747.5, 6.2 + 1772.6
        ("f2", 1_000_000, "CAB"),  # 20.6 + 0.10, 22.4 + 0.01, 31.0 + 0.02, and 153,600 each
        ("f3", 1_000_000, "ACB"),  # 100 + 3.0, 85 + 26.8, 120 + 6.0, and 41,160,000 each
        ("f4", 1_000_000, "CBA"),  # 38.0 + 2.1, 42.4 + 0.5, 44.7 + 0.2, and 3,180,000 each
    ],
)
def test_a_baseline_by_hand(name: str, origin: int, order: str) -> None:
    """Three jobs that cannot run together start one after the other, in order of the published score."""
    jobs = {"A": (1, 20, 20, 5), "B": (2, 15, 15, 8), "C": (9, 17, 17, 5)}
    rows = [(origin, 10, 10, 8), *((origin + submit, run, run, nodes) for submit, run, _, nodes in jobs.values())]
    found = starts(rows, name)
    begins, now = {}, origin + 10
    for job in order:
        begins[job] = now
        now += jobs[job][1]

    assert found == [origin, *(begins[job] for job in jobs)]


def test_equal_scores_keep_the_order_of_submission() -> None:
    """Jobs of one length start in order of submission, then of number."""
    assert starts([(0, 5, 5, 8), (1, 5, 5, 8), (2, 5, 5, 8), (2, 5, 5, 8)], "sjf") == [0, 5, 10, 15]


def test_one_core_under_unicef() -> None:
    """A job of one core that has waited comes before wider ones, and the longest wait for its length first."""
    rows = [(0, 10, 10, 1), (1, 5, 5, 1), (3, 2, 2, 1), (10, 2, 2, 1)]

    assert starts(rows, "unicef", Machine(1)) == [0, 12, 10, 17]


def test_a_job_that_is_overtaken_loses_its_reservation() -> None:
    """The shorter job becomes the head, the planned start of the other is withdrawn, and that one starts later."""
    run = simulation([(0, 10, 10, 8), (1, 9, 9, 8), (2, 3, 3, 8)], "sjf")
    run.run(1)
    before = run.world.jobs.planned.tolist()
    run.run(2)
    after = run.world.jobs.planned.tolist()
    run.run()

    assert before == [NEVER, 10, NEVER]
    assert after == [NEVER, NEVER, 10]
    assert run.world.jobs.start.tolist() == [0, 13, 10]


def test_jobs_of_higher_priority_come_first() -> None:
    """On a live cluster a score orders only jobs of one priority."""
    controller = Controller(load_policy("sjf"), CORES)
    controller.node_up(0)
    for number, (seconds, priority) in enumerate([(9, 0), (5, 0), (7, 1), (8, 1)]):
        controller.submit(number, JobRequest(1, seconds, MALLEABLE, priority), 0)
    order = []
    for now in range(4):
        (number,) = controller.turn(now)
        controller.ended(number, now)
        order.append(number)

    assert order == [2, 3, 1, 0]


OWN = """
from drom.scheduler.interface import compilable
import numpy as np
OPTIONS = {"weight": 1.0%s}
WORDS = {"weight": {"none": 0}}

def check(options):
    return "" if options["weight"] >= 0 else "weight is 0 or more."

@compilable
def area(jobs, job):
    return jobs.requested[job] * jobs.nodes[job]

def score(state, job, options):
    return %s
"""


def own(path: Path, result: str, more: str = "") -> str:
    """Write a policy with this score and these further parameters, and return its file."""
    path.write_text(OWN % (more, result), encoding="utf-8")
    return str(path)


def test_a_score_of_ones_own(tmp_path: Path) -> None:
    """A file with a score has its own parameters, and `backfill`, whose default it may change."""
    rows = [(0, 5, 5, 8), (1, 9, 9, 8), (1, 5, 5, 8), (2, 4, 4, 8)]
    file = own(tmp_path / "area.py", "options[0] * area(state.jobs, job)", ', "backfill": 3')

    assert starts(rows, file) == starts(rows, "saf") == [0, 14, 9, 5]
    assert starts(rows, file, None, "weight=none") == starts(rows, "easy")
    assert load_policy(file, ["backfill=all"]).parameters() == {"weight": 1, "backfill": "all"}
    assert load_policy(file).parameters() == {"weight": 1, "backfill": 3}


@pytest.fixture(scope="module")
def area(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """Return a user's policy that orders jobs as `saf` does."""
    return load_policy(own(tmp_path_factory.mktemp("area") / "area.py", "options[0] * area(state.jobs, job)"))


@settings(deadline=None, max_examples=50)
@given(rows=logs())
def test_one_score_makes_one_schedule(area: Policy, rows: list[Row]) -> None:
    """A score that is computed once orders the queue as one that is computed at each call, by drom or by a user."""
    policy = load_policy("saf")
    runs = [Simulation.of(workload(rows), Machine(NODES), one) for one in (policy, policy._replace(fixed=False), area)]
    for run in runs:
        run.run()
    first, *others = [run.world.jobs.start.tolist() for run in runs]

    assert [run.program.scores is None for run in runs] == [False, True, True]
    assert others == [first, first]


def test_a_score_is_compiled_without_what_all_share(tmp_path: Path) -> None:
    """Sorting and backfilling, which take most of the time, are compiled once for all files."""
    compile_start()
    with event.install_recorder("numba:compile") as recorder:
        compile_program(load_policy(own(tmp_path / "area.py", "options[0] - area(state.jobs, job)")))
    names = {one.data["dispatcher"].py_func.__name__ for _, one in recorder.buffer}

    assert {"score", "area"} <= names
    assert not {"from_head", "in_order", "backfill", "argsort"} & names


@pytest.mark.parametrize("more", ["", "\n\nFIXED = True"])
@pytest.mark.parametrize(
    ("result", "line", "fault"),
    [
        ("'x'", 15, "No conversion from Literal[str](x) to float64"),
        ("None", 15, "No conversion from none to float64"),
        ("nothing + 1", 15, "NameError: name 'nothing' is not defined"),
        ("state.wish", 15, "Unknown attribute 'wish' of type State"),
        ("1 + 'a'", 15, "No implementation of function Function(<built-in function add>) found for signature: add("),
        ("area(state, job)", 12, "Unknown attribute 'requested' of type State"),
        ("area(job)", 15, "TypingError: Cannot bind"),
    ],
)
def test_a_fault_of_a_score_has_its_line(tmp_path: Path, result: str, line: int, fault: str, more: str) -> None:
    """One sentence names the user's file and line, not those of drom's code that calls the score."""
    file = own(tmp_path / "wrong.py", result + more)
    with pytest.raises(SchedulerError) as raised:
        starts([(0, 5, 5, 8)], file)

    assert str(raised.value).startswith(f"numba cannot compile the policy {file}, line {line}: {fault}")


def test_a_score_that_fails_in_plain_python_has_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence names the line in the user's file, not that of drom's code that calls the score."""
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    file = own(tmp_path / "wrong.py", "area(state.jobs, 99)")
    with pytest.raises(SchedulerError, match=rf"IndexError: index 99 is .* \({file}, line 12\)"):
        starts([(0, 5, 5, 8)], file)


def test_a_fixed_score_is_computed_at_each_call_where_run_times_are_predicted() -> None:
    """A prediction is made when a job is submitted."""
    run = Simulation.of(workload([(0, 5, 5, 8), (1, 5, 9, 8)]), Machine(NODES), load_policy("sjf"), predictor="recent")

    assert run.program.scores is None


def test_a_fixed_score_cannot_change_the_state(tmp_path: Path) -> None:
    """One sentence says so."""
    file = own(tmp_path / "wrong.py", "state.jobs.nodes.sort()\n\nFIXED = True")
    with pytest.raises(SchedulerError, match="it changes the state, which policies only read"):
        starts([(0, 5, 5, 8)], file)


def test_a_fixed_score_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence names the policy and the error."""
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    file = own(tmp_path / "wrong.py", "area(state.jobs, 99)\n\nFIXED = True")
    with pytest.raises(SchedulerError, match="The score of policy wrong cannot be computed: IndexError: index 99 is"):
        starts([(0, 5, 5, 8)], file)


@pytest.mark.parametrize("more", ["", "\n\nFIXED = True"])
def test_a_score_that_is_no_number_comes_last(tmp_path: Path, more: str) -> None:
    """Jobs with a number overtake one whose score is none."""
    file = own(tmp_path / "holes.py", "np.nan if job == 1 else -job" + more)

    assert starts([(0, 5, 5, 8), (1, 5, 5, 8), (1, 5, 5, 8), (1, 5, 5, 8)], file) == [0, 15, 10, 5]


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ("backfill=-1", "backfill is a whole number from 0, or all."),
        ("backfill=1.5", "backfill is a whole number from 0, or all."),
        ("backfill=nan", "backfill is a whole number from 0, or all."),
        ("backfill=some", "'backfill=some': the parameter backfill of policy FILE is a number, all: write backfill="),
        ("weight=-1", "weight is 0 or more."),
        ("height=1", "'height=1': the policy FILE has no parameter 'height': it has weight, backfill."),
    ],
)
def test_parameters_that_cannot_be(tmp_path: Path, choice: str, sentence: str) -> None:
    """A sentence says what there is."""
    file = own(tmp_path / "area.py", "1")
    with pytest.raises(SchedulerError) as raised:
        load_policy(file, [choice])

    assert sentence.replace("FILE", file) in str(raised.value)
