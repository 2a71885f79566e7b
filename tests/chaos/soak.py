# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.chaos.soak`: one agent in a storm that it has to outlive, and whether it grows meanwhile."""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from drom.agent.system.unix_signals import ended_by_sigterm

from tests.chaos import plan
from tests.chaos.stage import REAL, Clock, Stage, stage
from tests.chaos.storm import Outcome, Storm
from tests.support import checker
from tests.support.agents import SECONDS, anonymous_memory
from tests.support.openmp_registrations import no_registrations

if TYPE_CHECKING:
    from collections.abc import Callable

WARM_UP = 0.15
"""Part of the time after which the agent has met everything that it keeps."""
BETWEEN_LOOKS = 2.0
MOST_MB = 5.0


@dataclass(frozen=True, slots=True)
class Look:
    """An agent at one moment: its age in seconds, anonymous memory in millions of bytes, and what it has open."""

    age: float
    memory_mb: float
    descriptors: int
    sockets: int
    pidfds: int
    threads: int
    tasks: int


def look(pid: int, age: float, tasks: int) -> Look:
    """Return what an agent has now."""
    files = [_target(file) for file in Path(f"/proc/{pid}/fd").iterdir()]
    sockets, pidfds = (sum(word in file for file in files) for word in ("socket:", "[pidfd]"))
    threads = psutil.Process(pid).num_threads()
    return Look(age, anonymous_memory(pid) / 1e6, len(files), sockets, pidfds, threads, tasks)


def _target(file: Path) -> str:
    """Return what a descriptor stands for; nothing for one that has just been closed."""
    try:
        return str(file.readlink())
    except FileNotFoundError:
        return ""


@dataclass
class Soak:
    """Looks at the agent of a stage while a storm blows, and scrapes its metrics as Prometheus would."""

    stage: Stage
    seconds: float
    looks: list[Look] = field(default_factory=list)
    _begin: float = field(default_factory=time.monotonic)
    _address: str = ""

    def is_over(self, outcome: Outcome) -> bool:
        """Look from time to time; say whether there has been enough."""
        del outcome
        age = time.monotonic() - self._begin
        if self.stage.agent and (not self.looks or age >= self.looks[-1].age + BETWEEN_LOOKS):
            self._scrape()
            reading = checker.read(self.stage.dir)
            self.looks.append(look(self.stage.agent.pid, age, len(reading.slots) if reading else 0))
        return age >= self.seconds

    def _scrape(self) -> None:
        if not self._address and self.stage.agent:
            port = self.stage.agent.await_log(r"event=metrics .*port=(\d+)")[1]
            self._address = f"http://127.0.0.1:{port}/metrics"
        with urllib.request.urlopen(self._address, timeout=SECONDS) as answer:
            answer.read()

    def compared(self) -> tuple[Look, Look]:
        """Return the median look of the time right after the warm-up, and of as much time at the end."""
        first, last = self.seconds * WARM_UP, self.seconds * (1 - WARM_UP)
        early = [one for one in self.looks if first <= one.age < 2 * first]
        return _median(early), _median([one for one in self.looks if one.age >= last])


def _median(looks: list[Look]) -> Look:
    return Look(*(statistics.median(values) for values in zip(*map(dataclasses.astuple, looks), strict=True)))


def soak(folder: Path, seed: int, seconds: float, tell: Callable[[str], None]) -> tuple[Outcome, Soak]:
    """Return what came of so many seconds of storm, which a violation ends before, and the looks at the agent."""
    node = dataclasses.replace(REAL, options={**REAL.options, "metrics": "127.0.0.1:0"})
    clock = Clock(folder)
    with clock.in_force(), stage(folder / "0", node, compiled=True) as made:
        watched = Soak(made, seconds)
        outcome = Storm(made, clock, tell).run(plan.acts(seed, without=plan.DEADLY), watched.is_over)
    return outcome, watched


@ended_by_sigterm()
def main() -> int:
    """Run the storm; return 1 when anything was violated, or the agent has grown too much."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="what is to happen (%(default)s)")
    options = parser.parse_args()
    with no_registrations(), tempfile.TemporaryDirectory(prefix="drom-soak-", dir="/tmp") as folder:
        outcome, watched = soak(Path(folder), options.seed, options.minutes * 60, lambda _: None)
    come = outcome.life["a program comes"]
    print(f"{come} programs and {outcome.faults.total()} faults in {outcome.seconds / 60:.1f} minutes\n")
    if outcome.seconds < watched.seconds:
        print("\n".join(outcome.violations))
        return 1
    early, late = watched.compared()
    grown = late.memory_mb - early.memory_mb
    print("| agent | after warm-up | at the end |\n|---|---|---|")
    print(f"| anonymous memory, MB | {early.memory_mb:.1f} | {late.memory_mb:.1f} |")
    for name in ("descriptors", "sockets", "pidfds", "threads", "tasks"):
        print(f"| {name} | {getattr(early, name):g} | {getattr(late, name):g} |")
    print("\n".join(outcome.violations) or "no violations")
    return bool(outcome.violations or grown > MOST_MB)


if __name__ == "__main__":
    sys.exit(main())
