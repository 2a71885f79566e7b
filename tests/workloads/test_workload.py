# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from drom.workloads.errors import WorkloadError
from drom.workloads.fields import NAMES
from drom.workloads.workload import make_workload

from tests.support.job_logs import synthetic


def test_what_is_not_given_is_unknown() -> None:
    """Jobs are numbered from 1, other fields are -1."""
    made = make_workload({"submit": np.array([3, 5])})

    assert made.job.tolist() == [1, 2]
    assert made.submit.tolist() == [3, 5]
    assert all((getattr(made, name) == -1).all() for name in NAMES[2:])


def test_columns_cannot_be_changed_behind_its_back() -> None:
    """Neither through the workload nor through the array it was made of."""
    submit = np.array([3, 5])
    made = make_workload({"submit": submit})
    submit[0] = 9

    assert made.submit.tolist() == [3, 5]
    with pytest.raises(ValueError, match="read-only"):
        made.submit[0] = 1


def test_columns_of_different_lengths_are_refused() -> None:
    """A column must have a value for each job."""
    with pytest.raises(ValueError, match="Column wait is not an int64 array of 2 jobs"):
        make_workload({"submit": np.array([3, 5]), "wait": np.array([1])})


def test_a_name_that_is_no_field() -> None:
    """The sentence lists the fields."""
    with pytest.raises(WorkloadError, match=r"^'size' is not a field of a workload: choose from job, submit, "):
        make_workload({"size": np.array([3, 5])})


def test_the_size_is_what_was_allocated_else_what_was_requested() -> None:
    """Zero and unknown allocations do not count."""
    made = make_workload({"allocated": np.array([4, 0, -1, -1]), "requested_processors": np.array([8, 8, 8, -1])})

    assert made.processors.tolist() == [4, 8, 8, -1]


def test_jobs_are_taken_by_mask_position_and_slice() -> None:
    """Each column and the lines go along, in the order that was asked for."""
    log = synthetic(5)

    assert log.take(log.job > 3).job.tolist() == [4, 5]
    assert log.take(np.array([4, 0])).submit.tolist() == [log.submit[4], log.submit[0]]
    assert len(log.take(slice(2))) == 2


def test_the_header_is_read_from_the_comments() -> None:
    """Keys and values; a number may be followed by words; the first of a repeated key counts."""
    log = synthetic(1)

    assert log.header()["Computer"] == "a test"
    assert (log.header_number("MaxProcs"), log.header_number("Computer"), log.header_number("Nothing")) == (
        64,
        None,
        None,
    )
    assert log.with_comments(f"; MaxNodes: {'9' * 5000}").header_number("MaxNodes") is None
