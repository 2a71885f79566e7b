# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest
from drom.workloads.cleaning import Machine, Rules
from drom.workloads.summary import summary
from drom.workloads.swf import read_swf
from drom.workloads.workload import make_workload

from tests.support.job_logs import real_log, synthetic

KEYS = {
    *("schema_version", "source", "jobs", "comments", "header", "machine", "largest_job", "begins", "first_submit_s"),
    *("submit_span_s", "least_makespan_s", "recorded_makespan_s", "load", "users", "serial", "powers_of_two", "status"),
    *("distributions", "rounded", "warnings", "cleaning"),
}


def test_a_small_log() -> None:
    """Worked out by hand: two jobs on 4 processors, 20 + 40 processor-seconds in 30 seconds."""
    log = make_workload(
        {
            "submit": np.array([100, 110]),
            "wait": np.array([0, 5]),
            "run_time": np.array([10, 20]),
            "allocated": np.array([2, 2]),
            "user": np.array([1, 1]),
        }
    )
    value = summary(log, machine=Machine(2, 2))

    assert json.loads(json.dumps(value)).keys() == KEYS
    assert (value["load"], value["machine"]) == (0.5, {"processors": 4, "from": "given"})
    assert (value["submit_span_s"], value["least_makespan_s"], value["recorded_makespan_s"]) == (10, 30, 35)
    assert (value["users"], value["serial"], value["powers_of_two"]) == (1, 0, 1)
    assert value["distributions"]["requested_time"] is None
    assert value["distributions"]["run_time"] == {
        "known": 2,
        "mean": 15,
        "min": 10,
        "p10": 11,
        "median": 15,
        "p90": 19,
        "max": 20,
        "p99": pytest.approx(19.9),
    }


def test_the_machine_is_given_or_named_or_unknown() -> None:
    """In this order; without a machine there is no load."""
    nameless = make_workload({"submit": np.array([0]), "run_time": np.array([9]), "allocated": np.array([3])})

    assert summary(synthetic())["machine"] == {"processors": 64, "from": "MaxProcs of the log"}
    assert summary(synthetic(), machine=Machine(5))["machine"] == {"processors": 5, "from": "given"}
    assert (summary(nameless)["machine"]["processors"], summary(nameless)["load"]) == (None, None)
    assert summary(nameless)["largest_job"] == 3


def test_dates_come_from_the_header() -> None:
    """The first submission, in UTC."""
    assert summary(synthetic())["begins"][:11] == "2010-08-31T"


@pytest.mark.parametrize(
    ("comment", "said"), [("; UnixStartTime: 1272639895000", "1272639895000"), ("; TimeZone: 360000", "360000")]
)
def test_dates_that_cannot_be_are_a_warning(comment: str, said: str) -> None:
    """Milliseconds, or a zone of hundred hours: the beginning is unknown, and the header is named."""
    log = synthetic()
    value = summary(log.commented((comment, *log.comments)))

    assert value["begins"] is None
    assert said in value["warnings"][-1]
    assert value["warnings"][-1].endswith("both are in seconds: correct the header.")


def test_what_is_odd_about_a_log_is_a_warning() -> None:
    """Records that are missing, and jobs larger than the machine."""
    found = summary(synthetic().with_comments("; MaxRecords: 5000"), machine=Machine(8))["warnings"]

    assert found[0] == "The header announces 5,000 records, 200 are here."
    assert found[1].endswith("jobs larger than the machine of 8 processors (given).")


def test_cleaning_knows_the_machine() -> None:
    """What a rule would do to jobs larger than it, given or named by the log, also where that is to refuse them."""
    large = int((synthetic().processors > 8).sum())
    named = synthetic().commented(("; MaxProcs: 8",))
    found = [summary(named)["cleaning"], summary(synthetic(), machine=Machine(4, 2))["cleaning"]]
    dropped = summary(named, Rules(larger="drop"))

    assert [report["findings"][0]["sentence"] for report in found] == [
        f"{large} jobs larger than the machine: refused"
    ] * 2
    assert [report["jobs_out"] for report in found] == [200, 200]
    assert (dropped["cleaning"]["jobs_out"], dropped["largest_job"], dropped["warnings"]) == (200 - large, 8, [])


def test_curie_as_an_independent_analysis_found_it() -> None:
    """Span, makespans, means and utilisation of the paper's fourth workload."""
    value = summary(read_swf(real_log("CEA-Curie-2011-primary.swf.gz")), machine=Machine(5040, 16))

    assert (value["jobs"], value["first_submit_s"], value["submit_span_s"]) == (198_509, 32_066_256, 21_513_903)
    assert (value["least_makespan_s"], value["recorded_makespan_s"]) == (21_562_645, 21_803_356)
    means = [round(value["distributions"][name]["mean"]) for name in ("run_time", "wait")]
    assert means == [6295, 6258]
    assert value["load"] == pytest.approx(0.64, abs=0.01)


def test_a_truncated_log_is_noticed() -> None:
    """By the number of records its header announces."""
    value = summary(read_swf(real_log("NASA-iPSC-1993-3-truncated.swf.gz")))

    assert value["warnings"] == ["The header announces 42,264 records, 228 are here."]
