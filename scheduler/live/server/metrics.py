# SPDX-License-Identifier: Apache-2.0
"""The Prometheus metrics of a cluster: its queue, its nodes, and the events since its scheduler started."""

from __future__ import annotations

from collections import Counter
from http import HTTPStatus
from threading import Lock
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from drom.agent.observe import http_server
from drom.agent.observe.counters import Histogram
from drom.agent.observe.exposition import Exposition
from drom.agent.observe.http_server import Answer
from drom.scheduler.live.cluster.jobs import ENDING, FINAL, ON_NODES, PENDING, RUNNING, STARTING

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from drom.scheduler.allocation.snapshot import PlannedStarts
    from drom.scheduler.live.cluster.cluster import Cluster
    from drom.scheduler.live.cluster.jobs import Entry
    from prometheus_client.core import Metric

NODE_STATES = ("up", "drained", "busy", "gone", "down", "lent")
JOB_STATES = (PENDING, STARTING, RUNNING, ENDING)
HAPPENED = (
    *("submitted", "placed", "started", "ordered", "resized", "resize_failed", "kill_failed", "requeued"),
    *("saving", "saved", "not_saved"),
)
EVENTS = (*HAPPENED, *sorted(FINAL))
PLANS = ("solver", "rule", "fallback")
"""Who has made a plan of policy cp: CP-SAT, the rule for one or very many jobs, and that for a plan that is late."""


class Counts:
    """The counts of events since the scheduler started.

    `stuck` is whether the queue cannot be written now, `starting` whether the policy is still being compiled, `faults`
    are the numbers of failures by part of the loop, `longest` are the seconds of its longest turn, by clock.
    `store_messages` counts those to the etcd that has the queue.
    """

    def __init__(self) -> None:
        self.stuck = self.starting = False
        self.faults: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.passes = Histogram(0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1)
        self.longest = {"real": 0.0, "cpu": 0.0}
        self.plans = Counter(dict.fromkeys(PLANS, 0))
        self.planning = Histogram(0.001, 0.01, 0.05, 0.1, 0.5, 1, 5)
        self.waits = Histogram(0.1, 1, 10, 60, 600, 3600, 21600, 86400)
        self.store_messages = 0
        self._submitted: dict[int, float] = {}

    def take_turn(self, real: float, cpu: float) -> None:
        """Record the real time and the CPU time of a turn of the loop."""
        self.longest = {"real": max(self.longest["real"], real), "cpu": max(self.longest["cpu"], cpu)}

    def take_plan(self, plan: PlannedStarts | None, *, in_time: bool) -> None:
        """Count a plan of policy cp; None: the planner has failed."""
        if plan is None or not in_time:
            self.plans["fallback"] += 1
        else:
            self.plans["rule" if plan.by_rule else "solver"] += 1
        if plan:
            self.planning.observe(plan.seconds)

    def take(self, entries: Iterable[Entry]) -> None:
        """Count history entries that have been stored."""
        for entry in entries:
            self.events[entry.what] += 1
            if entry.what in ("submitted", "requeued"):
                self._submitted[entry.job] = entry.at
            elif entry.what == "started" and entry.job in self._submitted:
                self.waits.observe(entry.at - self._submitted[entry.job])
            if entry.what not in ("submitted", "requeued", "placed", "limit", "range", "held", "released", "updated"):
                self._submitted.pop(entry.job, None)


