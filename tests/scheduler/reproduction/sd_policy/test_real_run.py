# SPDX-License-Identifier: Apache-2.0
"""The run of workload 5: its jobs, rehearsals, what is kept and told, and a run of a few jobs on two nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from drom.scheduler.errors import SchedulerError
from drom.scheduler.reproduction.sd_policy.paper import Given
from drom.scheduler.reproduction.sd_policy.real import completed, report
from drom.scheduler.reproduction.sd_policy.real.command import RunSelection, left, make_all
from drom.scheduler.reproduction.sd_policy.real.emulation import Emulation, curves_of
from drom.scheduler.reproduction.sd_policy.real.figures import result_of
from drom.scheduler.reproduction.sd_policy.real.jobs import make, measured_speeds, speeds
from drom.scheduler.reproduction.sd_policy.real.measured import Meter, WorkModel
from drom.scheduler.reproduction.sd_policy.real.report import FIGURE_9
from drom.scheduler.reproduction.sd_policy.real.running import Task, run
from drom.scheduler.reproduction.sd_policy.real.settings import (
    LARGEST,
    LOAD,
    LONGEST_REQUEST,
    NODES,
    POLICIES,
    ROLES,
    SCALES,
    SEEDS,
    SMALL_NODES,
    TIMES,
)
from drom.workloads.mix import TABLE_2

from dromlib import native
from tests.support.agents import SECONDS, environment
from tests.support.commands import drom

if TYPE_CHECKING:
    from collections.abc import Iterator

KILLED = """
import os, signal, sys
from pathlib import Path
from drom.scheduler.testbed.local import agents, scheduler
home = Path(sys.argv[1])
with scheduler(home) as client, agents(home, 2, ["--emulate", "pack:1 core:2 pu:1"]) as nodes:
    client.await_nodes(2, nodes)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_the_jobs_are_of_table_2(seed: int) -> None:
    """Shares of applications within a few points, times and sizes within the spans of their words, load as set."""
    jobs = make(NODES, seed)
    counts = Counter(job.application for job in jobs)
    words = {row.name: row for row in TABLE_2}

    assert jobs == make(NODES, seed)
    assert len(jobs) == NODES.jobs
    assert all(100 * counts[row.name] / len(jobs) == pytest.approx(row.share, abs=3) for row in TABLE_2)
    for job in jobs:
        low, high = TIMES[words[job.application].time]
        assert low <= job.run_time <= high
        assert 1 <= job.nodes <= (SMALL_NODES if words[job.application].nodes == "small" else LARGEST)
        assert job.run_time <= job.requested <= LONGEST_REQUEST
    assert [job.submit for job in jobs] == sorted(job.submit for job in jobs)
    work = sum(job.nodes * job.run_time for job in jobs) / NODES.nodes
    assert jobs[-1].submit * LOAD == pytest.approx(work, rel=0.25)
    assert work == pytest.approx(159_313, rel=0.25)


def test_speeds_rise_to_one() -> None:
    """Every application has all of its speed with all cores, and at least its share with fewer."""
    for application in ROLES:
        mixed, ideal = speeds(application, "mixed"), speeds(application, "ideal")
        assert mixed == sorted(mixed)
        assert mixed[-1] == ideal[-1] == 1
        assert all(some >= plain for some, plain in zip(mixed, ideal, strict=True))
    assert speeds("STREAM", "mixed")[23] == 0.75
    measured = measured_speeds(0.7)
    assert (measured[11], measured[23], measured[-1]) == pytest.approx((0.35, 0.7, 1))
    assert measured_speeds(1.2)[23] == 1


# --- rehearsals -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rehearsed() -> dict[tuple[str, str], dict[str, Any]]:
    """The first 80 jobs under both policies, with each kind of curves."""
    return {
        (curves.name, policy): Emulation(1, policy, curves, 80).run() for curves in curves_of() for policy in POLICIES
    }


