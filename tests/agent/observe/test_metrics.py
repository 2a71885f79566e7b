# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import subprocess
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from drom.agent.model.jobs import Arrival
from drom.agent.observe.counters import Counters, Histogram
from drom.agent.observe.cpu_seconds import Allocated
from drom.agent.observe.exposition import Exposition
from drom.agent.observe.metrics import NodeCollector
from drom.agent.observe.snapshot import snapshot
from drom.agent.topology.availability import CpuAvailability

from tests.support.nodes import MACHINES, make_node
from tests.support.prometheus import tool

if TYPE_CHECKING:
    from drom.agent.daemon.daemon import Daemon
    from drom.agent.observe.view import Snapshot

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
drom_tasks{state="resting"} 0.0
# HELP drom_cpu_unmanaged_ratio The load of unmanaged programs on a CPU, if avoid_load is set.
# TYPE drom_cpu_unmanaged_ratio gauge
drom_cpu_unmanaged_ratio{cpu="3"} 0.25
# HELP drom_frozen 1 while the kill switch stops all changes.
# TYPE drom_frozen gauge
drom_frozen 0.0
# HELP drom_job_cpus CPUs a job holds on a socket, where it holds any.
# TYPE drom_job_cpus gauge
drom_job_cpus{job_name="a",socket="0"} 2.0
drom_job_cpus{job_name="a",socket="1"} 4.0
# HELP drom_job_cpus_target CPUs the plan gives a job.
# TYPE drom_job_cpus_target gauge
drom_job_cpus_target{job_name="a"} 6.0
drom_job_cpus_target{job_name="b"} 0.0
# HELP drom_job_cpus_min CPUs a job keeps at least.
# TYPE drom_job_cpus_min gauge
drom_job_cpus_min{job_name="a"} 6.0
drom_job_cpus_min{job_name="b"} 4.0
# HELP drom_job_cpus_max CPUs a job can use.
# TYPE drom_job_cpus_max gauge
drom_job_cpus_max{job_name="a"} 6.0
drom_job_cpus_max{job_name="b"} 4.0
# HELP drom_job_rate Work that a job was measured to do in a second with so many cores, in a unit of its own.
# TYPE drom_job_rate gauge
drom_job_rate{cores="3",job_name="a"} 12.5
drom_job_rate{cores="6",job_name="a"} 20.0
# HELP drom_reconfigurations_total Changes of a task's CPUs by kind and outcome.
# TYPE drom_reconfigurations_total counter
drom_reconfigurations_total{action="fence",outcome="failed"} 0.0
drom_reconfigurations_total{action="keep",outcome="failed"} 0.0
drom_reconfigurations_total{action="shrink",outcome="enforced"} 1.0
drom_reconfigurations_total{action="start",outcome="applied"} 2.0
# HELP drom_reaped_tasks_total Tasks whose cores were returned, by reason.
# TYPE drom_reaped_tasks_total counter
drom_reaped_tasks_total{reason="exited"} 3.0
drom_reaped_tasks_total{reason="left"} 0.0
drom_reaped_tasks_total{reason="released"} 1.0
# HELP drom_enforcements_total Times the agent bound threads that had not moved by themselves.
# TYPE drom_enforcements_total counter
drom_enforcements_total 1.0
# HELP drom_repaired_threads_total Threads moved back whose masks another program had changed.
# TYPE drom_repaired_threads_total counter
drom_repaired_threads_total 0.0
# HELP drom_refusals_total Requests of programs that were refused.
# TYPE drom_refusals_total counter
drom_refusals_total 0.0
# HELP drom_loop_faults_total Failures of parts of the agent's loop.
# TYPE drom_loop_faults_total counter
drom_loop_faults_total{part="repairs"} 3.0
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
"""What a scrape of `daemon()` says, up to the kernel's own durations and what time brings."""


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
    allocated = Allocated()
    allocated.has(0, "a", 0, 6, time.monotonic() - 100)
    rows = [(n // 4, n // 4, core) for n, core in enumerate(MACHINES[2])]
    stub = SimpleNamespace(
        node=node,
        rows=rows,
        report=SimpleNamespace(counters=counters, allocated=allocated),
        lock=threading.Lock(),
        mailboxes=SimpleNamespace(read=lambda _: None),
        settings=SimpleNamespace(observe=False),
        guard=SimpleNamespace(faults={"repairs": 3}),
        log=SimpleNamespace(history=SimpleNamespace(lost=2)),
    )
    stub.rate_monitor = SimpleNamespace(rates=lambda job: {3: 12.5, 6: 20.0} if job == "a" else {})
    availability = SimpleNamespace(available=CpuAvailability(node.cores.all, 0))
    stub.usable = SimpleNamespace(load={3: 0.25}, availability=availability)
    stub.snapshot = lambda: snapshot(cast("Daemon", stub))
    return cast("Daemon", stub)


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
        daemon.report.allocated.has(0, "a", 0, 0, time.monotonic())

        assert 'job_name="a"' in before
        assert 'job_name="a"' not in text_of(daemon)

    def test_cpus_that_nobody_may_have_are_not_free(self, daemon: Daemon) -> None:
        """Nor do they vanish from the machine."""
        node = daemon.node
        held = sum(task.held for task in node.tasks.values())
        node.set_usable_cpus(held, 1.0, 0, 0)
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

    def test_users_and_jobs_have_counters_of_cpu_seconds(self, daemon: Daemon) -> None:
        """A job's ends with it, its user's goes on; a CPU is busy or idle, whoever looked at it last."""
        seconds = re.compile(r"(?m)^drom_(job|user)_allocated_cpu_seconds_total\{(.*)\} (.*)$")
        first = {kind: (labels, float(value)) for kind, labels, value in seconds.findall(text_of(daemon))}
        assert first["job"][0] == 'job_name="a",user="root"'
        assert first["user"][0] == 'user="root"'
        assert 600 <= first["job"][1] <= first["user"][1] < 700

        daemon.report.allocated.has(0, "a", 0, 0, time.monotonic())
        (left,) = seconds.findall(text_of(daemon))
        assert left[:2] == ("user", 'user="root"')
        assert float(left[2]) >= first["user"][1]

    def test_the_process_itself_is_measured(self, daemon: Daemon) -> None:
        """As every Prometheus client library does, under the usual names."""
        text = text_of(daemon)
        names = ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "max_fds", "start_time_seconds")
        assert [name for name in names if f"\nprocess_{name} " not in text] == []

    def test_no_label_is_one_of_prometheus_own(self, daemon: Daemon) -> None:
        """Prometheus would rename `job` and `instance`, as it sets both for what it scrapes."""
        assert set(re.findall(r"[{,](job|instance)=", text_of(daemon))) == set()

    def test_promtool_has_nothing_to_say(self, daemon: Daemon) -> None:
        """Names, units and help texts follow Prometheus's own rules."""
        command = [tool("promtool"), "check", "metrics"]
        done = subprocess.run(command, input=text_of(daemon), capture_output=True, text=True, check=False)

        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_histogram_counts_up_to_and_including_each_bound() -> None:
    """Buckets are cumulative, a bound belongs to its own bucket, and the last one has all."""
    histogram = Histogram(0.1, 1.0)
    for seconds in (0.1, 0.5, 9.0):
        histogram.observe(seconds)

    assert histogram.buckets() == [("0.1", 1.0), ("1.0", 2.0), ("+Inf", 3.0)]
    assert histogram.sum == pytest.approx(9.6)
