# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import subprocess
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from agent.exposition import Exposition
from agent.jobs import Arrival
from agent.metrics import Histogram, NodeCollector, Utilisation
from agent.report import Counters
from agent.rereading import Available
from agent.snapshot import snapshot
from tests.nodes import MACHINES, make_node
from tests.prometheus import tool

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.daemon import Daemon
    from agent.snapshot import Snapshot

GOLDEN = """\
# HELP drom_build_info Version of drom, Python and numba; always 1.
# TYPE drom_build_info gauge
drom_build_info{...} 1.0
# HELP drom_cpus Managed CPUs by socket and state.
# TYPE drom_cpus gauge
drom_cpus{socket="0",state="assigned"} 2.0
drom_cpus{socket="0",state="free"} 2.0
drom_cpus{socket="0",state="unavailable"} 0.0
drom_cpus{socket="1",state="assigned"} 4.0
drom_cpus{socket="1",state="free"} 0.0
drom_cpus{socket="1",state="unavailable"} 0.0
# HELP drom_tasks Registered tasks by state.
# TYPE drom_tasks gauge
drom_tasks{state="waiting"} 1.0
drom_tasks{state="running"} 1.0
drom_tasks{state="shrinking"} 0.0
drom_tasks{state="growing"} 0.0
drom_tasks{state="moving"} 0.0
drom_tasks{state="enforced"} 0.0
# HELP drom_cpu_unmanaged_ratio What unmanaged programs take of a CPU, where avoid_load is set.
# TYPE drom_cpu_unmanaged_ratio gauge
drom_cpu_unmanaged_ratio{cpu="3"} 0.25
# HELP drom_frozen 1 while the kill switch keeps everything as it is.
# TYPE drom_frozen gauge
drom_frozen 0.0
# HELP drom_job_cpus CPUs a job holds on a socket, where it holds any.
# TYPE drom_job_cpus gauge
drom_job_cpus{job="a",socket="0"} 2.0
drom_job_cpus{job="a",socket="1"} 4.0
# HELP drom_job_cpus_target CPUs the plan wants a job to have.
# TYPE drom_job_cpus_target gauge
drom_job_cpus_target{job="a"} 6.0
drom_job_cpus_target{job="b"} 0.0
# HELP drom_job_cpus_min CPUs a job keeps at least.
# TYPE drom_job_cpus_min gauge
drom_job_cpus_min{job="a"} 6.0
drom_job_cpus_min{job="b"} 4.0
# HELP drom_job_cpus_max CPUs a job can use.
# TYPE drom_job_cpus_max gauge
drom_job_cpus_max{job="a"} 6.0
drom_job_cpus_max{job="b"} 4.0
# HELP drom_job_rate Work that a job was measured to do in a second with so many cores, in a unit of its own.
# TYPE drom_job_rate gauge
drom_job_rate{cores="3",job="a"} 12.5
drom_job_rate{cores="6",job="a"} 20.0
# HELP drom_reconfigurations_total Changes of a task's CPUs by kind and outcome.
# TYPE drom_reconfigurations_total counter
drom_reconfigurations_total{action="fence",outcome="failed"} 0.0
drom_reconfigurations_total{action="keep",outcome="failed"} 0.0
drom_reconfigurations_total{action="shrink",outcome="enforced"} 1.0
drom_reconfigurations_total{action="start",outcome="applied"} 2.0
# HELP drom_reaped_tasks_total Tasks whose cores came back, by reason.
# TYPE drom_reaped_tasks_total counter
drom_reaped_tasks_total{reason="exited"} 3.0
drom_reaped_tasks_total{reason="left"} 0.0
drom_reaped_tasks_total{reason="released"} 1.0
# HELP drom_enforcements_total Times the agent bound threads that had not moved by themselves.
# TYPE drom_enforcements_total counter
drom_enforcements_total 1.0
# HELP drom_repaired_threads_total Threads moved back whose masks somebody had rewritten.
# TYPE drom_repaired_threads_total counter
drom_repaired_threads_total 0.0
# HELP drom_refusals_total Requests refused at the door.
# TYPE drom_refusals_total counter
drom_refusals_total 0.0
# HELP drom_events_lost_total Events that could not be kept.
# TYPE drom_events_lost_total counter
drom_events_lost_total 2.0
# HELP drom_reconfiguration_duration_seconds From a grant's publication to its application.
# TYPE drom_reconfiguration_duration_seconds histogram
drom_reconfiguration_duration_seconds_bucket{le="0.0001"} 0.0
drom_reconfiguration_duration_seconds_bucket{le="0.001"} 1.0
drom_reconfiguration_duration_seconds_bucket{le="0.005"} 1.0
drom_reconfiguration_duration_seconds_bucket{le="0.02"} 1.0
drom_reconfiguration_duration_seconds_bucket{le="0.1"} 1.0
drom_reconfiguration_duration_seconds_bucket{le="0.5"} 1.0
drom_reconfiguration_duration_seconds_bucket{le="1.0"} 1.0
drom_reconfiguration_duration_seconds_bucket{le="5.0"} 1.0
drom_reconfiguration_duration_seconds_bucket{le="+Inf"} 2.0
drom_reconfiguration_duration_seconds_count 2.0
drom_reconfiguration_duration_seconds_sum 8.0005
"""
"""What a scrape of `daemon()` says, up to the kernel's own durations and the utilisation."""


