# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from drom.workloads.errors import WorkloadError
from drom.workloads.where import matching
from drom.workloads.workload import make_workload
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.job_logs import synthetic

LOG = make_workload(
    {
        "submit": np.array([0, 100, 200, 300]),
        "wait": np.array([5, -1, 0, 50]),
        "run_time": np.array([10, 4000, 0, 7200]),
        "allocated": np.array([1, 64, -1, 128]),
        "requested_processors": np.array([1, 64, 32, -1]),
        "requested_time": np.array([20, 4000, -1, 3600]),
        "user": np.array([3, 3, 7, -1]),
    }
)


@pytest.mark.parametrize(
    ("condition", "jobs"),
    [
        ("run_time>3600 and processors<=64", [2]),
        ("run_time > 3600 or user == 7", [2, 3, 4]),
        ("not (user == 3)", [3, 4]),
        ("not user == 3 and run_time < 1", [3]),
        ("1 < processors < 100", [2, 3]),
        ("user in (7, -1)", [3, 4]),
        ("user not in [3]", [3, 4]),
        ("user in ()", []),
        ("accuracy == 1", [2]),
        ("accuracy > 0", [1, 2, 4]),
        ("start >= 100 and end <= 4100", [2, 3]),
        ("area / 3600 > 100", [4]),
        ("run_time / processors > 50", [2, 4]),
        ("job % 2 == 0", [2, 4]),
        ("-run_time + 10 == 0", [1]),
        ("submit // 100 == 2", [3]),
        ("run_time / 0 > 1", [1, 2, 4]),
        (" 1 == 1 ", [1, 2, 3, 4]),
        ("1 > 2", []),
    ],
)
def test_conditions(condition: str, jobs: list[int]) -> None:
    """Fields, what is derived from them, arithmetic, comparisons and logic as in Python."""
    assert LOG.job[matching(LOG, condition)].tolist() == jobs


@pytest.mark.parametrize(
    ("condition", "fault"),
    [
        ("run_time >", "cannot be read: write for example run_time > 3600 and processors <= 64 (equality is ==)."),
        ("run_time = 3", "cannot be read: "),
        ("", "cannot be read: "),
        ("\0", "cannot be read: "),
        ("(" * 300, "cannot be read: "),
        ("-" * 990 + "1 > 0", "is nested too deeply: "),
        ("x" * 2000, "is longer than 1000 characters: "),
        ("run_time", "is a number, not a condition: "),
        ("not run_time", "joins 'run_time', a number, as if it were a condition: "),
        ("(run_time > 1) + 1 > 0", "calculates with 'run_time > 1', a condition: "),
        ("length > 3", "asks for 'length', which no job has: choose from job, submit, wait, "),
        ("user is 3", "uses is or is not: "),
        ("user in 3", "has no list of numbers after in: "),
        ("user in (user,)", "has no list of numbers after in: "),
        ("run_time == 1e30", "has a number beyond 1,000,000,000,000,000: "),
        ("'a' == 1", "has a part that is not understood, \"'a'\": "),
        ("True", "has a part that is not understood, 'True': "),
        ("run_time ** 9 > 1", "has a part that is not understood, 'run_time ** 9': "),
        ("user.bit_length() > 1", "has a part that is not understood, 'user.bit_length()': "),
        ("__import__('os').abort()", "has a part that is not understood, \"__import__('os').abort()\": "),
        ("(lambda: 1)() == 1", "has a part that is not understood, '(lambda: 1)()': "),
        ("[x for x in (1,)] == 1", "has a part that is not understood, '[x for x in (1,)]': "),
    ],
)
def test_what_is_no_condition(condition: str, fault: str) -> None:
    """One sentence that says which part is wrong; nothing is run."""
    with pytest.raises(WorkloadError) as raised:
        matching(LOG, condition)

    assert fault in str(raised.value)
    assert "\n" not in str(raised.value)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_a_condition_or_a_sentence(text: str) -> None:
    """No other failure, whatever is typed."""
    try:
        mask = matching(LOG, text)
    except WorkloadError:
        return
    assert mask.shape == (4,)


def test_a_condition_agrees_with_numpy() -> None:
    """On a whole log."""
    log = synthetic(1000)
    mask = matching(log, "run_time > 1000 and (processors < 8 or user in (1, 2)) and requested_time < 4 * run_time")

    assert np.array_equal(
        mask,
        (log.run_time > 1000)
        & ((log.processors < 8) | np.isin(log.user, (1, 2)))
        & (log.requested_time < 4 * log.run_time),
    )
