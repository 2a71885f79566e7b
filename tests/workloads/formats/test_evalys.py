# SPDX-License-Identifier: Apache-2.0
"""Tables of jobs as Batsim writes them and evalys reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.workloads.errors import WorkloadError
from drom.workloads.formats.evalys import COLUMNS
from drom.workloads.logs import read_log, write_log
from drom.workloads.workload import Workload, make_workload
from hypothesis import given
from hypothesis import strategies as st

from tests.support.job_logs import synthetic
from tests.workloads.formats.test_sacct import columns, fault_of, log_of

if TYPE_CHECKING:
    from pathlib import Path

TABLE = """\
job_id,workload_name,profile,submission_time,requested_number_of_resources,requested_time,success,final_state,\
starting_time,execution_time,finish_time,waiting_time,turnaround_time,stretch,allocated_resources,consumed_energy,metadata
3,w0,delay1,10,4,100,1,COMPLETED_SUCCESSFULLY,15.000015,12.5,27.500015,5.000015,17.5,1.4,0-3,-1,""
0,w0,delay2,5,2,-1,0,COMPLETED_KILLED,6,100,106,1,101,1.01,0 3,-1,"a,b"
1,w0,delay2,7,9,100,0,REJECTED,-1,-1,-1,-1,-1,-1,,-1,""
"""
OLD = "jobID,submission_time,requested_number_of_processors,requested_time,success,starting_time,execution_time\n"


def test_a_table_of_batsim(tmp_path: Path) -> None:
    """Jobs that were rejected are left out; what is not whole is rounded."""
    log = log_of(tmp_path / "out_jobs.csv", TABLE)

    assert columns(log, "job", "submit", "wait", "run_time", "allocated", "requested_time", "status") == [
        [0, 3],
        [5, 10],
        [1, 5],
        [100, 13],
        [2, 4],
        [-1, 100],
        [0, 1],
    ]
    assert "; Note: left out: 1 job that had not started or not ended" in log.comments


def test_names_of_columns_until_batsim_2(tmp_path: Path) -> None:
    """They are understood; jobs need not have numbers."""
    log = log_of(tmp_path / "jobs.csv", OLD + "a!1,0,2,10,1,3,4\n\na!2,1,2,10,True,7,4\n")

    assert columns(log, "job", "wait", "status") == [[1, 2], [3, 6], [1, 1]]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            OLD.replace("starting_time,", "") + "1\n",
            ", line 1: the column starting_time is missing: name a table that ",
        ),
        (OLD + "1,2,3\n", ", line 2: 3 columns where the first line has 7."),
        (OLD + "1,0,many,10,1,3,4\n", ", line 2, requested_number_of_resources: 'many' is not a number."),
        (OLD + "1,0,2,10,1,nan,4\n", ", line 2, starting_time: 'nan' is not a number."),
        (OLD + '"' + "x" * 200_000 + '",0,2,10,1,3,4\n', " cannot be read as a table: field larger than field limit"),
    ],
)
def test_a_bad_table_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    """It names file, line and column."""
    assert fault_of(tmp_path / "jobs.csv", text).startswith(sentence)


jobs = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 50), st.integers(0, 50), st.integers(1, 9)), min_size=1)


@given(jobs)
def test_a_schedule_survives_and_no_processor_has_two_jobs(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, ...]]
) -> None:
    """Each job has as many processors as it needs from its start to its end, the lowest that are free."""
    submit, wait, run_time, size = (np.array(column, np.int64) for column in zip(*sorted(rows), strict=True))
    log = make_workload({"submit": submit, "wait": wait, "run_time": run_time, "allocated": size, "status": size % 2})
    path = tmp_path_factory.mktemp("evalys") / "jobs.csv"
    write_log(log, path, "evalys")
    again = read_log(path)

    for name in ("job", "submit", "wait", "run_time", "allocated", "status", "requested_time"):
        assert np.array_equal(getattr(again, name), getattr(log, name)), name
    check_places(log, [line.rsplit(",", 1)[1] for line in path.read_text().splitlines()[1:]])


def check_places(log: Workload, places: list[str]) -> None:
    """Assert that no processor has two jobs at a time."""
    until: dict[int, int] = {}
    start = log.submit + log.wait
    for job in np.argsort(start, kind="stable").tolist():
        ends = [interval.split("-") for interval in places[job].split()]
        taken = [number for low, *high in ends for number in range(int(low), int((high or [low])[0]) + 1)]
        assert len(set(taken)) == log.processors[job]
        assert all(until.get(number, 0) <= start[job] for number in taken)
        until |= dict.fromkeys(taken, int(start[job] + log.run_time[job]))


def test_the_columns_are_those_of_evalys(tmp_path: Path) -> None:
    """The schedule of a small machine stays within it."""
    one = {"submit": [0, 0, 1], "wait": [0, 0, 9], "run_time": [10, 20, 0], "allocated": [2, 1, 2], "status": [1, 1, 0]}
    write_log(make_workload({name: np.array(column) for name, column in one.items()}), tmp_path / "jobs.csv", "evalys")

    assert (tmp_path / "jobs.csv").read_text().splitlines() == [
        ",".join(COLUMNS),
        "1,drom,0,2,-1,1,0,10,10,0,10,1.0,0-1",
        "2,drom,0,1,-1,1,0,20,20,0,20,1.0,2",
        "3,drom,1,2,-1,0,10,0,10,9,9,,0-1",
    ]


def test_a_log_that_is_no_schedule_is_refused(tmp_path: Path) -> None:
    """The sentence names the job."""
    log = synthetic().with_columns(wait=np.where(synthetic().job == 7, -1, 0))
    with pytest.raises(
        WorkloadError, match="job 7 has no processors, wait or run time: evalys shows schedules, such as"
    ):
        write_log(log, tmp_path / "jobs.csv", "evalys")

    assert not list(tmp_path.iterdir())
