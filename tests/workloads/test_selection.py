# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from drom.workloads.errors import WorkloadError
from drom.workloads.selection import in_ranges, instant, merge, scale_arrivals, shift_to_zero, window
from drom.workloads.swf import read_swf
from drom.workloads.workload import make_workload

from tests.support.job_logs import real_log, same, synthetic

LOG = make_workload(
    {"submit": np.array([100, 160, 400]), "user": np.array([2, -1, 5]), "previous_job": np.array([-1, 1, 2])},
    comments=("; UnixStartTime: 1000000", "; TimeZone: 3600"),
)


def test_ranges_of_numbers() -> None:
    """Both ends belong to a range, order and blanks do not matter."""
    assert in_ranges(np.arange(10), " 7, 2 - 4").nonzero()[0].tolist() == [2, 3, 4, 7]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "'' is not a job number"),
        ("1-", "'1-' is not"),
        ("a", "'a' is not"),
        ("4-2", "'4-2' runs downwards: write 2-4"),
    ],
)
def test_wrong_ranges(text: str, sentence: str) -> None:
    """The sentence names the part."""
    with pytest.raises(WorkloadError, match=sentence):
        in_ranges(np.arange(10), text)


def test_a_window_has_its_first_second_and_not_its_last() -> None:
    """Adjacent windows divide a log."""
    assert window(LOG, 100, 400).job.tolist() == [1, 2]
    assert window(LOG, 400, None).job.tolist() == [3]
    assert window(LOG, None, 160).job.tolist() == [1]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("86400", 86400), ("1970-01-12T14:46:41", 1), ("1970-01-12T13:46:41+00:00", 1), ("1970-01-13", 33200)],
)
def test_times_are_seconds_or_dates(text: str, seconds: int) -> None:
    """A date without a zone is in the zone of the log."""
    assert instant(LOG, text) == seconds


def test_wrong_times() -> None:
    """What is no time, and a date without a start to count from."""
    with pytest.raises(WorkloadError, match="'soon' is not a time: write seconds of the log"):
        instant(LOG, "soon")
    with pytest.raises(WorkloadError, match="the log has no UnixStartTime comment"):
        instant(make_workload({"submit": np.array([0])}), "2010-09-22")


@pytest.mark.parametrize(
    "comment", ["; UnixStartTime: 1272639895000", "; TimeZone: 360000", "; TimeZone: -" + "9" * 18]
)
def test_a_header_without_a_date(comment: str) -> None:
    """Milliseconds, or a zone beyond a day: dates cannot be found, seconds can."""
    log = LOG.commented((comment, *LOG.comments))
    with pytest.raises(WorkloadError, match="are no date: both are in seconds: correct the header"):
        instant(log, "2010-05-01")

    assert instant(log, "86400") == 86400


def test_shifting_keeps_the_calendar() -> None:
    """The first job comes at 0 and the header says when that was."""
    moved = shift_to_zero(LOG)

    assert moved.submit.tolist() == [0, 60, 300]
    assert moved.comments == ("; UnixStartTime: 1000100", "; TimeZone: 3600")


def test_scaling_stretches_the_times_between_arrivals() -> None:
    """The first stays, the rest moves; half the time is twice the load."""
    assert scale_arrivals(LOG, 0.5).submit.tolist() == [100, 130, 250]
    assert scale_arrivals(LOG, 2).submit.tolist() == [100, 220, 700]


@pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf"), 1e9])
def test_wrong_factors(factor: float) -> None:
    """Neither backwards nor beyond what a log can hold."""
    with pytest.raises(WorkloadError, match="Arrivals cannot be scaled by"):
        scale_arrivals(LOG, factor)


def test_merged_logs_share_no_job_and_no_user() -> None:
    """In order of submission; unknown stays unknown; references to jobs move along."""
    both = merge([LOG, LOG])

    assert both.submit.tolist() == [100, 100, 160, 160, 400, 400]
    assert both.job.tolist() == [1, 4, 2, 5, 3, 6]
    assert both.user.tolist() == [2, 7, -1, -1, 5, 10]
    assert both.previous_job.tolist() == [-1, -1, 1, 4, 2, 5]
    assert both.comments == LOG.comments * 2


def test_one_log_merged_is_itself() -> None:
    """Nothing is renumbered without need."""
    assert same(merge([synthetic()]), synthetic())


def test_the_september_jobs_of_ricc_are_a_range_of_the_whole_log() -> None:
    """The two files of the archive agree job by job."""
    whole = read_swf(real_log("RICC-2010-2.swf.gz"))
    part = whole.take(in_ranges(whole.job, "415000-424999"))

    assert same(part, read_swf(real_log("RICC-2010-sept-10000.swf.gz")))
