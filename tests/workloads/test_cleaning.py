# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest
from drom.workloads.cleaning import RULES, CleaningReport, Machine, Rules, clean, parse_rules
from drom.workloads.errors import WorkloadError
from drom.workloads.swf import read_swf
from drom.workloads.workload import Workload, make_workload
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.job_logs import real_log, same, synthetic


def log_of(**columns: list[int]) -> Workload:
    """Return a log in which all that is not given is fine."""
    jobs = len(next(iter(columns.values())))
    fine = {"submit": 0, "run_time": 10, "allocated": 2, "requested_processors": 2, "requested_time": 20, "status": 1}
    made = {name: np.full(jobs, value) for name, value in fine.items()}
    return make_workload(made | {name: np.array(column) for name, column in columns.items()})


def told(report: CleaningReport) -> list[str]:
    """Return the sentences of a report."""
    return [finding.sentence for finding in report.findings]


def test_what_is_clean_stays_as_it_is() -> None:
    """No rule has anything to say about a sound log."""
    cleaned, report = clean(synthetic())

    assert same(cleaned, synthetic())
    assert (report.jobs_in, report.jobs_out, report.findings) == (200, 200, ())


def test_run_time_zero_counts_as_a_second() -> None:
    """Decision D30; the report counts the jobs and names the first ones."""
    cleaned, report = clean(log_of(run_time=[0, 5, 0, 0, 0]))

    assert cleaned.run_time.tolist() == [1, 5, 1, 1, 1]
    assert told(report) == ["4 jobs with run time 0: kept as 1 s"]
    assert report.findings[0].examples == (1, 3, 4)


def test_jobs_without_run_time_can_be_left_out() -> None:
    """Zero and unknown are two rules."""
    cleaned, report = clean(log_of(run_time=[0, -1, 7]), Rules(zero_run_time="drop", unknown_run_time="drop"))

    assert cleaned.job.tolist() == [3]
    assert told(report) == ["1 job with unknown run time: left out", "1 job with run time 0: left out"]


@pytest.mark.parametrize(("choice", "run_time"), [("one", 1), ("requested", 20)])
def test_unknown_run_time(choice: str, run_time: int) -> None:
    """An unknown run time becomes one second, or the requested time."""
    cleaned, _ = clean(log_of(run_time=[-1]), Rules(unknown_run_time=choice))

    assert cleaned.run_time.tolist() == [run_time]


@pytest.mark.parametrize(
    ("choice", "sizes", "sentence"),
    [
        ("allocated", [4, 4, 8, 1], "1 job without allocated processors: requested taken"),
        ("requested", [6, 4, 8, 1], "1 job without requested processors: allocated taken"),
    ],
)
def test_sizes(choice: str, sizes: list[int], sentence: str) -> None:
    """One of the two counts where it is positive, then the other, then one processor; both columns agree after it."""
    log = log_of(allocated=[4, 4, -1, 0], requested_processors=[6, 0, 8, -1])
    cleaned, report = clean(log, Rules(processors=choice))

    assert cleaned.processors.tolist() == cleaned.requested_processors.tolist() == sizes
    assert told(report) == [
        f"1 job whose allocated and requested processors differ: {choice} taken where positive",
        sentence,
        "1 job without a number of processors: kept with 1 processor",
    ]


@pytest.mark.parametrize(
    ("choice", "run_times", "requests"),
    [("cut", [10, 30], [20, 30]), ("raise", [10, 50], [20, 50]), ("keep", [10, 50], [20, 30]), ("drop", [10], [20])],
)
def test_jobs_that_ran_longer_than_requested(choice: str, run_times: list[int], requests: list[int]) -> None:
    """Each of the ways that simulators have is a choice."""
    cleaned, _ = clean(log_of(run_time=[10, 50], requested_time=[20, 30]), Rules(overrun=choice))

    assert (cleaned.run_time.tolist(), cleaned.requested_time.tolist()) == (run_times, requests)


