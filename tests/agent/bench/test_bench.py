from __future__ import annotations

import math
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pytest
from drom.agent.bench import agent, node, publish, python
from drom.agent.errors import ControlError
from drom.agent.topology import detect

from dromlib import native

if TYPE_CHECKING:
    from pathlib import Path


ENDED = """
import sys, threading, time
thread = threading.Thread(target=lambda: sum(range(1_000_000)))
thread.start()
thread.join()
print(time.process_time_ns(), flush=True)
sys.stdin.read()
"""
"""A program with a thread that has ended, and prints the CPU time that it used."""


def test_the_cpu_time_of_an_agent_includes_threads_that_ended() -> None:
    """A thread that ends between two measurements, such as one that looks users up, makes none of them negative."""
    with subprocess.Popen([sys.executable, "-c", ENDED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        used = int(process.stdout.readline())
        found = agent.Agent.busy_ns(SimpleNamespace(pid=process.pid))  # type: ignore[arg-type] # all it looks at
        process.communicate()

    assert found >= used


def test_summary_has_median_extremes_and_every_run() -> None:
    """A figure stands there with its median, its extremes, its runs in order, its aim and the peer's figure."""
    rows = node.summarise([{"poll": 3.0}, {"poll": 1.0}, {"poll": 2.5}])

    assert rows == [
        {
            "name": "poll, nothing changed",
            "unit": "ns",
            "median": 2.5,
            "min": 1.0,
            "max": 3.0,
            "reach": 3,
            "peer": "14.4 ns (DLB, measured on another 2-core machine)",
            "runs": [3.0, 1.0, 2.5],
        }
    ]


def test_summary_keeps_the_order_of_the_figures_and_leaves_out_the_unmeasured() -> None:
    """What was not measured, or not in each run, is left out."""
    rows = node.summarise([{"start": 1.0, "poll": 1.0, "idle": 0.1}, {"poll": 1.0, "start": 2.0}])

    assert [row["unit"] for row in rows] == ["ns", "s"]
    assert node.summarise([]) == []


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1.0), (1, 1.0), (50, 50.0), (99, 99.0), (99.5, 100.0), (100, 100.0)]
)
def test_percentile_is_a_value_that_was_measured(percent: float, expected: float) -> None:
    """The nearest-rank percentile of 1 to 100, in any order."""
    assert publish.percentile([float(n) for n in range(100, 0, -1)], percent) == expected


def test_machine_names_cpus_and_kernel() -> None:
    """The machine is told by CPU, number of CPUs and kernel."""
    assert (
        f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} CPUs, Linux {os.uname().release}" in detect.describe_host()
    )


def test_one_cpu_leaves_out_what_needs_two(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On one CPU nothing is published from another one, and one sentence says so."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})

    assert node._possible({"seen_p50", "seen_p99", "poll"}) == {"poll"}
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("arguments", [(), ("seen",), ("poll", "1", "1000")])
def test_program_refuses_to_measure_without_an_agent(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Unmanaged, the program says so and fails: nothing would be measured."""
    done = subprocess.run(
        [native.bench_path(), *arguments],
        env={"DROM_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "node: no agent manages this program\n"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_changes_are_seen_after_they_are_published() -> None:
    """Each of the changes asked for is seen, later than published, and our affinity is what it was."""
    before = os.sched_getaffinity(0)
    times = publish.seen_after(min(before), max(before), changes=200)

    assert len(times) == 200
    assert min(times) > 0
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("kind", ["wait", "signal", "changed", "message", "pipe"])
def test_sleeping_python_programs_are_awake_after_a_grant(kind: str) -> None:
    """Each change wakes the program, later than published."""
    times = python.awake_after(kind, changes=20)

    assert len(times) == 20
    assert min(times) > 0


def test_cpus_are_kept_awake_by_loops_that_give_way() -> None:
    """On each CPU of ours a loop of the lowest policy runs for the block, and none afterwards."""

    def loops() -> dict[int, set[int]]:
        below = [child.pid for child in psutil.Process().children(recursive=True)]
        return {pid: os.sched_getaffinity(pid) for pid in below if os.sched_getscheduler(pid) == os.SCHED_IDLE}

    with python.cpus_awake():
        during = loops()

    assert sorted(map(sorted, during.values())) == [[cpu] for cpu in sorted(os.sched_getaffinity(0))]
    assert loops() == {}


def test_import_is_compared_with_plain_python() -> None:
    """The cost of the import is the difference of two programs."""
    assert math.isfinite(python.import_ms(pairs=3))


def test_python_program_refuses_to_measure_without_an_agent(tmp_path: Path) -> None:
    """Unmanaged, the Python program says so and fails: nothing would be measured."""
    words = [sys.executable, "-m", "drom.agent.bench.waiter_program", "poll", "1", "1000"]
    environment = {**os.environ, "DROM_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "bench_waiter: no agent manages this program\n"


def test_an_agent_that_does_not_start_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """When the agent of the benchmark ends at once, its last words are told, and nothing stays."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr(agent, "_usual_place", lambda: tmp_path)
    with pytest.raises(ControlError, match="does not become ready"), agent.running_agent():
        pass

    assert list(tmp_path.iterdir()) == []


@pytest.mark.system
def test_cheap_figures_are_measured_with_a_real_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """One short run gives a plausible figure for each that was asked for, and the agent is gone afterwards."""
    agents = []
    make = agent.Agent.__init__

    def remember(self: agent.Agent, *arguments: object) -> None:
        make(self, *arguments)  # type: ignore[arg-type]
        agents.append(self)

    monkeypatch.setattr(agent.Agent, "__init__", remember)
    chosen = {"poll", "python_poll", "launch", "memory", "start"}
    value = node.node(1, chosen)

    assert (value["schema_version"], value["runs"]) == (1, 1)
    assert {row["name"] for row in value["figures"]} == {node.FIGURES[key].name for key in chosen}
    assert all(math.isfinite(row["median"]) and row["runs"] == [row["median"]] for row in value["figures"])
    # The others are differences of two measurements, which a busy machine may turn round.
    sizes = {node.FIGURES[key].name for key in ("memory", "start")}
    assert all(row["median"] > 0 for row in value["figures"] if row["name"] in sizes)
    assert not agents[0].folder.parent.exists()
    assert not psutil.pid_exists(agents[0].pid)
