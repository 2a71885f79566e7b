# SPDX-License-Identifier: Apache-2.0
"""A storm over a cluster: short jobs are submitted while scheduler, agents, jobs and what keeps them are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.control import ControlError
from scheduler.demo.cluster import HEAD
from scheduler.live.jobs import FINAL
from scheduler.live.pages import whole
from tests.agents import wait_until
from tests.cluster import plan
from tests.cluster.ledger import SCRIPT, Known, violations
from tests.cluster.rig import rig

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from tests.cluster.rig import Rig
    from tests.storms import Act

MOST = 40
"""Jobs that wait or run at most: more only wait longer."""
PATIENCE = 600
"""Seconds in which all jobs have to come to their ends once nobody is killed any more."""


@dataclass
class Outcome:
    """What came of a storm."""

    kills: Counter[str] = field(default_factory=Counter)
    life: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def table(self) -> str:
        """Return the table for people, as Markdown."""
        rows = [f"| {kind} | {self.kills[kind]} |" for kind in plan.KILLS]
        total = f"| **all kills** | **{self.kills.total()}** |\n| **violations** | **{len(self.violations)}** |"
        return "\n".join(["| killed | times |", "|---|---|", *rows, total])

    def summary(self) -> str:
        """Return a line on what happened besides."""
        states = ", ".join(f"{count} {state}" for state, count in sorted(self.states.items()))
        return (
            f"{self.life['submit']} jobs submitted, begun {self.attempts} times; in the end {states}; "
            f"{self.seconds / 60:.1f} minutes"
        )


class Storm:
    """Carries out acts on a cluster until there have been enough kills."""

    def __init__(self, here: Rig, tell: Callable[[str], None]) -> None:
        self._here, self._tell = here, tell
        self._known: dict[int, Known] = {}
        self.outcome = Outcome()

    def run(self, acts: Iterator[Act], kills: int) -> Outcome:
        """Return what came of so many kills."""
        begin = time.monotonic()
        does = {kind: getattr(self, f"_{kind}") for kind in plan.KILLS | plan.LIFE}
        while self.outcome.kills.total() < kills:
            act = next(acts)
            time.sleep(act.pause)
            if does[act.kind](act.chance()):
                is_kill = act.kind in plan.KILLS
                (self.outcome.kills if is_kill else self.outcome.life)[act.kind] += 1
                if is_kill and self.outcome.kills.total() % 20 == 0:
                    self._tell(f"{self.outcome.kills.total()} kills, {len(self._known)} jobs")
        self._calm()
        self._judge()
        self.outcome.seconds = time.monotonic() - begin
        return self.outcome

    # --- users ---

    def _living(self) -> list[int]:
        return [job["job"] for job in self._here.ask("queue")["jobs"]]

    def _submit(self, chance: random.Random) -> bool:
        if len(self._living()) >= MOST:
            return False
        known = Known(chance.choice((0, 0, 0, 3)), chance.random() < 0.8)
        script = SCRIPT.format(seconds=round(chance.uniform(0.1, 3.0), 2), status=known.status)
        about = {"nodes": chance.choice((1, 1, 1, 2, 2, 4)), "time": chance.choice((60, 600)), "requeue": known.requeue}
        job_class = chance.choice(("malleable", "malleable", "moldable", "rigid"))
        self._known[self._here.submit(script=script, job_class=job_class, **about)] = known
        return True

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

    def _program(self, chance: random.Random) -> bool:
        """Kill the program of a job, as its user or the kernel might."""
        return self._kill(chance, step=False)

    def _step(self, chance: random.Random) -> bool:
        """Kill what keeps a job on a node: how it ends is lost with it."""
        return self._kill(chance, step=True)

    def _kill(self, chance: random.Random, *, step: bool) -> bool:
        """Kill the step, or the shell that runs the script, of a job that has begun."""
        found = []
        for name in self._here.names:
            for attempt in (self._here.folder / name / "run/steward").glob("*.*"):
                found += [
                    (name, pid, *key)
                    for pid, is_step, key in _processes(self._here, name, attempt.name)
                    if is_step == step
                ]
        if not found:
            return False
        _, pid, number, attempt_number = chance.choice(sorted(found))
        known = self._known[number]
        (known.steps if step else known.programs).add(attempt_number)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    # --- the end ---

    def _calm(self) -> None:
        """Wait until all jobs are over, nobody holds a core, and nodes know of nothing."""
        here = self._here
        self._tell("no more kills; waiting for the last jobs")
        here.await_nodes(up=here.names)
        wait_until(lambda: not self._living(), lambda: f"{here.ask('queue')}\n{here.said(HEAD)[-5000:]}", PATIENCE)
        wait_until(lambda: not any(map(here.tasks, here.names)), lambda: str([here.tasks(name) for name in here.names]))
        spools = [here.folder / name / "run/steward" for name in here.names]
        wait_until(lambda: not [path for spool in spools for path in spool.iterdir()], lambda: str(spools))
        whole = here.submit(script="#!/bin/sh\nexit 0\n", nodes=len(here.names), time=60, job_class="rigid")
        here.await_state(whole, "completed")

    def _judge(self) -> None:
        told = {job["job"]: job for job in whole(self._here.ask, "queue", all=True, last=100_000)["jobs"]}
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
        for name in (HEAD, *self._here.names):
            if "Traceback" in self._here.said(name):
                found.append(f"what runs on {name} has failed: {self._here.said(name)[-2000:]}")


def _processes(here: Rig, name: str, attempt: str) -> list[tuple[int, bool, Any]]:
    """Return the processes of an attempt on a node: pid by our numbers, whether it is the step, and whose they are."""
    number, _, count = attempt.partition(".")
    if not (number.isdecimal() and count.isdecimal()):
        return []
    key = int(number), int(count)
    found, steps = [], {}
    space = Path(f"/proc/{here.network[name].first}/ns/pid").readlink()
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with contextlib.suppress(OSError):
                if (path / "ns/pid").readlink() == space:
                    words = (path / "cmdline").read_bytes().split(b"\0")
                    if words[:2] == [b"drom-step", attempt.encode()]:
                        steps[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                    elif words[1:2] and words[1].endswith(f"/scripts/{attempt}".encode()):
                        found.append((int(path.name), False, key))
    # A child of the step that is about to become the program still looks like it.
    return found + [(pid, True, key) for pid, parent in steps.items() if parent not in steps]


def storm(folder: Path, seed: int, kills: int, tell: Callable[[str], None] = lambda _: None) -> Outcome:
    """Return what came of so many kills on a cluster of four nodes."""
    with rig(folder, "--silence", "60", nodes=4) as here:
        return Storm(here, tell).run(plan.acts(seed), kills)