def test_a_missing_request_is_the_run_time() -> None:
    """Also after the run time itself was unknown."""
    cleaned, report = clean(log_of(run_time=[10, -1], requested_time=[-1, 0]))

    assert cleaned.requested_time.tolist() == [10, 1]
    assert told(report)[1:] == ["2 jobs without requested time: given their run time"]


def test_records_of_parts_of_jobs_and_other_statuses_are_left_out() -> None:
    """Each is counted by its own rule."""
    cleaned, report = clean(log_of(status=[1, 2, 3, 0, 5]), Rules(status=(0, 1, 2)))

    assert cleaned.job.tolist() == [1, 4]
    assert told(report) == [
        "2 jobs with another status than 0, 1, 2: left out",
        "1 job recording only a part of another job (status 2 to 4): left out",
    ]


def test_jobs_larger_than_the_machine() -> None:
    """Refused with the job's place unless another choice is made; without a machine nothing is too large."""
    log = log_of(allocated=[8, 9, 12])
    with pytest.raises(WorkloadError) as raised:
        clean(log, machine=Machine(4, 2))

    assert str(raised.value) == (
        "job 2: the rule larger refuses 2 jobs larger than the machine: "
        "choose larger=shrink or larger=drop, or correct the log."
    )
    assert clean(log, Rules(larger="shrink"), Machine(4, 2))[0].processors.tolist() == [8, 8, 8]
    assert clean(log, Rules(larger="drop"), Machine(4, 2))[0].processors.tolist() == [8]
    assert clean(log)[0].processors.tolist() == [8, 9, 12]


def test_job_numbers_that_repeat() -> None:
    """Refused, or the first is kept, or all."""
    log = log_of(job=[4, 5, 4])
    with pytest.raises(WorkloadError, match="refuses 1 job with the number of an earlier job: choose duplicates=drop"):
        clean(log)

    assert clean(log, Rules(duplicates="drop"))[0].job.tolist() == [4, 5]
    assert clean(log, Rules(duplicates="keep"))[0].job.tolist() == [4, 5, 4]


def test_a_trial_refuses_nothing() -> None:
    """A trial reports the jobs that would be refused, and keeps them."""
    log = log_of(job=[4, 5, 4], allocated=[8, 9, 8], submit=[2, 1, 3])
    cleaned, report = clean(log, Rules(order="refuse"), Machine(4, 2), strict=False)

    assert cleaned.job.tolist() == [5, 4, 4]
    assert [finding.rule for finding in report.findings if finding.choice == "refuse"] == [
        "duplicates",
        "larger",
        "order",
    ]


def test_jobs_are_sorted_by_submit_time() -> None:
    """Ties keep their order in the file; or the log is refused."""
    log = log_of(submit=[5, 3, 5, 3])
    cleaned, report = clean(log)

    assert cleaned.job.tolist() == [2, 4, 1, 3]
    assert told(report) == ["2 jobs submitted before the job above them: sorted by submit time"]
    with pytest.raises(WorkloadError, match="job 2: the rule order refuses"):
        clean(log, Rules(order="refuse"))


def test_nothing_left_is_told() -> None:
    """With what the rules did."""
    with pytest.raises(WorkloadError, match="no job is left after cleaning: 1 job with run time 0: left out"):
        clean(log_of(run_time=[0]), Rules(zero_run_time="drop"))


def test_rules_are_read_from_words() -> None:
    """NAME=CHOICE; the last one counts."""
    assert parse_rules([]) == Rules()
    assert parse_rules(["overrun=keep", "status=0,1", "overrun=drop"]) == Rules(status=(0, 1), overrun="drop")
    assert parse_rules(["status=all"]) == Rules()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("speed=1", r"^'speed=1' is not a cleaning rule: write NAME=CHOICE, where NAME is status, partial, "),
        ("overrun=maybe", r"^'overrun=maybe': the rule overrun has the choices cut, raise, keep, drop\.$"),
        ("overrun", r"^'overrun': the rule overrun has the choices"),
        ("status=7", r"^'status=7': write the statuses to keep"),
    ],
)
def test_wrong_words_are_told(text: str, sentence: str) -> None:
    """The sentence lists what can be chosen."""
    with pytest.raises(WorkloadError, match=sentence):
        parse_rules([text])


