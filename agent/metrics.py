# SPDX-License-Identifier: Apache-2.0
"""The node as Prometheus sees it: one snapshot per scrape, so that a series ends with its job.

Labels are bounded: sockets, live jobs, and fixed words. `socket` is the package's index in `drom topology`.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from importlib import metadata
from itertools import accumulate
from typing import TYPE_CHECKING

from agent import cpu_times
from agent.snapshot import overview
from dromlib.cpulist import cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.core import Metric

    from agent.daemon import Daemon
    from agent.snapshot import Overview

STATES = ("waiting", "running", "shrinking", "growing", "moving", "enforced")


class Histogram:
    """Counts of observations by upper bound in seconds."""

    def __init__(self, *bounds: float) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return cumulative counts by bound, as Prometheus wants them."""
        names = [str(bound) for bound in self.bounds] + ["+Inf"]
        return list(zip(names, (float(n) for n in accumulate(self.counts)), strict=True))


class Utilisation:
    """Busy share of CPUs between two looks at ``/proc/stat``."""

    def __init__(self, times: Callable[[], dict[int, tuple[int, int]]] = cpu_times.of_cpus) -> None:
        self._times = times
        self._before = times()
        self._ratios: dict[int, tuple[int, int]] = {}

    def look(self) -> None:
        """Take the time from the last look to this one as the interval."""
        now = self._times()
        if any(now[c][1] > self._before[c][1] for c in now if c in self._before):
            self._ratios = {
                c: (now[c][0] - self._before[c][0], now[c][1] - self._before[c][1]) for c in now if c in self._before
            }
            self._before = now

    def ratio(self, mask: int) -> float:
        """Return the busy share, 0 to 1, of the OS CPUs in `mask` that exist on this machine."""
        seen = [self._ratios[c] for c in cpus(mask) if c in self._ratios]
        total = sum(t for _, t in seen)
        return max(0.0, min(1.0, sum(busy for busy, _ in seen) / total)) if total else 0.0


class NodeCollector:
    """A collector for `prometheus_client`; each scrape takes the daemon's lock for one snapshot."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._utilisation = Utilisation()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        with self._daemon.lock:
            snap = overview(self._daemon)
            families = [_rates(self._daemon), *_counts(self._daemon)]
        self._utilisation.look()
        yield _build_info()
        yield from _cpus(snap)
        yield from _jobs(snap)
        yield from families
        yield self._busy(snap)

    def _busy(self, snap: Overview) -> Metric:
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(
            "drom_cpu_utilisation_ratio", "Busy share of the managed CPUs since the last scrape.", labels=["socket"]
        )
        for package in sorted({core.package for core in snap.cores}):
            mask = sum(core.cpus for core in snap.cores if core.package == package)
            family.add_metric([str(package)], self._utilisation.ratio(mask))
        return family


def _build_info() -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(
        "drom_build_info", "Version of drom, Python and numba; always 1.", labels=["version", "python", "numba"]
    )
    family.add_metric([metadata.version("drom"), platform.python_version(), metadata.version("numba")], 1)
    return family


def _cpus(snap: Overview) -> Iterator[Metric]:
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
        "drom_cpu_unmanaged_ratio", "What unmanaged programs take of a CPU, where avoid_load is set.", labels=["cpu"]
    )
    for cpu, share in snap.unmanaged:
        load.add_metric([str(cpu)], share)
    yield load
    yield GaugeMetricFamily("drom_frozen", "1 while the kill switch keeps everything as it is.", value=int(snap.frozen))


def _jobs(snap: Overview) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    held = GaugeMetricFamily(
        "drom_job_cpus", "CPUs a job holds on a socket, where it holds any.", labels=["job", "socket"]
    )
    for job in snap.jobs:
        for package, count in sorted(job.cpus.items()):
            held.add_metric([job.name, str(package)], count)
    yield held
    for name, text in (
        ("target", "the plan wants a job to have"),
        ("min", "a job keeps at least"),
        ("max", "a job can use"),
    ):
        family = GaugeMetricFamily(f"drom_job_cpus_{name}", f"CPUs {text}.", labels=["job"])
        for job in snap.jobs:
            family.add_metric([job.name], getattr(job, name))
        yield family


def _rates(daemon: Daemon) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    text = "Work that a job was measured to do in a second with so many cores, in a unit of its own."
    family = GaugeMetricFamily("drom_job_rate", text, labels=["job", "cores"])
    for name in daemon.node.jobs:
        for cores, rate in daemon.pacing.rates(name).items():
            family.add_metric([name, str(cores)], rate)
    return family


def _counts(daemon: Daemon) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    counters = daemon.report.counters
    changes = CounterMetricFamily(
        "drom_reconfigurations", "Changes of a task's CPUs by kind and outcome.", labels=["action", "outcome"]
    )
    for (action, outcome), count in sorted(counters.changes.items()):
        changes.add_metric([action, outcome], count)
    yield changes
    reaped = CounterMetricFamily("drom_reaped_tasks", "Tasks whose cores came back, by reason.", labels=["reason"])
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
        "Threads moved back whose masks somebody had rewritten.",
        value=counters.repairs,
    )
    yield CounterMetricFamily("drom_refusals", "Requests refused at the door.", value=counters.refusals)
    history = daemon.log.history
    yield CounterMetricFamily(
        "drom_events_lost", "Events that could not be kept.", value=history.lost if history else 0
    )
    for name, text, histogram in (
        ("drom_reconfiguration_duration_seconds", "From a grant's publication to its application.", counters.changing),
        ("drom_distribution_duration_seconds", "Time the distribution kernel took.", counters.placing),
    ):
        yield HistogramMetricFamily(name, text, buckets=histogram.buckets(), sum_value=histogram.sum)
