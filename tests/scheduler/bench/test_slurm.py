# SPDX-License-Identifier: Apache-2.0
"""What `drom bench slurm` measures without a Slurm, and how it reads Slurm's log."""

from __future__ import annotations

import pytest
from drom.scheduler.bench import slurm
from drom.scheduler.testbed.namespaces import MachineError

LOG = """\
[2026-11-26T20:40:40.189] _slurm_rpc_submit_batch_job: JobId=1 InitPrio=1 usec=564
[2026-11-26T20:40:40.441] sched: _update_job: setting req_nodes to b2 for JobId=1
[2026-11-26T20:40:40.451] sched: _update_job: changing licenses from 'matlab:2,drom_gate:1' to 'matlab:2' for pending JobId=1
[2026-11-26T20:40:40.500] sched: _update_job: changing licenses from '' to 'drom_gate:1' for pending JobId=2
[2026-11-26T20:40:41.112] _job_complete: JobId=1 WEXITSTATUS 0
[2026-11-26T20:40:41.212] _job_complete: JobId=1 done
[2026-11-26T20:40:42.212] _job_complete: JobId=1 done
a line without a time: _job_complete: JobId=3 done
"""  # noqa: E501 - as Slurm writes them


def test_moments_of_jobs_are_read_from_the_log_of_slurmctld() -> None:
    """A job that is taken back is not released; the first time of each event counts."""
    found = slurm.moments(LOG)
    begin = found["submitted", 1]

    assert {key: round(at - begin, 3) for key, at in found.items()} == {
        ("submitted", 1): 0.0,
        ("released", 1): 0.262,
        ("ended", 1): 1.023,
    }


def test_passes_of_the_engine_are_timed() -> None:
    """In each pass that is timed after the first a job ends, so that others are released."""
    found = slurm.passes(30, 2 * slurm.PASSES)

    assert found.keys() == {"first", "pass"}
    assert min(found.values()) > 0


def test_without_slurm_the_benchmark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence is that of the demonstration."""
    monkeypatch.setattr(slurm, "why_no_slurm", lambda: "a cluster with Slurm needs slurmd: apt-get install them.")

    with pytest.raises(MachineError, match=r"^a cluster with Slurm needs slurmd"):
        slurm.measure(5)
