# SPDX-License-Identifier: Apache-2.0
"""Workloads of Batsim, in and out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from drom.workloads.errors import WorkloadError
from drom.workloads.logs import read_log, write_log
from drom.workloads.workload import make_workload
from hypothesis import given
from hypothesis import strategies as st

from tests.support.job_logs import synthetic
from tests.workloads.formats.test_sacct import columns, fault_of, log_of

if TYPE_CHECKING:
    from pathlib import Path


def text_of(*jobs: Any, **changes: Any) -> str:
    """Return a workload of Batsim with some jobs."""
    profiles = {
        "d": {"type": "delay", "delay": 20.25},
        "n": {"type": "DelayProfile", "delay": 7},
        "p": {"type": "usage"},
    }
    return json.dumps({"nb_res": 4, "jobs": jobs, "profiles": profiles} | changes)


JOB = {"id": "3", "subtime": 10, "walltime": 100, "res": 4, "profile": "d"}


def test_jobs_with_delays_have_run_times(tmp_path: Path) -> None:
    """They end at their walltime at the latest; seconds are rounded, and counted."""
    jobs = (JOB, JOB | {"id": 4, "walltime": 5}, JOB | {"id": "w0!5", "walltime": -1, "profile": "n", "subtime": 0.5})
    log = log_of(tmp_path / "w.json", text_of(*jobs))

    assert columns(log, "job", "submit", "run_time", "requested_time", "allocated") == [
        [5, 3, 4],
        [1, 10, 10],
        [7, 20, 5],
        [-1, 100, 5],
        [4, 4, 4],
    ]
    assert (set(log.wait.tolist()), log.header_number("MaxProcs")) == ({-1}, 4)
    assert dict(log.roundings) == {"submit": 1, "run_time": 1}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (text_of(jobs=7), " is no workload of Batsim: it needs a list of jobs, and profiles by name."),
        (text_of(JOB, nb_res=0), ", nb_res: '0' is not a positive whole number."),
        (text_of(7), ", jobs[0] is not a job: it needs id, subtime, res and profile."),
        (text_of(JOB | {"res": 2.5}), ", jobs[0], job '3', res: '2.5' is not a positive whole number."),
        (text_of(JOB | {"subtime": None}), ", jobs[0], job '3', subtime: 'None' is not a number."),
        (text_of(JOB | {"subtime": -1}), ", job '3': the submit time -1 is not between 0 and 10,000,000,000."),
        (text_of(JOB | {"profile": "x"}), ", jobs[0], job '3': the profile 'x' is not among the profiles: add it."),
        (
            text_of(JOB | {"profile": "p"}),
            ", jobs[0], job '3': the profile 'p' is of type 'usage', and only Batsim knows ",
        ),
        (
            text_of(JOB, profiles={"d": {"type": "delay"}}),
            ", jobs[0], job '3', delay of the profile 'd': 'None' is not ",
        ),
        (
            text_of(JOB, profiles={"d": {"type": "delay", "delay": -1}}),
            ", jobs[0], job '3', delay of the profile 'd': '-1' is",
        ),
        (text_of(), " contains no job that has run: name a log of Batsim with jobs that have ended."),
    ],
)
def test_a_bad_workload_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    """It names the job and the key."""
    assert fault_of(tmp_path / "w.json", text).startswith(sentence)


jobs = st.lists(
    st.tuples(st.integers(0, 10**9), st.integers(1, 1000), st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1
)


@given(jobs)
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, ...]]) -> None:
    """Sizes, run times and requests of at least that survive; jobs are in order of submission."""
    submit, size, run_time, spare = (np.array(column, np.int64) for column in zip(*sorted(rows), strict=True))
    log = make_workload({"submit": submit, "allocated": size, "run_time": run_time, "requested_time": run_time + spare})
    path = tmp_path_factory.mktemp("batsim") / "w.json.gz"
    write_log(log, path)
    again = read_log(path)

    for name in ("job", "submit", "allocated", "run_time"):
        assert np.array_equal(getattr(again, name), getattr(log, name))
    assert np.array_equal(again.requested_time, np.where(run_time + spare > 0, run_time + spare, -1))


def test_the_machine_is_that_of_the_header(tmp_path: Path) -> None:
    """Otherwise it has as many processors as the largest job."""
    write_log(synthetic(), tmp_path / "named.json")
    write_log(synthetic().commented(()), tmp_path / "plain.json")
    named, plain = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("named", "plain"))

    assert (named["nb_res"], plain["nb_res"]) == (64, synthetic().processors.max())
    assert named["jobs"][0].keys() == JOB.keys()


@pytest.mark.parametrize(
    ("column", "value", "fault"),
    [
        ("allocated", -1, "job 2 has no number of processors"),
        ("run_time", -1, "job 2 has no run time"),
        ("job", 1, "job 1 has the number of an earlier job"),
    ],
)
def test_jobs_that_batsim_cannot_have(tmp_path: Path, column: str, value: int, fault: str) -> None:
    """The sentence names the job and what to do; nothing is written."""
    columns = {"allocated": [4, 4], "run_time": [1, 2], "job": [1, 2], "submit": [0, 0]}
    columns[column][1] = value
    with pytest.raises(WorkloadError) as raised:
        write_log(make_workload({name: np.array(values) for name, values in columns.items()}), tmp_path / "w.json")

    assert str(raised.value) == f"{fault}: convert what drom workload filter --clean writes."
    assert not list(tmp_path.iterdir())
