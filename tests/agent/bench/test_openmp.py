from __future__ import annotations

import json
import math
import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from drom.agent.bench import agent as bench_agent
from drom.agent.bench import openmp, report, steady, teams
from drom.agent.errors import ControlError

from dromlib import native

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_every_figure_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One short run on libgomp has a row for each figure, with its spread and what it is to reach."""
    monkeypatch.setattr(openmp, "BURSTS", (100, 10))
    monkeypatch.setattr(teams, "CHANGES", 4)
    monkeypatch.setattr(openmp, "PAIRS", 3)
    monkeypatch.setattr(openmp, "STEADY", {"fine": (5, 100, 3.0), "coarse": (100, 10, 0.5)})
    value = json.loads(json.dumps(openmp.measure(1, ["libgomp"])))

    assert value["schema_version"] == 1
    assert [(row["unit"], row["reach"]) for row in value["figures"]] == [
        ("ns", 12),
        ("%", 3),
        ("%", 0.5),
        *[("us", 40), ("us", None)] * 4,
    ]
    assert all(row["peer"].endswith("us (a program that does it by itself)") for row in value["figures"][3::2])
    assert all(low <= high for low, high in (row["interval"] for row in value["figures"][1:3]))
    for row in value["figures"]:
        assert row["min"] <= row["median"] <= row["max"]
        assert row["name"].startswith("libgomp: ")
        assert len(row["runs"]) == 1
    report.bench(value, as_json=False)
    assert "MEDIAN'S 95 %" in capsys.readouterr().out


@pytest.mark.skipif(not openmp.has_mpi(), reason="needs an MPI library")
def test_a_call_of_mpi_is_measured() -> None:
    """The extra of a call has a row of its own."""
    (row,) = openmp.measure(1, ["mpi"])["figures"]

    assert (row["name"], row["unit"], row["reach"]) == ("MPI: extra per call, nothing changed", "ns", 3)
    assert math.isfinite(row["median"])


def test_an_installation_of_dlb_is_found_where_its_kin_put_libraries(tmp_path: Path) -> None:
    """`$DLB_HOME` names it; one that holds no library is a sentence."""
    (tmp_path / "lib" / "x86_64-linux-gnu").mkdir(parents=True)
    with pytest.raises(ControlError, match=rf"^DLB_HOME is {tmp_path}, which has no lib/libdlb.so: "):
        openmp.dlb_library({"DLB_HOME": str(tmp_path)})
    there = tmp_path / "lib" / "x86_64-linux-gnu" / "libdlb.so"
    there.touch()
    assert openmp.dlb_library({"DLB_HOME": str(tmp_path)}) == there
    assert openmp.dlb_library({}) is None


def test_a_peer_is_loaded_before_the_runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The program runs with the peer's library in it; an empty one, as DLB is not here, costs a finite time."""
    runtime = next(one for one in openmp.RUNTIMES if one.name == "libomp")
    if not openmp._is_there(runtime):
        pytest.skip("needs LLVM's OpenMP runtime (Debian: libomp-dev)")
    library = tmp_path / "libdlb.so"
    subprocess.run(["gcc", "-xc", "/dev/null", "-shared", "-fPIC", "-o", str(library)], check=True)
    monkeypatch.setattr(openmp, "BURSTS", (100, 10))
    with bench_agent.running_agent() as agent:
        beside = openmp.dlb_environment(library)
        assert math.isfinite(openmp.Bench(agent, runtime).extra_beside_ns(beside))


def test_the_runtime_takes_the_tool_that_does_nothing(tmp_path: Path) -> None:
    """LLVM's runtime finds it when it is loaded first, and says that it started it."""
    if not openmp._is_there(openmp.RUNTIMES[1]):
        pytest.skip("needs LLVM's OpenMP runtime (Debian: libomp-dev)")
    libraries = f"{native.bench_path(openmp.TOOL)}:{openmp.LLVM}"
    told = tmp_path / "told"
    environment = {**os.environ, "LD_PRELOAD": libraries, "OMP_TOOL_VERBOSE_INIT": str(told)}
    with steady.running([str(native.bench_path("regions")), "empty", "10", "1"], environment) as program:
        program.turn()

    assert "Tool was started and is using the OMPT interface" in told.read_text()
