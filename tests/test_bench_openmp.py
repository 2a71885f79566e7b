from __future__ import annotations

import json
import math
import os

import pytest

from agent import bench_mpi, bench_openmp


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_every_figure_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """One short run on libgomp has a row for each figure, with its spread and what it is to reach."""
    monkeypatch.setattr(bench_openmp, "BURSTS", (100, 10))
    monkeypatch.setattr(bench_openmp, "CHANGES", 4)
    monkeypatch.setattr(bench_openmp, "STEADY", {"fine": (5, 100, 3.0), "coarse": (100, 10, 0.5)})
    value = json.loads(json.dumps(bench_openmp.measure(1, ["libgomp"])))

    assert value["schema_version"] == 1
    assert [(row["unit"], row["reach"]) for row in value["figures"]] == [
        ("ns", 12),
        ("%", 3),
        ("%", 0.5),
        ("us", 40),
        ("us", 40),
    ]
    for row in value["figures"]:
        assert row["min"] <= row["median"] <= row["max"]
        assert row["name"].startswith("libgomp: ")
        assert len(row["runs"]) == 1


@pytest.mark.skipif(not bench_mpi.is_possible(), reason="needs an MPI library")
def test_a_call_of_mpi_is_measured() -> None:
    """The extra of a call has a row of its own."""
    (row,) = bench_openmp.measure(1, ["mpi"])["figures"]

    assert (row["name"], row["unit"], row["reach"]) == ("MPI: extra per call, nothing changed", "ns", 3)
    assert math.isfinite(row["median"])