def test_defaults_are_the_first_choices() -> None:
    """RULES and Rules agree."""
    defaults = Rules().to_json()
    assert {name: next(iter(rule.choices)) for name, rule in RULES.items()} | {"status": None} == defaults


def test_a_report_is_plain_values() -> None:
    """A cleaning report can be written as JSON."""
    _, report = clean(log_of(run_time=[0, 5]))
    value = json.loads(json.dumps(report.to_json()))

    assert (value["jobs_in"], value["jobs_out"], value["rules"]["overrun"]) == (2, 2, "cut")
    assert value["findings"] == [
        {
            "rule": "zero_run_time",
            "choice": "one",
            "jobs": 1,
            "examples": [1],
            "sentence": "1 job with run time 0: kept as 1 s",
        }
    ]


COLUMN = st.lists(st.integers(-1, 5), min_size=6, max_size=6)
COLUMNS = dict.fromkeys(("run_time", "allocated", "requested_processors", "requested_time"), COLUMN)
CHOICES = st.fixed_dictionaries({name: st.sampled_from(list(rule.choices)) for name, rule in RULES.items()})


@settings(deadline=None)
@given(
    st.fixed_dictionaries(dict.fromkeys(("run_time", "allocated", "requested_processors", "requested_time"), COLUMN)),
    CHOICES,
)
def test_whatever_is_chosen_the_jobs_can_be_simulated(columns: dict[str, list[int]], choices: dict[str, str]) -> None:
    """What is promised of cleaned jobs holds under any rules, and every job is there or counted as left out."""
    try:
        cleaned, report = clean(log_of(**columns), parse_rules(f"{k}={v}" for k, v in choices.items()), Machine(2, 2))
    except WorkloadError:
        return

    assert cleaned.run_time.min() >= 1
    assert cleaned.requested_time.min() >= 1
    assert ((cleaned.allocated >= 1) & (cleaned.allocated <= 4)).all()
    assert (cleaned.allocated == cleaned.requested_processors).all()
    assert report.jobs_out == len(cleaned)
    assert report.jobs_in - report.jobs_out == sum(f.jobs for f in report.findings if f.sentence.endswith("left out"))
    if choices["overrun"] != "keep":
        assert (cleaned.run_time <= cleaned.requested_time).all()


def test_curie_as_the_paper_used_it() -> None:
    """198,509 jobs stay; the counts are those of an independent analysis."""
    log = read_swf(real_log("CEA-Curie-2011-primary.swf.gz"))
    cleaned, report = clean(log, machine=Machine(5040, 16))

    assert len(cleaned) == 198_509
    assert int(log.allocated.max()) == 79_808
    assert (int((log.requested_processors <= 0).sum()), int(((log.run_time == 0) & (log.allocated == -1)).sum())) == (
        49_933,
        7_977,
    )
    assert told(report) == [
        "7,360 jobs whose allocated and requested processors differ: allocated taken where positive",
        "7,966 jobs without allocated processors: requested taken",
        "11 jobs without a number of processors: kept with 1 processor",
        "11,188 jobs with run time 0: kept as 1 s",
        "3,359 jobs with run time above requested time: run time cut to the request",
    ]


def test_a_log_out_of_order_is_sorted() -> None:
    """The simulated KTH log is in order of ends."""
    cleaned, report = clean(read_swf(real_log("KTH-SP2-pyss-easy.swf.gz")), machine=Machine(100))

    assert told(report) == ["9,415 jobs submitted before the job above them: sorted by submit time"]
    assert (np.diff(cleaned.submit) >= 0).all()