def test_alone_a_job_takes_its_run_time(rehearsed: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Under static backfilling every job runs for what it was made with, whatever the curves."""
    for curves in curves_of():
        told = rehearsed[curves.name, "static"]
        assert [job["state"] for job in told["jobs"]] == ["completed"] * 80
        for job in told["jobs"]:
            assert job["ended"] - job["started"] == pytest.approx(told["made"][job["job"]].run_time)


def test_shared_work_is_all_done(rehearsed: dict[tuple[str, str], dict[str, Any]]) -> None:
    """With ideal curves a job has the core-seconds that it needs; with those of the settings guests need fewer."""
    ideal, mixed = (rehearsed[name, "sd"] for name in ("ideal", "mixed"))
    needs = {number: made.run_time * made.nodes * NODES.cores for number, made in ideal["made"].items()}
    had, less = (result_of(told, told["made"], 1.0) for told in (ideal, mixed))

    assert had.guests
    assert less.guests
    assert had.states == less.states == {"completed": 80}
    for number in had.guests:
        assert had.core_seconds[number] == pytest.approx(needs[number], abs=2 * NODES.cores * 16)
    assert sum(less.core_seconds[number] for number in less.guests) < 0.95 * sum(needs[n] for n in less.guests)


def test_slowdown_is_over_what_jobs_were_made_with(rehearsed: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Compressed times come back as seconds of the workload, and slowdowns rest on the run times that were made."""
    told = rehearsed["mixed", "static"]
    plain = result_of(told, told["made"], 1.0)
    squeezed = result_of(_faster(told, 10), told["made"], 10)
    expected = [(job["ended"] - job["submitted"]) / told["made"][job["job"]].run_time for job in told["jobs"]]

    for name in FIGURE_9.values():
        assert squeezed.metrics[name] == pytest.approx(plain.metrics[name], rel=1e-3)
    assert plain.metrics["mean_slowdown"] == pytest.approx(sum(expected) / 80, rel=1e-2)


def _faster(told: dict[str, Any], times: float) -> dict[str, Any]:
    """Return a history as if all had been so many times as fast, at another time of day."""
    names = ("submitted", "started", "ended")
    jobs = [job | {name: 1e9 + job[name] / times for name in names} for job in told["jobs"]]
    jobs = [job | {name: job[name] / times for name in ("limit", "requested")} for job in jobs]
    entries = [entry | {"at": 1e9 + entry["at"] / times} for entry in told["entries"]]
    return told | {"jobs": jobs, "entries": entries, "time": 1e9 + told["time"] / times}


# --- what was run -----------------------------------------------------------------------------------------------------


def test_the_report_of_runs_that_are_there(rehearsed: dict[tuple[str, str], dict[str, Any]], tmp_path: Path) -> None:
    """Changes stand beside the paper's; runs of other options are refused, and half a seed is no pair."""
    tasks = [Task("nodes", 1, policy, 80, 1.0) for policy in POLICIES]
    for task in tasks:
        told = rehearsed["mixed", task.policy]
        said = {job["job"]: f"paced: {job['started'] + 0.5} {job['ended'] - 1.5}" for job in told["jobs"]}
        told = {name: value for name, value in told.items() if name != "made"}
        completed.keep(tmp_path, task, told | {"said": said, "joules": 50.0 if task.policy == "sd" else 100.0})
    found = {(row.place, row.what): row for row in report.rows(report.pairs(completed.all_in(tmp_path)), {})}
    makespan, energy = (found["Figure 9", f"49 emulated nodes: {name}"] for name in ("makespan", "energy"))
    static, shared = (completed.find(tmp_path, task) for task in tasks)
    assert static
    assert shared

    assert makespan.paper == Given(-7)
    assert makespan.here == pytest.approx(
        100 * (shared.result.metrics["makespan_s"] / static.result.metrics["makespan_s"] - 1)
    )
    assert energy.here == -50
    assert found["Figure 9", "2 real cores: makespan"].here is None
    assert static.latencies == pytest.approx([2.0] * 80)
    table, _ = drom("compare", *(completed.folder_of(tmp_path, task) for task in tasks))
    assert "slowdown" in table
    with pytest.raises(SchedulerError, match="other options"):
        completed.find(tmp_path, tasks[0]._replace(first=79))
    assert report.pairs([static])["nodes"] == []
    said_of_runs = " ".join(report.notes([static, shared]))
    assert "the first 80 of 2,000 jobs, 1 seed" in said_of_runs
    assert "2000 ms" in said_of_runs


def test_rapl(tmp_path: Path) -> None:
    """Counters of packages are added up, and may begin anew; without them there is no energy."""
    for name, before in (("intel-rapl:0", 900_000), ("intel-rapl:1", 100_000), ("intel-rapl:0:0", 5)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{before}\n")
        (tmp_path / name / "max_energy_range_uj").write_text("999999\n")
    meter = Meter(tmp_path)
    meter.begin()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("400000\n")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("600000\n")
    none = Meter(tmp_path / "nothing")
    none.begin()

    assert meter.end() == pytest.approx(1.0)
    assert none.end() is None


def test_work_for_a_time() -> None:
    """Amounts of work are those of which the time was measured, whole sixths, and never none."""
    amount = WorkModel(start=0.1, slope=0.001, exponent=1, half=0.5)

    assert amount.units(0.7) == 600
    assert amount.units(0.0) >= 6


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--workload", "5", "--scale", "moon"), "rehearsal, cores, nodes or slurm"),
        (("--first", "10"), "add --workload 5"),
        (("--workload", "5", "--curves", "steep"), "mixed or ideal"),
    ],
)
def test_wrong_options(words: tuple[str, ...], said: str) -> None:
    """Options that cannot be meant are refused in a sentence before anything runs."""
    _, refused = drom("reproduce", "sd-policy", *words, code=2)

    assert said in " ".join(refused.split())


