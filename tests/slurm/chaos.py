# SPDX-License-Identifier: Apache-2.0
"""A storm over a real Slurm with drom: jobs come, and its daemons are killed again and again.

No job may be lost, run twice, or wait longer than the gate may stay closed without a daemon and a minute more; no core
may be held by two tasks at a time. Where Slurm itself starts a job again, as after its slurmd was killed, that counts
as once. slurmctld is stopped and not killed: killed, it forgets what it has not saved, with or without drom.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import sys
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from drom.agent.control.client import order
from drom.agent.errors import ControlError
from drom.scheduler.demo.story import double
from drom.scheduler.slurm.actor import LEASE_MIN
from drom.scheduler.testbed.namespaces import MachineError
from drom.scheduler.testbed.slurm import (
    HEAD,
    RUN,
    SlurmCluster,
    build_plugin,
    plugin_line,
    why_no_slurm,
    write_job_submit,
)

from dromlib import native

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drom.scheduler.testbed.namespaces import Process

SETTINGS = """\
JobSubmitPlugins=lua
Licenses=drom_gate:1000000
PriorityType=priority/multifactor
PartitionName=main Nodes={nodes} Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:2
"""
SCRIPT = "echo begin $SLURM_JOB_ID $(date +%s) >> {log}; {run} sleep {seconds}; echo end $SLURM_JOB_ID >> {log}"
LONGEST_WAIT = 60.0 * LEASE_MIN + 60
"""Seconds that a job may wait after the last kill, though nodes are idle."""
AT_ONCE = 6
"""Jobs that wait or run at a time."""


@dataclass(slots=True)
class Storm:
    """The storm on one cluster: what it has done, and what it found wrong."""

    cluster: SlurmCluster
    chance: random.Random
    stack: ExitStack
    kills: Counter[str] = field(default_factory=Counter)
    jobs: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    looks: int = 0
    daemon: Process | None = None

    def start_daemon(self) -> None:
        """Start the daemon, which ends with the storm."""
        self.daemon = self.stack.enter_context(self.cluster.decided("main"))

    def run(self, kills: int) -> None:
        """Kill so many daemons while jobs come, then wait until all jobs have ended."""
        self.start_daemon()
        while self.kills.total() < kills:
            self._submit_some()
            self._look()
            self._kill()
            for _ in range(self.chance.randrange(1, 6)):
                self._look()
                time.sleep(0.2)
        began = time.monotonic()
        while waiting := self._waiting():
            self._look()
            if time.monotonic() - began > LONGEST_WAIT:
                state = " ".join(self.cluster.ask("squeue", "-h", "-o", "%i %T %r %W %S %N").split())
                self.faults.append(f"{waiting} still wait or run {LONGEST_WAIT:g} s after the last kill: {state}")
                return
            time.sleep(0.5)
        self._judge()

    def _waiting(self) -> list[str]:
        """Return the jobs that wait or run, and release those that Slurm holds since it could not start them."""
        rows = [line.partition(" ") for line in self.cluster.ask("squeue", "-h", "-o", "%i %r").splitlines()]
        for number, _, reason in rows:
            if reason == "launch failed requeued held":
                self.cluster.ask("scontrol", "release", number)
        return [number for number, _, _ in rows]

    def _submit_some(self) -> None:
        for _ in range(AT_ONCE - len(self._waiting())):
            seconds, nodes = self.chance.randrange(1, 8), self.chance.choice((1, 1, 1, 2))
            script = SCRIPT.format(log=self.cluster.work / "log", run=native.run_path(), seconds=seconds)
            kind = ("--malleable=1:4",) if self.chance.random() < 0.8 else ()
            options = (f"-N{nodes}", f"-n{nodes}", "-c4", f"-t{self.chance.choice((1, 5, 60))}", *kind)
            self.jobs.append(self.cluster.submit(script, *options))

    def _kill(self) -> None:
        cluster, what = self.cluster, self.chance.choice(("daemon", "agent", "slurmd", "slurmctld"))
        name = self.chance.choice(cluster.names)
        if what == "daemon" and self.daemon:
            self.daemon.end(signal.SIGKILL)
            self.start_daemon()
        elif what == "agent":
            cluster.agents[name].end(signal.SIGKILL)
            cluster.start_agent(name)
        elif what == "slurmd":
            cluster.daemons[name].end(signal.SIGKILL)
            cluster.start_slurmd(name)
        else:
            cluster.daemons[HEAD].end(signal.SIGTERM)
            cluster.start_slurmctld()
        self.kills[what] += 1

    def _look(self) -> None:
        """Check that no core of a node is held by two tasks."""
        for name in self.cluster.names:
            try:
                rows = order(self.cluster.from_outside(name, RUN), "ps")["tasks"]
            except ControlError:
                continue
            if complaint := double(rows):
                self.faults.append(f"{name}: {complaint}")
        self.looks += 1

    def _judge(self) -> None:
        """Check that each job has ended once, and begun once for each time that Slurm started it."""
        log = self.cluster.work / "log"
        found: dict[str, Counter[int]] = defaultdict(Counter)
        for word, number in re.findall(r"^(begin|end) (\d+)", log.read_text(encoding="utf-8"), re.MULTILINE):
            found[word][int(number)] += 1
        for number in self.jobs:
            begun, ended = found["begin"][number], found["end"][number]
            state = self.cluster.ask("scontrol", "-o", "show", "job", str(number))
            about = " ".join(re.findall(r"\b(?:JobState|Reason|Restarts|ExitCode)=\S+", state))
            restarts = int(re.findall(r"Restarts=(\d+)", about)[0])
            if ended != 1 or not 1 <= begun <= 1 + restarts:
                self.faults.append(f"job {number} has begun {begun} and ended {ended} times: {about}.")


def main(words: Sequence[str]) -> int:
    """Run a storm and print what came of it. Return 1 if something went wrong, otherwise 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given = parser.parse_args(words)
    if reason := why_no_slurm():
        sys.stderr.write(f"chaos-slurm: {reason}\n")
        return 1
    print(f"chaos-slurm: {given.kills} kills, seed {given.seed}", flush=True)
    with TemporaryDirectory(prefix="drom-slurm-") as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        write_job_submit(folder, gated="main")
        plugin = plugin_line(build_plugin(folder), 60)
        cluster = stack.enter_context(SlurmCluster(folder, settings=SETTINGS, plugstack=plugin, prefix="c"))
        storm = Storm(cluster, random.Random(given.seed), stack)
        try:
            storm.run(given.kills)
        except MachineError as error:
            storm.faults.append(str(error))
    kills = ", ".join(f"{count} of {what}" for what, count in sorted(storm.kills.items()))
    print(f"{storm.kills.total()} kills ({kills}), {len(storm.jobs)} jobs, {storm.looks} looks at all nodes")
    for fault in storm.faults:
        print(f"violation: {fault}")
    print(f"{len(storm.faults)} violations")
    return 1 if storm.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
