# SPDX-License-Identifier: Apache-2.0
"""What can never run is refused at submission, with the reason."""

from __future__ import annotations

import pytest

from scheduler.errors import SchedulerError
from scheduler.live.admission import check_dependencies
from scheduler.live.jobs import CANCELLED, COMPLETED, FAILED, PENDING, RUNNING
from scheduler.live.spec import Dependency, Spec

STATES = {1: PENDING, 2: RUNNING, 3: COMPLETED, 4: FAILED, 5: CANCELLED}


def check(*after: tuple[str, int]) -> None:
    """Look at a job that waits for these."""
    spec = Spec(command=("true",), folder="/", after=tuple(Dependency(*one) for one in after))
    check_dependencies(spec, STATES.get)


def test_a_job_may_wait_for_what_can_still_be_or_has_been() -> None:
    """For the start, the end, success or failure of another."""
    for kind in ("after", "afterany", "afterok", "afternotok"):
        check((kind, 1), (kind, 2))
    check(("after", 3), ("afterany", 4), ("afterok", 3), ("afternotok", 4), ("afternotok", 5))


HOPELESS = "the job could never start, as it was to start {}: leave that out of --dependency, or name another job."


@pytest.mark.parametrize(
    ("after", "sentence"),
    [
        ([("after", 9)], "there is no job 9 to wait for: see drom queue --all."),
        ([("afterok", 4), ("after", 9)], "there is no job 9 to wait for: see drom queue --all."),
        ([("afterok", 1), ("afterok", 4)], HOPELESS.format("after success of job 4, which is failed")),
        ([("afternotok", 3)], HOPELESS.format("after failure of job 3, which is completed")),
    ],
)
def test_a_job_that_would_wait_for_good_is_refused(after: list[tuple[str, int]], sentence: str) -> None:
    """It would be cancelled in the moment in which it came."""
    with pytest.raises(SchedulerError) as refused:
        check(*after)

    assert str(refused.value) == sentence