def test_the_command_rehearses(tmp_path: Path) -> None:
    """Changes and their intervals stand beside the paper's; what was not run is said."""
    words = ("--workload", "5", "--scale", "rehearsal", "--first", "40", "--seeds", "2", "--out", tmp_path, "--json")
    told, _ = drom("reproduce", "sd-policy", *words)
    (workload,) = json.loads(told)["workloads"]
    rows = {row["what"].partition(" (")[0]: row for row in workload["rows"] if row["place"] == "Figure 9"}

    assert rows["simulated, mixed: makespan"]["paper"] == -7
    assert isinstance(rows["simulated, mixed: makespan"]["here"], float)
    assert isinstance(rows["simulated, mixed with feedback: makespan"]["here"], float)
    assert rows["49 emulated nodes: makespan"]["here"] is None
    assert "There is no run of 49 nodes of 2 x 24 emulated cores." in workload["notes"]
    assert json.loads((tmp_path / "reproduction.json").read_text(encoding="utf-8"))["workloads"] == [workload]


def test_paced_needs_an_agent(tmp_path: Path) -> None:
    """The program of emulated nodes says what is wrong, and leaves no file."""
    paced = str(native.bench_path("paced"))
    about = environment(TMPDIR=str(tmp_path))
    alone = subprocess.run([paced, "1", "0.5", "1"], capture_output=True, text=True, env=about, check=False)
    wrong = subprocess.run([paced, "0", "1"], capture_output=True, text=True, env=about, check=False)

    assert (alone.returncode, wrong.returncode) == (1, 2)
    assert "an agent is needed" in alone.stderr
    assert "usage" in wrong.stderr
    assert not list(tmp_path.iterdir())


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let the emulated machine have two nodes and six jobs of about a second, and all of it be in one folder."""
    monkeypatch.setitem(SCALES, "nodes", NODES._replace(nodes=2, jobs=6, compression=900.0))
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    with tempfile.TemporaryDirectory(prefix="d5-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_a_run_of_both_policies(place: Path, tmp_path: Path) -> None:
    """All jobs complete on real agents under both policies, what came of them is kept, and nothing is left to do."""
    wanted = RunSelection(parts=("nodes",))
    shown: list[float] = []
    make_all(left(wanted, tmp_path), tmp_path, shown.append)
    runs = completed.all_in(tmp_path)

    assert [run.result.states for run in runs] == [{"completed": 6}] * 2
    assert [len(run.latencies) for run in runs] == [6] * 2
    assert all(0 < latency < SECONDS for run in runs for latency in run.latencies)
    assert left(wanted, tmp_path) == []
    assert shown == sorted(shown)
    assert report.pairs(runs)["nodes"]
    assert not _leftovers(place)


def test_an_interrupted_run_leaves_nothing(place: Path) -> None:
    """Ctrl-C among the submissions ends jobs, agents and scheduler."""

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Task("nodes", 1, "sd", 6, 900.0), {}, interrupt)
    assert not _leftovers(place)


def test_a_killed_run_leaves_no_daemon(tmp_path: Path) -> None:
    """Scheduler and agents end with whom they were started for."""
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path / "c"], env=environment(), timeout=SECONDS, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    deadline = time.monotonic() + SECONDS
    while (left := _processes_of(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.01)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
    said = [(tmp_path / "c" / name).read_text() for name in ("n0.log", "n1.log")]
    assert all("event=stopped" in words for words in said), said


def _leftovers(place: Path) -> list[str]:
    """Return what is left in a folder, and the processes whose command line names it."""
    return [*map(str, place.iterdir()), *_processes_of(place).values()]


def _processes_of(place: Path) -> dict[int, str]:
    """Return the command lines by pid of processes that name a folder."""
    commands = {one.pid: " ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])}
    return {pid: words for pid, words in commands.items() if str(place) in words}
