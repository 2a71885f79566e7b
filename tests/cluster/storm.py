# SPDX-License-Identifier: Apache-2.0
"""A storm over a cluster: short jobs are submitted while scheduler, agents, jobs and what keeps them are killed.

A third of the jobs is of MPI, on two nodes.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from drom.agent.errors import ControlError
from drom.scheduler.live.cluster.jobs import FINAL
from drom.scheduler.live.cluster.paging import all_pages
from drom.scheduler.testbed.cluster import HEAD, PORT, build_ring
from drom.scheduler.testbed.namespaces import Process

from tests.cluster import ledger, plan
from tests.cluster.census import look
from tests.cluster.ledger import Known, violations
from tests.cluster.rig import rig
from tests.support.agents import environment, wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cluster.census import Found
    from tests.cluster.rig import Rig
    from tests.support.storms import Act

MOST = 40
"""Jobs that wait or run at most: more only wait longer."""
HOSTILE = 3.0
"""Seconds for which another user attacks a node or the scheduler."""
CUT = 3.0
"""Most seconds for which a node has no link: the scheduler allows a longer silence."""
PATIENCE = 600
"""Seconds in which all jobs have to come to their ends once nobody is killed any more."""

OVER = {"state": "over", "attempt": math.inf}
"""What is told of a job that is not in the queue any more."""


@dataclass
class Outcome:
    """What came of a storm."""

    kills: Counter[str] = field(default_factory=Counter)
    life: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    launches: int = 0
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def table(self) -> str:
        """Return the table for people, as Markdown."""
        rows = [f"| {kind} | {self.kills[kind]} |" for kind in plan.KILLS]
        total = f"| **all faults** | **{self.kills.total()}** |\n| **violations** | **{len(self.violations)}** |"
        return "\n".join(["| fault | times |", "|---|---|", *rows, total])

    def summary(self) -> str:
        """Return a line on what happened besides."""
        states = ", ".join(f"{count} {state}" for state, count in sorted(self.states.items()))
        launches = ", ".join(f"{self.kills[kind]} {kind}" for kind in plan.LAUNCH)
        return (
            f"{self.life['submit']} jobs submitted, {self.launches} of MPI, begun {self.attempts} times; "
            f"killed of launches {launches}; in the end {states}; {self.seconds / 60:.1f} minutes"
        )


class Storm:
    """Carries out acts on a cluster until there have been enough kills."""

    def __init__(self, here: Rig, ring: Path, tell: Callable[[str], None]) -> None:
        self._here, self._ring, self._tell = here, ring, tell
        self._known: dict[int, Known] = {}
        self._visitors: list[Process] = []
        self.outcome = Outcome()

    def run(self, acts: Iterator[Act], kills: int) -> Outcome:
        """Return what came of so many kills."""
        begin = time.monotonic()
        does: dict[str, Callable[[random.Random], bool]]
        does = {kind: getattr(self, f"_{kind}", partial(self._kill, kind)) for kind in plan.KILLS | plan.LIFE}
        while self.outcome.kills.total() < kills:
            act = next(acts)
            time.sleep(act.pause)
            if does[act.kind](act.chance()):
                is_kill = act.kind in plan.KILLS
                (self.outcome.kills if is_kill else self.outcome.life)[act.kind] += 1
                if is_kill:
                    self._look_for_remains()
                if is_kill and self.outcome.kills.total() % 20 == 0:
                    self._tell(f"{self.outcome.kills.total()} kills, {len(self._known)} jobs")
        self._calm()
        self._judge()
        self.outcome.seconds = time.monotonic() - begin
        return self.outcome

    # --- users ---

    def _living(self) -> list[int]:
        """Return the jobs that are not over; those held, as the storm has hit them too often, are released."""
        jobs = self._here.ask("queue")["jobs"]
        for job in jobs:
            if job["reason"].startswith("held"):
                self._here.ask("hold", job=job["job"], held=False)
        return [job["job"] for job in jobs]

    def _submit(self, chance: random.Random) -> bool:
        if len(self._living()) >= MOST:
            return False
        known = Known(chance.choice((0, 0, 0, 3)), chance.random() < 0.8, mpi=chance.random() < 1 / 3)
        about = {"nodes": 2 if known.mpi else chance.choice((1, 1, 1, 2, 2, 4)), "time": chance.choice((60, 600))}
        job_class = chance.choice(("malleable", "malleable", "moldable", "rigid"))
        what = self._mpi(chance, known) if known.mpi else {"script": script(chance, known)}
        self._known[self._here.submit(job_class=job_class, requeue=known.requeue, **about, **what)] = known
        self.outcome.launches += known.mpi
        return True

    def _mpi(self, chance: random.Random, known: Known) -> dict[str, Any]:
        """Return a job of two ranks, started by a script or by the scheduler's own mpirun."""
        work = self._ring, round(chance.uniform(0.4, 8.0), 1), known.status
        if chance.random() < 0.5:
            return {"script": ledger.mpi_script(*work)}
        return {"command": ledger.mpi_command(*work)}

    def _cancel(self, chance: random.Random) -> bool:
        living = self._living()
        if not living:
            return False
        number = chance.choice(living)
        with contextlib.suppress(ControlError):  # it has ended meanwhile
            self._known[number].cancelled = True
            self._here.ask("cancel", job=number)
        return True

    # --- kills ---

    def _scheduler(self, chance: random.Random) -> bool:
        assert self._here.scheduler
        self._here.scheduler.end(signal.SIGKILL)
        time.sleep(chance.choice((0.0, 0.0, 0.5)))
        self._here.start_scheduler()
        return True

    def _agent(self, chance: random.Random) -> bool:
        name = chance.choice(self._here.names)
        self._here.agents[name].end(signal.SIGKILL)
        time.sleep(chance.choice((0.0, 0.0, 0.3)))
        self._here.start_agent(name)
        return True

    def _hostile(self, chance: random.Random) -> bool:
        """Have another user attack the agent of a node or the scheduler, and the scheduler's port, beside all the rest.

        It does not register programs, which may have CPUs that jobs wait for.
        """
        here, name = self._here, chance.choice([HEAD, *self._here.names])
        directory = here.state if name == HEAD else here.folder / name / "run"
        places = ["control", "signals", f"{here.network[HEAD].address}:{PORT}"]
        words = [str(directory), str(chance.getrandbits(32)), str(HOSTILE), *places]
        command = [sys.executable, "-m", "tests.chaos.hostile", *words]
        self._visitors = [one for one in self._visitors if one.poll() is None]
        self._visitors.append(Process(here.network[name], command, here.folder / "hostile", environment()))
        return True

    def _cut(self, chance: random.Random) -> bool:
        """Disconnect a node for a while. A launch of MPI may fail by that, and nothing else may notice."""
        name, here = chance.choice(self._here.names), self._here
        there = look(here)
        here.network.disconnect(name)
        time.sleep(chance.uniform(0.0, CUT))
        here.network.connect(name)
        for one in [*there, *look(here)]:
            if one.job in self._known and self._known[one.job].mpi:
                self._known[one.job].launches.setdefault(one.attempt, []).append("cut")
        return True

    def _kill(self, kind: str, chance: random.Random) -> bool:
        """Kill a process of a job that has begun: its own, what keeps it on a node, or one of a launch of it.

        How a job ends whose keeper is killed is lost with it.
        """
        found = [one for one in look(self._here) if one.job in self._known and self._is(one, kind)]
        if not found:
            return False
        one = chance.choice(sorted(found))
        known = self._known[one.job]
        if kind in plan.LAUNCH:
            known.launches.setdefault(one.attempt, []).append(kind)
        else:
            (known.steps if kind == "step" else known.programs).add(one.attempt)
        try:
            os.kill(one.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def _is(self, one: Found, kind: str) -> bool:
        # Jobs without a launch have but one keeper on a node, whether it has said so or not.
        return one.what == kind or (kind == "step" and one.what == "keeper" and not self._known[one.job].mpi)

    # --- what must not be ---

    def _look_for_remains(self) -> None:
        """Note processes of jobs that are over, or in the queue again; they are killed, so that others can go on."""
        told = {job["job"]: job for job in self._here.ask("queue")["jobs"]}
        for one in look(self._here):
            job = told.get(one.job, OVER)
            # A job that waited may have begun since, with an attempt that it did not have then.
            if one.job in self._known and one.attempt < job["attempt"] + (job["state"] in ("over", "pending")):
                about = f"{one.what} of attempt {one.attempt} is left on {one.node} while the job is {job['state']}"
                self.outcome.violations.append(f"job {one.job}: {about}; done to it was {self._known[one.job]}")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)

    # --- the end ---

    def _calm(self) -> None:
        """Wait until all jobs are over, nobody holds a core, and nodes know of nothing."""
        here = self._here
        self._tell("no more kills; waiting for the last jobs")
        wait_until(lambda: all(one.poll() is not None for one in self._visitors), lambda: "a hostile user does not end")
        here.await_nodes(up=here.names)
        wait_until(lambda: not self._living(), lambda: f"{here.ask('queue')}\n{here.said(HEAD)[-5000:]}", PATIENCE)
        self._look_for_remains()
        wait_until(lambda: not any(map(here.tasks, here.names)), lambda: str([here.tasks(name) for name in here.names]))
        spools = [here.folder / name / "run/steward" for name in here.names]
        wait_until(lambda: not [path for spool in spools for path in spool.iterdir()], lambda: str(spools))
        whole = here.submit(script="#!/bin/sh\nexit 0\n", nodes=len(here.names), time=60, job_class="rigid")
        here.await_state(whole, "completed")

    def _judge(self) -> None:
        told = {job["job"]: job for job in all_pages(self._here.ask, "queue", all=True, last=100_000)["jobs"]}
        found = self.outcome.violations
        for number, known in self._known.items():
            lines = self._here.lines(f"ledger.{number}")
            self.outcome.attempts += sum(not line.startswith("end") for line in lines)
            if number not in told or told[number]["state"] not in FINAL:
                found.append(f"job {number} is lost: {told.get(number)}")
                continue
            self.outcome.states[told[number]["state"]] += 1
            if wrong := violations(told[number], known, lines):
                found += [*wrong, str(self._here.job(number)["history"])]
        hostile = self._here.folder / "hostile"
        found += hostile.read_text(encoding="utf-8").splitlines() if hostile.exists() else []
        for name in (HEAD, *self._here.names):
            if "Traceback" in self._here.said(name):
                found.append(f"what runs on {name} has failed: {self._here.said(name)[-2000:]}")


def script(chance: random.Random, known: Known) -> str:
    """Return the script of a job without MPI."""
    return ledger.script(round(chance.uniform(0.1, 3.0), 2), known.status)


def storm(folder: Path, seed: int, kills: int, tell: Callable[[str], None] = lambda _: None) -> Outcome:
    """Return what came of so many kills on a cluster of four nodes."""
    folder.mkdir()
    with rig(folder, "--silence", "60", nodes=4) as here:
        return Storm(here, build_ring(folder), tell).run(plan.acts(seed), kills)