class ClusterCollector:
    """Collects a cluster's metrics on each request of Prometheus; `lock` keeps its loop from changing it meanwhile.

    `find` returns the clusters of this process, one for each home partition that it leads; they may be other objects
    after a fault.
    """

    def __init__(self, find: Callable[[], Sequence[Cluster]], counts: Counts, lock: threading.Lock) -> None:
        from prometheus_client import ProcessCollector

        self._find, self._counts, self._lock = find, counts, lock
        self._process = ProcessCollector(registry=None)

    @property
    def serves(self) -> bool:
        """Whether the policy is compiled and the queue can be written."""
        return not (self._counts.stuck or self._counts.starting)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of one moment."""
        with self._lock:
            found = [*self._state(), *self._history()]
        yield from found
        yield from self._process.collect()

    def _state(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        clusters = self._find()
        jobs = Counter(job.state for cluster in clusters for job in cluster.jobs.values())
        nodes = Counter(node.state for cluster in clusters for node in cluster.state.own)
        for name, text, states, counted in (
            ("jobs", "Jobs that are not over, by state.", JOB_STATES, jobs),
            ("nodes", "Nodes by state.", NODE_STATES, nodes),
        ):
            family = GaugeMetricFamily(f"drom_scheduler_{name}", text, labels=["state"])
            for state in states:
                family.add_metric([state], counted[state])
            yield family
        total = GaugeMetricFamily("drom_scheduler_node_cores", "Cores of a node.", labels=["node"])
        held = GaugeMetricFamily("drom_scheduler_node_cores_held", "Cores that jobs may hold.", labels=["node"])
        for cluster in clusters:
            for node in (one for one in cluster.nodes.values() if not one.lent):  # another one has it
                total.add_metric([node.name], node.cores)
                held.add_metric([node.name], cluster.placements.held(node.index))
        stuck = GaugeMetricFamily("drom_scheduler_stuck", "1 while the queue cannot be written, and nothing begins.")
        stuck.add_metric([], self._counts.stuck)
        survivors = GaugeMetricFamily("drom_scheduler_unkillable_jobs", "Jobs that were killed and do not end.")
        survivors.add_metric([], sum(len(cluster.executions.survivors.jobs) for cluster in clusters))
        longest = GaugeMetricFamily(
            "drom_scheduler_longest_turn_seconds", "Most real and CPU time of a turn of the loop.", labels=["clock"]
        )
        for clock, seconds in self._counts.longest.items():
            longest.add_metric([clock], seconds)
        yield from (total, held, stuck, survivors, longest)
        yield from self._running()

    def _running(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        begun = GaugeMetricFamily("drom_scheduler_job_start_time_seconds", "When a job started.", labels=["job_id"])
        limit = GaugeMetricFamily(
            "drom_scheduler_job_limit_seconds", "How long a job that has started may take.", labels=["job_id", "class"]
        )
        for job in (job for cluster in self._find() for job in cluster.jobs.values()):
            if job.state in ON_NODES and job.started is not None:
                begun.add_metric([str(job.number)], job.started)
                limit.add_metric([str(job.number), job.spec.job_class], job.limit)
        yield from (begun, limit)

    def _history(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        events = CounterMetricFamily("drom_scheduler_events", "What has happened to jobs.", labels=["event"])
        for what in EVENTS:
            events.add_metric([what], self._counts.events[what])
        yield events
        faults = CounterMetricFamily(
            "drom_scheduler_loop_faults", "Failures of parts of the scheduler's loop.", labels=["part"]
        )
        for part, count in sorted(self._counts.faults.items()):
            faults.add_metric([part], count)
        yield faults
        plans = CounterMetricFamily("drom_scheduler_plans", "Plans of policy cp, by who has made them.", labels=["by"])
        for who, count in self._counts.plans.items():
            plans.add_metric([who], count)
        yield plans
        messages = CounterMetricFamily("drom_scheduler_store_messages", "Messages to the etcd that has the queue.")
        messages.add_metric([], self._counts.store_messages)
        yield messages
        for name, text, histogram in (
            ("plan_cpu_seconds", "CPU time of a plan of policy cp.", self._counts.planning),
            ("pass_duration_seconds", "Time a turn of the scheduler took.", self._counts.passes),
            ("wait_seconds", "From submission to start.", self._counts.waits),
        ):
            yield HistogramMetricFamily(
                f"drom_scheduler_{name}", text, buckets=histogram.buckets(), sum_value=histogram.sum
            )


class _Site:
    """``/metrics`` of a cluster."""

    def __init__(self, collector: ClusterCollector, failed: Callable[[str], None]) -> None:
        self._collector, self.failed = collector, failed
        self._turn = Lock()

    def answer(self, target: str, accept: str) -> Answer:
        """Return the metrics; requests at the same time are answered one after the other."""
        if urlsplit(target).path != "/metrics":
            return Answer(b"There is nothing here: ask for /metrics.\n", http_server.PLAIN, HTTPStatus.NOT_FOUND)
        with self._turn:
            exposition = Exposition(accept)
            return Answer(exposition.text(self._collector.collect()), exposition.kind)

    def ready(self) -> bool:
        """Return whether users and agents are served."""
        return self._collector.serves


def serve(
    collector: ClusterCollector, host: str, port: int, failed: Callable[[str], None]
) -> tuple[int, Callable[[], None]]:
    """Serve ``/metrics`` from threads; return the port and a function that stops it. Raises OSError.

    `failed` is called with a sentence for a request that could not be answered.
    """
    return http_server.serve(_Site(collector, failed), host, port)
