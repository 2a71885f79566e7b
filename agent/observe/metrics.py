# SPDX-License-Identifier: Apache-2.0
"""The metrics of a node for Prometheus: one snapshot per scrape, so that a series ends with its job.

Labels are bounded: sockets, live jobs, a number of users, and fixed words. `socket` is the package's index in
`drom topology`. Busy time is a counter, so that readers compute rates over any period.
"""

from __future__ import annotations

import platform
import time
from importlib import metadata
from typing import TYPE_CHECKING

from drom.agent.observe.cpu_seconds import Busy
from drom.agent.observe.exposition import Series
from drom.agent.observe.snapshot import overview
from drom.agent.system.users import DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drom.agent.observe.cpu_seconds import Job
    from drom.agent.observe.view import AgentView, NodeSummary
    from prometheus_client.core import Metric

STATES = ("waiting", "running", "shrinking", "growing", "moving", "enforced", "resting")


class NodeCollector:
    """A collector for `prometheus_client`; each scrape takes the daemon's lock for one snapshot."""

    def __init__(self, agent: AgentView) -> None:
        from prometheus_client import ProcessCollector

        self._agent = agent
        self._busy = Busy()
        self._process = ProcessCollector(registry=None)
        self._user = DIRECTORY.user_name

    def collect(self) -> Iterator[Metric | Series]:
        """Yield every metric family."""
        with self._agent.lock:
            now = time.monotonic()
            snap = overview(self._agent)
            families = [_rates(self._agent), *_counts(self._agent)]
            allocated = self._agent.report.allocated
            jobs, users = allocated.jobs(now), allocated.users(now)
        yield _build_info()
        yield from _cpus(snap)
        yield from _jobs(snap)
        yield from families
        yield self._seconds(snap)
        yield from self._allocated(jobs, users)
        yield from self._process.collect()

    def _seconds(self, snap: NodeSummary) -> Metric:
        from prometheus_client.core import CounterMetricFamily

        text = "Seconds that the managed CPUs of a socket were busy or idle, with any program."
        family = CounterMetricFamily("drom_cpu_seconds", text, labels=["socket", "state"])
        masks: dict[int, int] = {}
        for core in snap.cores:
            masks[core.package] = masks.get(core.package, 0) | core.cpus
        for package, (busy, idle) in sorted(self._busy.read(masks).items()):
            family.add_metric([str(package), "busy"], busy)
            family.add_metric([str(package), "idle"], idle)
        return family

    def _allocated(self, jobs: dict[str, Job], users: dict[int | None, float]) -> Iterator[Metric | Series]:
        from prometheus_client.core import CounterMetricFamily

        text = "CPUs that a job has had, times the seconds it had them."
        rows = [((name, self._user(job.uid)), round(job.seconds, 3)) for name, job in jobs.items()]
        yield Series(CounterMetricFamily, "drom_job_allocated_cpu_seconds", text, ["job_name", "user"], rows)
        text = "The same of all jobs of a user, also ended ones; of further users together where user is empty."
        family = CounterMetricFamily("drom_user_allocated_cpu_seconds", text, labels=["user"])
        for uid, seconds in users.items():
            family.add_metric(["" if uid is None else self._user(uid)], round(seconds, 3))
        yield family


def _build_info() -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(
        "drom_build_info", "Version of drom, Python and numba; always 1.", labels=["version", "python", "numba"]
    )
    family.add_metric([metadata.version("drom"), platform.python_version(), metadata.version("numba")], 1)
    return family


def _cpus(snap: NodeSummary) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily("drom_cpus", "Managed CPUs by socket and state.", labels=["socket", "state"])
    for package in sorted({core.package for core in snap.cores}):
        mine = [core for core in snap.cores if core.package == package]
        for state in ("assigned", "free", "unavailable"):
            family.add_metric([str(package), state], sum(core.count(state) for core in mine))
    yield family
    tasks = GaugeMetricFamily("drom_tasks", "Registered tasks by state.", labels=["state"])
    for state in STATES:
        tasks.add_metric([state], snap.states.get(state, 0))
    yield tasks
    load = GaugeMetricFamily(
        "drom_cpu_unmanaged_ratio", "The load of unmanaged programs on a CPU, if avoid_load is set.", labels=["cpu"]
    )
    for cpu, share in snap.unmanaged:
        load.add_metric([str(cpu)], share)
    yield load
    yield GaugeMetricFamily("drom_frozen", "1 while the kill switch stops all changes.", value=int(snap.frozen))


def _jobs(snap: NodeSummary) -> Iterator[Series]:
    from prometheus_client.core import GaugeMetricFamily

    rows = [((job.name, str(package)), count) for job in snap.jobs for package, count in sorted(job.cpus.items())]
    text = "CPUs a job holds on a socket, where it holds any."
    yield Series(GaugeMetricFamily, "drom_job_cpus", text, ["job_name", "socket"], rows)
    for name, text in (
        ("target", "the plan gives a job"),
        ("min", "a job keeps at least"),
        ("max", "a job can use"),
    ):
        values = [((job.name,), getattr(job, name)) for job in snap.jobs]
        yield Series(GaugeMetricFamily, f"drom_job_cpus_{name}", f"CPUs {text}.", ["job_name"], values)


def _rates(agent: AgentView) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    text = "Work that a job was measured to do in a second with so many cores, in a unit of its own."
    family = GaugeMetricFamily("drom_job_rate", text, labels=["job_name", "cores"])
    for name in agent.node.jobs:
        for cores, rate in agent.rate_monitor.rates(name).items():
            family.add_metric([name, str(cores)], rate)
    return family


def _counts(agent: AgentView) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    counters = agent.report.counters
    changes = CounterMetricFamily(
        "drom_reconfigurations", "Changes of a task's CPUs by kind and outcome.", labels=["action", "outcome"]
    )
    for (action, outcome), count in sorted(counters.changes.items()):
        changes.add_metric([action, outcome], count)
    yield changes
    reaped = CounterMetricFamily("drom_reaped_tasks", "Tasks whose cores were returned, by reason.", labels=["reason"])
    for reason in ("exited", "left", "released"):
        reaped.add_metric([reason], counters.reaped[reason])
    yield reaped
    yield CounterMetricFamily(
        "drom_enforcements",
        "Times the agent bound threads that had not moved by themselves.",
        value=counters.enforcements,
    )
    yield CounterMetricFamily(
        "drom_repaired_threads",
        "Threads moved back whose masks another program had changed.",
        value=counters.repairs,
    )
    yield CounterMetricFamily("drom_refusals", "Requests of programs that were refused.", value=counters.refusals)
    faults = CounterMetricFamily("drom_loop_faults", "Failures of parts of the agent's loop.", labels=["part"])
    for part, count in sorted(agent.guard.faults.items()):
        faults.add_metric([part], count)
    yield faults
    history = agent.log.history
    yield CounterMetricFamily(
        "drom_events_lost", "Events that could not be kept.", value=history.lost if history else 0
    )
    for name, text, histogram in (
        ("drom_reconfiguration_duration_seconds", "From a grant's publication to its application.", counters.changing),
        ("drom_distribution_duration_seconds", "Time the distribution kernel took.", counters.placing),
    ):
        yield HistogramMetricFamily(name, text, buckets=histogram.buckets(), sum_value=histogram.sum)
