# SPDX-License-Identifier: Apache-2.0
"""Workload 5 without processes: the live scheduler's own state machine, with simulated nodes and programs.

Nodes answer at once, and programs progress at the speed of their cores: on several nodes at that of the slowest one, or
at that of all their cores together. Time is the workload's. No I/O except the compiled policy's cache.
"""

from __future__ import annotations

import copy
import heapq
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.agent.execution import protocol as say
from drom.agent.observe.job_rates import PERIOD
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.live.cluster.cluster import Cluster
from drom.scheduler.live.cluster.jobs import User
from drom.scheduler.live.cluster.settings import LIVE, Settings
from drom.scheduler.live.cluster.spec import Spec, name_of
from drom.scheduler.reproduction.sd_policy.real.jobs import PlannedJob, limit_of, make, measured_speeds, speeds
from drom.scheduler.reproduction.sd_policy.real.settings import NODES, REHEARSED, ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.live.cluster.jobs import Job

_FOR_EVER = 1e12
_UNITS = 1000
"""The progress that a program reports per second at full speed."""
_USER = User(1000, 1000, "user")


def policy_of(name: str) -> Policy:
    """Return a policy with the parameters that `drom scheduler` gives it."""
    options = REHEARSED[name]
    word, choices = options[1], options[3::2]
    return load_policy(word, [*LIVE[word], *choices])


class Curves(NamedTuple):
    """The speeds of each application on 1, 2, ... cores of a node; `balanced` programs use all their cores."""

    name: str
    speeds: Mapping[str, list[float]]
    balanced: bool = False


def curves_of(half: Mapping[str, float] | None = None) -> list[Curves]:
    """Return the curves of the settings, of the paper's two models and, with `half`, those measured on real cores.

    In the models, the speed is that of the least share (worst case), or of all cores together (ideal).
    """
    mixed, plain = ({name: speeds(name, kind) for name in ROLES} for kind in ("mixed", "ideal"))
    found = [Curves("mixed", mixed), Curves("worst case", plain), Curves("ideal", plain, balanced=True)]
    if half:
        found.append(Curves("measured", {name: measured_speeds(half[name]) for name in ROLES}))
    return found


class _Program:
    """A running job: the work that it has left, and the cores that it holds by node."""

    def __init__(self, job: Job, made: PlannedJob, curves: Curves, now: float) -> None:
        self.job, self._curve, self._balanced = job, curves.speeds[made.application], curves.balanced
        self.cores = dict(job.shares)
        self._left, self._since = made.run_time, now
        self._measured = now
        self.version = 0

    def speed(self) -> float:
        """Return the current speed; 1 with all cores."""
        if self._balanced:
            return sum(self._curve[cores - 1] for cores in self.cores.values()) / len(self.cores)
        return self._curve[min(self.cores.values()) - 1]

    def resize(self, node: str, cores: int, now: float) -> None:
        """Change the number of cores on a node from `now` on."""
        self._left -= (now - self._since) * self.speed()
        self._since = self._measured = now
        self.cores[node] = cores
        self.version += 1

    def measure(self, now: float) -> list[say.Pace]:
        """Return the progress that its first node would report, if there is any to report."""
        seconds = now - self._measured
        if seconds < PERIOD or len(set(self.cores.values())) > 1:
            return []
        self._measured = now
        work = max(1, round(_UNITS * seconds * self.speed()))
        return [say.Pace(self.job.number, self.job.attempt, self.cores[self.job.launcher], seconds, work)]

    def end(self) -> float:
        """Return the time of its end if nothing changes."""
        return self._since + max(0.0, self._left) / self.speed()