@pytest.fixture
def daemon() -> Daemon:
    """Return what the collector sees of a daemon: eight cores, a rigid job on six, one that waits for four."""
    node = make_node(MACHINES[2])
    for number, (name, cpus) in enumerate((("a", 6), ("b", 4))):
        node.arrive(Arrival(100 + number, 1, 1, name, "rigid", max_cpus=cpus), 0.0)
    counters = Counters(enforcements=1)
    counters.changes.update({("start", "applied"): 2, ("shrink", "enforced"): 1})
    counters.reaped.update(exited=3, released=1)
    for seconds in (0.0005, 8.0):
        counters.changing.observe(seconds)
    rows = [(n // 4, n // 4, core) for n, core in enumerate(MACHINES[2])]
    stub = SimpleNamespace(
        node=node,
        rows=rows,
        report=SimpleNamespace(counters=counters),
        lock=threading.Lock(),
        mailboxes=SimpleNamespace(read=lambda _: None),
        settings=SimpleNamespace(observe=False),
        log=SimpleNamespace(history=SimpleNamespace(lost=2)),
    )
    stub.pacing = SimpleNamespace(rates=lambda job: {3: 12.5, 6: 20.0} if job == "a" else {})
    stub.watch_load = SimpleNamespace(load={3: 0.25})
    stub.rereading = SimpleNamespace(available=Available(node.cores.all, 0))
    stub.snapshot = lambda: snapshot(cast("Daemon", stub))
    return cast("Daemon", stub)


def times(*looks: dict[int, tuple[int, int]]) -> Callable[[], dict[int, tuple[int, int]]]:
    """Return a clock that shows these busy and total ticks one after the other."""
    left = list(looks)
    return lambda: left.pop(0)


def text_of(daemon: Daemon) -> str:
    """Return one scrape."""
    return Exposition("").text(NodeCollector(daemon).collect()).decode()


class TestCollector:
    """A scrape."""

    def test_the_whole_text(self, daemon: Daemon) -> None:
        """Every family, label and number of one fixed node."""
        text = re.sub(r"(?m)^drom_build_info\{.*\}", "drom_build_info{...}", text_of(daemon))

        head, rest = text[: len(GOLDEN)], text[len(GOLDEN) :]
        assert head.splitlines() == GOLDEN.splitlines()
        assert rest.startswith("# HELP drom_distribution_duration_seconds Time the distribution kernel took.\n")

    def test_series_end_with_their_job(self, daemon: Daemon) -> None:
        """A job that has ended is in no series of the next scrape."""
        before = text_of(daemon)
        daemon.node.ended(0, 1.0)

        assert 'job="a"' in before
        assert 'job="a"' not in text_of(daemon)

    def test_cpus_that_nobody_may_have_are_not_free(self, daemon: Daemon) -> None:
        """Nor do they vanish from the machine."""
        node = daemon.node
        held = sum(task.held for task in node.tasks.values())
        node.use(held, 1.0, 0, 0)
        text = text_of(daemon)

        assert 'drom_cpus{socket="0",state="assigned"} 2.0' in text
        assert 'drom_cpus{socket="0",state="free"} 0.0' in text
        assert 'drom_cpus{socket="0",state="unavailable"} 2.0' in text

    def test_a_snapshot_is_frozen(self, daemon: Daemon) -> None:
        """What a scrape prints is one moment, whatever the loop does meanwhile."""
        snap: Snapshot = daemon.snapshot()
        daemon.node.ended(0, 1.0)

        assert [task.state for task in snap.tasks] == ["running", "waiting"]
        assert snap.tasks[1].detail == "needs at least 4 CPUs: 2 free, running jobs may lend 0."

    def test_promtool_has_nothing_to_say(self, daemon: Daemon) -> None:
        """Names, units and help texts follow Prometheus's own rules."""
        command = [tool("promtool"), "check", "metrics"]
        done = subprocess.run(command, input=text_of(daemon), capture_output=True, text=True, check=False)

        assert (done.returncode, done.stdout + done.stderr) == (0, "")


class TestUtilisation:
    """Busy shares between two looks."""

    def test_a_ratio_is_of_the_last_interval(self) -> None:
        """Busy ticks by all ticks, over the CPUs asked for; unknown CPUs do not count."""
        look = Utilisation(times({0: (10, 100), 1: (0, 100)}, {0: (60, 200), 1: (100, 200)}))
        look.look()

        assert (look.ratio(0b01), look.ratio(0b11), look.ratio(0b100)) == (0.5, 0.75, 0.0)

    def test_before_the_first_look_nothing_is_known(self) -> None:
        """Without an interval the share is 0."""
        assert Utilisation(times({0: (10, 100)})).ratio(1) == 0.0

    def test_two_scrapes_in_one_tick_keep_the_last_interval(self) -> None:
        """A second scrape before the clock has moved says what the first one said."""
        look = Utilisation(times({0: (0, 0)}, {0: (5, 10)}, {0: (5, 10)}))
        look.look()
        look.look()

        assert look.ratio(1) == 0.5

    def test_a_cpu_that_comes_and_goes(self) -> None:
        """CPUs that were offline at either look do not count; ticks that run backwards are no negative share."""
        look = Utilisation(times({0: (5, 10), 1: (0, 10)}, {0: (4, 20), 2: (9, 9)}))
        look.look()

        assert (look.ratio(0b111), look.ratio(0b100)) == (0.0, 0.0)


def test_a_histogram_counts_up_to_and_including_each_bound() -> None:
    """Buckets are cumulative, a bound belongs to its own bucket, and the last one has all."""
    histogram = Histogram(0.1, 1.0)
    for seconds in (0.1, 0.5, 9.0):
        histogram.observe(seconds)

    assert histogram.buckets() == [("0.1", 1.0), ("1.0", 2.0), ("+Inf", 3.0)]
    assert histogram.sum == pytest.approx(9.6)
