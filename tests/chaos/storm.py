# SPDX-License-Identifier: Apache-2.0
"""A storm: acts on a stage one after the other, with a calm now and then in which everything has to come right."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos import plan
from tests.chaos.faults import Faults
from tests.support import checker
from tests.support.agents import START_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.chaos.stage import Clock, Stage
    from tests.support.storms import Act

BETWEEN_CALMS = 30
"""Faults."""
PATIENCE = 60
"""Seconds after which what has not come right never will."""


@dataclass
class Outcome:
    """What came of storms: faults by kind, what was violated, and the seconds from each calm to a clean node."""

    faults: Counter[str] = field(default_factory=Counter)
    life: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    calms: list[float] = field(default_factory=list)
    readings: int = 0
    seconds: float = 0.0

    def __iadd__(self, other: Outcome) -> Outcome:  # noqa: PYI034 - Self is of Python 3.11
        """Add what came of another storm."""
        self.faults += other.faults
        self.life += other.life
        self.violations += other.violations
        self.calms += other.calms
        self.readings += other.readings
        self.seconds += other.seconds
        return self

    def table(self) -> str:
        """Return the table for people, as Markdown."""
        rows = [f"| {kind} | {self.faults[kind]} |" for kind in plan.FAULTS]
        total = f"| **all faults** | **{self.faults.total()}** |\n| **violations** | **{len(self.violations)}** |"
        return "\n".join(["| fault | injected |", "|---|---|", *rows, total])

    def summary(self) -> str:
        """Return a line on what happened besides."""
        worst = max(self.calms, default=0.0)
        return (
            f"{self.life['a program comes']} programs launched, {self.readings} readings of the registry, "
            f"{len(self.calms)} calms, each clean within {worst:.1f} s; {self.seconds / 60:.1f} minutes"
        )


class Storm:
    """Carries out acts on a stage until there have been enough faults."""

    def __init__(self, stage: Stage, clock: Clock, tell: Callable[[str], None]) -> None:
        self.outcome = Outcome()
        self._stage = stage
        self._faults = Faults(stage, clock)
        self._tell = tell
        self._full = False

    def run(self, acts: Iterator[Act], enough: Callable[[Outcome], bool]) -> Outcome:
        """Return what came of it; it ends at the first violation that the stage itself shows."""
        begin = time.monotonic()
        what = "proc" if self._real else "registry"
        watch = [sys.executable, "-m", "tests.chaos.watch", str(self._stage.dir), what]
        with subprocess.Popen(watch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watcher:
            try:
                self._blow(acts, enough)
            except AssertionError as error:
                self.outcome.violations.append(str(error))
            finally:
                self._faults.undo()
                seen = json.loads(watcher.communicate()[0])
        self.outcome.readings = seen["readings"]
        self.outcome.violations += seen["violations"]
        self.outcome.seconds = time.monotonic() - begin
        return self.outcome

    @property
    def _real(self) -> bool:
        return not self._stage.node.emulated

    def _blow(self, acts: Iterator[Act], enough: Callable[[Outcome], bool]) -> None:
        since = 0
        while not enough(self.outcome):
            act = next(acts)
            time.sleep(act.pause)
            if not self._faults.does[act.kind](act.chance()):
                continue
            is_fault = act.kind in plan.FAULTS
            (self.outcome.faults if is_fault else self.outcome.life)[act.kind] += 1
            self._full |= act.kind == "file system full"
            since += is_fault
            if since >= BETWEEN_CALMS:
                self._calm()
                since = 0
        self._calm()
        self._end()

    def _calm(self) -> None:
        """Let go of everything, and wait until all is as it should be."""
        self._faults.undo()
        self._see_to_the_agent()
        self._stage.end_strays()
        begin = time.monotonic()
        found: list[str] = []

        def clean() -> bool:
            nonlocal found
            self._stage.end_strays()
            found = self._wrong()
            return not found

        wait_until(clean, lambda: "\n".join([*found, self._log()]), PATIENCE)
        self.outcome.calms.append(time.monotonic() - begin)
        assert "Traceback" not in self._log(), self._log()
        self._look_at_programs()
        self._tell(f"{self.outcome.faults.total()} faults, {len(self.outcome.violations)} violations")

    def _log(self) -> str:
        return self._stage.agent.log if self._stage.agent else ""

    def _see_to_the_agent(self) -> None:
        """Have an agent that is ready. Only where the file system was full may one have ended by itself."""
        agent = self._stage.agent
        assert agent
        try:
            agent.await_log("event=ready", START_SECONDS)
        except AssertionError as error:
            if agent.process.poll() is None:
                raise AssertionError(f"{error}\n{_what_it_does(agent.pid)}") from error
        if agent.process.poll() is not None:
            assert self._full, f"the agent ended by itself: {agent.log}"
            assert "Traceback" not in agent.log, agent.log
            self._stage.start_agent(ready=True)
        self._full = False

    def _wrong(self) -> list[str]:
        """Return what is not as it should be, left out how much of its grant a program uses that was tampered with."""
        reading = checker.read(self._stage.dir)
        if reading is None:
            return ["there is no registry"]
        excused = {program.pid for program in self._stage.programs if program.excused}
        found = [f"{slot} has not settled" for slot in reading.slots if not slot.waiting and not slot.settled]
        if reading.slots and all(slot.waiting for slot in reading.slots):
            found.append("everybody waits and nobody runs")
        shown = checker.check(self._stage.dir)
        return found + [
            text for text in shown if not ("its threads use" in text and any(f"pid {pid}," in text for pid in excused))
        ]

    def _look_at_programs(self) -> None:
        said = (self._stage.folder / "out").read_text(encoding="utf-8", errors="replace")
        self.outcome.violations += [f"a program says {line}" for line in said.splitlines() if line.startswith("wrong:")]
        self.outcome.violations += self._stage.faults_of_programs

    def _end(self) -> None:
        """Let all programs end, and the agent stop: it leaves nothing."""
        for program in self._stage.programs:
            program.signal(signal.SIGKILL)
        self._stage.end_strays(everybody=True)
        agent = self._stage.agent
        assert agent
        wait_until(self._gone, lambda: checker.read(self._stage.dir), PATIENCE)
        agent.stop()

    def _gone(self) -> bool:
        self._stage.end_strays(everybody=True)
        reading = checker.read(self._stage.dir)
        return reading is not None and not reading.slots


def read_log(folder: Path) -> str:
    """Return all that the agents of a stage have logged."""
    return (folder / "log").read_text(encoding="utf-8", errors="replace")


def _what_it_does(pid: int) -> str:
    """Return what the kernel tells of a process that stands still."""
    told = []
    for name in ("cmdline", "status", "wchan", "stack", "syscall"):
        with contextlib.suppress(OSError):
            told.append(f"{name}: {Path(f'/proc/{pid}/{name}').read_text(encoding='utf-8', errors='replace')}")
    return "\n".join(told)