class Emulation:
    """A simulation of the first jobs of workload 5 under a policy, with their time limits in a run."""

    def __init__(
        self,
        seed: int,
        policy: str,
        curves: Curves,
        first: int = NODES.jobs,
        compression: float = NODES.compression,
    ) -> None:
        self._compression = compression
        self._made = make(NODES, seed)[:first]
        self._cluster = Cluster(policy_of(policy), Settings(silence=_FOR_EVER))
        self._curves = curves
        self._programs: dict[int, _Program] = {}
        self._events: list[tuple[float, int, PlannedJob | tuple[int, int]]] = []
        self._turns = itertools.count()
        self._entries: list[dict[str, Any]] = []
        self._now = 0.0

    def run(self, show: Callable[[float], None] = lambda _: None) -> dict[str, Any]:
        """Simulate all jobs; return a scheduler's answer to `history`, with the jobs in `made`."""
        for number in range(NODES.nodes):
            name = f"n{number}"
            self._cluster.agents.hello(
                say.Hello(say.PROTOCOL, "1", name, name, name, NODES.cores, 1, 0, {}, (), True, 0.0, ()), 0.0
            )
        for made in self._made:
            heapq.heappush(self._events, (float(made.submit), next(self._turns), made))
        over = 0
        while self._events:
            self._now, _, what = heapq.heappop(self._events)
            if self._cluster.policy.measures:
                self._measure()
            if isinstance(what, PlannedJob):
                self._submit(what)
            else:
                over += self._come_to_end(*what)
                show(over / len(self._made))
            self._settle()
        return self._history()

    def _measure(self) -> None:
        """Report the progress of programs as agents do; the scheduler does not use it between events."""
        for program in self._programs.values():
            paces = tuple(program.measure(self._now))
            if paces:
                self._cluster.agents.on_message(
                    program.job.launcher, say.Alive(program.job.launcher, self._now, paces), self._now
                )

    def _submit(self, made: PlannedJob) -> None:
        limit = round(limit_of(made, NODES, self._compression) * self._compression)
        spec = Spec(("program",), name=made.application, nodes=made.nodes, time=limit, folder="/")
        self._cluster.submit(spec, _USER, self._now)

    def _come_to_end(self, number: int, version: int) -> bool:
        program = self._programs.get(number)
        if program is None or program.version != version:
            return False
        self._end(program.job.launcher, number, program.job.attempt, 0)
        return True

    def _end(self, node: str, number: int, attempt: int, status: int) -> None:
        self._programs.pop(number, None)
        self._cluster.agents.on_message(node, say.Ended(number, attempt, status, self._now, 0.0, 0), self._now)

    def _settle(self) -> None:
        """Exchange messages between scheduler and nodes until none is left."""
        self._turn()
        outbox = self._cluster.outbox
        while outbox.messages:
            messages, outbox.messages = outbox.messages, []
            for node, message in messages:
                self._hear(node, message)
            self._turn()

    def _turn(self) -> None:
        outbox = self._cluster.outbox
        self._cluster.turn(self._now)
        self._entries += copy.deepcopy([entry._asdict() for entry in outbox.entries])  # shares change later
        outbox.entries.clear()
        outbox.jobs.clear()

    def _hear(self, node: str, message: say.ToAgent) -> None:
        if isinstance(message, say.Start):
            job = self._cluster.jobs[message.job]
            self._cluster.agents.on_message(node, say.Started(message.job, message.attempt, 1, self._now), self._now)
            if job.started is not None:
                program = _Program(job, self._made[message.job - 1], self._curves, self._now)
                self._programs[job.number] = program
                self._expect(program)
        elif isinstance(message, say.Resize):
            if resized := self._programs.get(message.job):
                resized.resize(node, message.cores, self._now)
                self._expect(resized)
            self._cluster.agents.on_message(node, say.Resized(message.job, message.attempt, message.cores), self._now)
        elif isinstance(message, say.Signal):
            self._end(node, message.job, message.attempt, -message.signal)

    def _expect(self, program: _Program) -> None:
        event = (program.end(), next(self._turns), (program.job.number, program.version))
        heapq.heappush(self._events, event)

    def _history(self) -> dict[str, Any]:
        cluster = self._cluster
        return {
            "time": self._now,
            "name": "rehearsal",
            "policy": cluster.policy.name,
            "parameters": cluster.policy.parameters(),
            "nodes": list(cluster.nodes),
            "cores": NODES.cores,
            "entries": self._entries,
            "jobs": [_brief(job) for job in cluster.jobs.values()],
            "made": {made.number: made for made in self._made},
        }


def _brief(job: Job) -> dict[str, Any]:
    return {
        "job": job.number,
        "name": name_of(job.spec),
        "user": job.user.name,
        "state": job.state,
        "nodes": job.spec.nodes,
        "shares": job.shares,
        "submitted": job.submitted,
        "started": job.started,
        "ended": job.ended,
        "limit": job.limit,
        "requested": job.spec.time,
        "class": job.spec.job_class,
        "saving": job.spec.saving,
    }
