# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from drom.workloads.mix import TABLE_2, applications, with_mix

from tests.support.job_logs import synthetic


def test_shares_are_those_of_the_table() -> None:
    """They add up to 100 %, and 100,000 jobs have them within 0.5 %."""
    found = np.bincount(applications(np.arange(100_000), 1)) / 1000

    assert sum(row.share for row in TABLE_2) == pytest.approx(100)
    assert found.tolist() == pytest.approx([row.share for row in TABLE_2], abs=0.5)


def test_kinds_are_about_equal() -> None:
    """Compute, memory and big simulations, as the paper says."""
    shares = {
        kind: sum(row.share for row in TABLE_2 if row.kind == kind) for kind in ("compute", "memory", "simulation")
    }

    assert shares == pytest.approx({"compute": 30.5, "memory": 30.8, "simulation": 38.7})


def test_an_application_belongs_to_a_job() -> None:
    """The application of a job does not depend on the other jobs."""
    jobs = np.arange(1000)
    assert applications(jobs[::3], 5).tolist() == applications(jobs, 5)[::3].tolist()


def test_a_log_says_what_its_executables_are() -> None:
    """Numbers from 1 and a comment with the names."""
    log = with_mix(synthetic(50), 1)

    assert (log.executable - 1).tolist() == applications(log.job, 1).tolist()
    assert log.comments[-1].endswith("seed 1: 1 PILS, 2 STREAM, 3 CoreNeuron, 4 NEST, 5 Alya")
