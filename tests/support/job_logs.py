# SPDX-License-Identifier: Apache-2.0
"""Logs for tests: small ones made here, and the real ones that the environment names."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from drom.workloads.workload import Workload, make_workload

COMMENTS = ("; Computer: a test", "; MaxProcs: 64 (of 80)", "; UnixStartTime: 1283266800", "; Note: made by a seed")


def synthetic(jobs: int = 200, seed: int = 1) -> Workload:
    """Return a log of 64 processors with everything known."""
    random = np.random.default_rng(seed)
    run_time = random.integers(1, 5000, jobs)
    size = 1 << random.integers(0, 7, jobs)
    return make_workload(
        {
            "submit": np.cumsum(random.integers(0, 120, jobs)),
            "wait": random.integers(0, 300, jobs),
            "run_time": run_time,
            "allocated": size,
            "requested_processors": size,
            "requested_time": run_time * random.integers(1, 9, jobs),
            "status": np.ones(jobs, np.int64),
            "user": random.integers(1, 9, jobs),
        },
        comments=COMMENTS,
    )


def same(one: Workload, other: Workload) -> bool:
    """Return whether two workloads have the same jobs and comments."""
    columns = zip(one.columns().values(), other.columns().values(), strict=True)
    return one.comments == other.comments and all(np.array_equal(a, b) for a, b in columns)


def real_log(name: str) -> Path:
    """Return the path of a real log in the folder that DROM_WORKLOADS names; skips the test without it."""
    folder = os.environ.get("DROM_WORKLOADS")
    path = Path(folder or "/nonexistent") / name
    if not path.exists():
        pytest.skip(f"needs {name} in the folder named by DROM_WORKLOADS")
    return path
