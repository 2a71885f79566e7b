# SPDX-License-Identifier: Apache-2.0
"""What jobs of Slurm used, from their comments, and the history of those that ended."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from drom.agent.errors import SlurmError
from drom.agent.model.core_use import CoreUse
from drom.scheduler.slurm import reporting
from drom.scheduler.slurm.history import FILE, KEPT, History
from drom.scheduler.slurm.reporting import job_lines, user_lines
from drom.scheduler.slurm.usage import JobUse, UserUse, by_user, job_uses

from tests.scheduler.slurm.test_engine import JOB

WORD = "drom:use:n1=held:100+4,lent:0+4,borrowed:0+0,at:1000"
RUNS = replace(
    JOB, states=frozenset({"RUNNING"}), started=1000, ends=9000, nodes=("n1", "n2"), cpus=16, admin_comment=WORD
)
ENDS = replace(RUNS, number=2, user="ben", states=frozenset({"COMPLETED"}), ends=1050)
USED = JobUse("2", "ben", "", "job", 2, 16, 1000, 1050, CoreUse(300, 200, 0))


def test_a_running_job_has_used_something_until_now() -> None:
    """Until its limit it is not known."""
    (use,) = job_uses([RUNS], 1100)

    assert use == JobUse("1", "ann", "", "job", 2, 16, 1000, None, CoreUse(500, 400, 0))
    assert use.given(1100) == 1600


def test_an_ended_job_has_used_something_until_its_end() -> None:
    """An array's task has its name for Slurm."""
    assert job_uses([ENDS], 5000) == [USED]
    assert job_uses([replace(ENDS, array=7, task=3)], 5000) == [USED._replace(job="7_3")]
    assert USED.given(5000) == 800


@pytest.mark.parametrize(
    "job",
    [
        replace(RUNS, states=frozenset({"PENDING"})),
        replace(RUNS, admin_comment="drom:malleable=1:8"),
        replace(ENDS, started=None),
    ],
)
def test_jobs_that_said_nothing_are_left_out(job: object) -> None:
    """So are jobs that wait, which a requeue leaves with a comment."""
    assert job_uses([job], 5000) == []  # type: ignore[list-item] # it is a job


def test_users_have_the_sums_of_their_jobs() -> None:
    """Who held most comes first."""
    uses = job_uses([ENDS, RUNS, replace(RUNS, number=3)], 1100)

    assert by_user(uses, 1100) == [
        UserUse("ann", 2, 3200, CoreUse(1000, 800, 0)),
        UserUse("ben", 1, 800, CoreUse(300, 200, 0)),
    ]
    assert by_user([], 0) == []


def test_ended_jobs_stay_in_the_history(tmp_path: Path) -> None:
    """Each start of a job once; jobs that run are not stored, and others have the file open at the same time."""
    daemon, report = History(tmp_path), History(tmp_path)
    again = USED._replace(started=2000, ended=3000)
    daemon.record([USED, USED._replace(job="1", ended=None)])
    daemon.record([USED, again])
    report.record([again])

    assert report.read(0) == [USED, again]
    assert report.read(1051) == [again]
    daemon.close()
    report.close()
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_a_history_that_was_removed_begins_anew(tmp_path: Path) -> None:
    """While it is open: one try fails, and the next one has a new file."""
    history = History(tmp_path)
    history.record([USED])
    (tmp_path / FILE).unlink()
    with pytest.raises(SlurmError, match=FILE):
        history.record([USED])
    history.record([USED])

    assert History(tmp_path).read(0) == [USED]
    history.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read what others own")
def test_root_reads_the_history_of_slurmuser() -> None:
    """As that user, and may add to it."""
    with TemporaryDirectory() as name:
        folder = Path(name) / "drom-slurm"
        Path(name).chmod(0o755)
        folder.mkdir(0o700)
        os.chown(folder, 1, 1)
        assert reporting._stored(folder, [USED], 0, is_asked=True) == ([USED], "")
        assert reporting._stored(folder, [], 0, is_asked=False) == ([USED], "")
        assert (folder / FILE).stat().st_uid == 1
        assert os.geteuid() == 0


def test_the_history_forgets_old_jobs(tmp_path: Path) -> None:
    """When newer ones come."""
    history = History(tmp_path)
    history.record([USED])
    newer = USED._replace(started=KEPT, ended=1051 + KEPT)
    history.record([newer])

    assert history.read(0) == [newer]
    history.close()


def test_a_history_that_is_none_is_left_alone(tmp_path: Path) -> None:
    """The sentence names it."""
    (tmp_path / FILE).write_bytes(b"no database " * 100)
    with pytest.raises(SlurmError, match=f"{FILE}: file is not a database"):
        History(tmp_path)


def test_a_report_has_hours_by_user_and_by_job() -> None:
    """Users with more than one name have a line with the sums."""
    hours = USED._replace(ended=4600, used=CoreUse(3600, 1800, 36))
    other = hours._replace(job="3", user="ann", name="a\nb", ended=None)

    assert user_lines(by_user([hours], 9000)) == [
        "USER  JOBS  SLURM  HELD  LENT  BORROWED",
        "ben      1  16.00  1.00  0.50      0.01",
        "1 job. SLURM: CPU-hours that Slurm gave; others: core-hours. Those borrowed are also held.",
    ]
    assert user_lines(by_user([hours, other], 4600))[3] == "all      2  32.00  2.00  1.00      0.02"
    assert job_lines([hours, other], 4600)[:3] == [
        "JOB  USER  NAME  NODES           TIME  SLURM  HELD  LENT  BORROWED",
        "2    ben   job       2         60 min  16.00  1.00  0.50      0.01",
        "3    ann   a\\nb      2  60 min so far  16.00  1.00  0.50      0.01",
    ]
