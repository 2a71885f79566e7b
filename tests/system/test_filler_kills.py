# SPDX-License-Identifier: Apache-2.0
"""Kills of scheduler, agents and what keeps, saves and restores fillers: none is lost, and none runs twice.

`make chaos-fillers` makes KILLS of them (300) with a SEED.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from drom.agent.system import proc

from tests.agent.checkpoint.conftest import criu
from tests.support.clusters import Cluster, cluster
from tests.support.paths import ROOT
from tests.system.test_fillers import COUNT

KILLS = int(os.environ.get("DROM_FILLER_KILLS", "12"))
SEED = int(os.environ.get("DROM_FILLER_SEED", "1"))
NODES = ("n1", "n2")
FILLERS = 3
LAST = 200
PARTS = ("drom-step", "drom-filler", "runc", "criu")
"""The processes that keep, save and restore fillers."""
DAEMONS = ("scheduler", *NODES)
pytestmark = [pytest.mark.system, pytest.mark.timeout(300 + 20 * KILLS)]


class Storm:
    """Kills on a cluster whose fillers count, and are driven from node to node by regular jobs."""

    def __init__(self, here: Cluster) -> None:
        self._here = here
        self._chance = random.Random(SEED)
        self.kills: Counter[str] = Counter()
        self.fillers: list[int] = []
        (here.folder / "count").write_text(COUNT.format(last=LAST), encoding="utf-8")

    def run(self) -> None:
        """Make the kills. While there are not enough, a filler that is over is replaced by another."""
        while self.kills.total() < KILLS:
            self._keep_full()
            node = self._chance.choice(NODES)
            regular = self._here.submit("-c", "4", "-w", node, "--", "sleep", "0.2")
            time.sleep(self._chance.uniform(0, 0.6))  # the point of time is part of what is drawn
            self._kill(self._chance.choice((*DAEMONS, *PARTS, *PARTS)))
            self._release_held()
            self._here.await_state(regular, "completed", "failed", "node_fail")

    def _keep_full(self) -> None:
        living = [one for one in self._here.ask("queue")["jobs"] if one["job"] in self.fillers]
        for _ in range(FILLERS - len(living)):
            self.fillers.append(self._here.submit("--filler", "-o", "out.%j", "count"))

    def _kill(self, victim: str) -> None:
        if victim == "scheduler":
            self._here.kill()
            self._here.start()
        elif victim in NODES:
            self._here.agents[victim].kill()
            self._here.join(victim)
        elif found := [pid for pid in proc.numbers("/proc") if proc.command(pid) == victim and self._uses(pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._chance.choice(found), signal.SIGKILL)
        else:
            return
        self.kills[victim] += 1

    def _uses(self, pid: int) -> bool:
        """Return whether a process has something of this cluster open."""
        with contextlib.suppress(OSError):  # it has ended
            return any(self._here.folder in path.readlink().parents for path in Path(f"/proc/{pid}/fd").iterdir())
        return False

    def _release_held(self) -> None:
        """Release jobs that are held because they were lost too often."""
        for job in self._here.ask("queue")["jobs"]:
            if job["reason"].startswith("held"):
                self._here.ask("hold", job=job["job"], held=False)

    def judge(self) -> list[str]:
        """Wait until all fillers are over; return what must not be."""
        found = []
        for filler in self.fillers:
            self._release_held()
            job = self._here.await_state(filler, "completed", "failed", "node_fail")
            words = (self._here.folder / f"out.{filler}").read_text("utf-8").split()
            numbers = [int(word) for word in words if word.isdecimal()]  # its shell may report a signal
            if job["state"] != "completed":
                found.append(f"filler {filler} is {job['state']}: {job['reason']}")
            elif set(numbers) != set(range(1, LAST + 1)):
                found.append(f"filler {filler} has left numbers out: {numbers}")
            found += [
                f"filler {filler} ran twice or jumped: {after} follows {before}"
                for before, after in itertools.pairwise(numbers)
                if after > before + 1
            ]
        return found


def test_kills_cost_only_what_was_done_since_the_last_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each filler counts to its end, and goes back at most to its last image."""
    criu()
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{ROOT / 'build' / 'criu'}")
    with cluster(tmp_path, "--policy", "resources", "--filler-lead", "1") as here:
        storm = Storm(here)
        storm.run()
        assert storm.judge() == []
    print(f"seed {SEED}: {dict(storm.kills)}, {len(storm.fillers)} fillers")
