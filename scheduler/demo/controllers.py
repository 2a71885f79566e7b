# SPDX-License-Identifier: Apache-2.0
"""The demonstration of several active schedulers, which share out nodes and lend them for jobs that span.

One of them is killed, with a member of the etcd that has their queues.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drom.agent.cli.console import Console
from drom.agent.errors import ControlError
from drom.agent.ipc import cpu_locks
from drom.agent.testbed.agent_process import AgentProcess, clean_environment, command_of
from drom.agent.text import counted, table
from drom.scheduler.analysis import results
from drom.scheduler.demo import report
from drom.scheduler.demo.jobs import Submission
from drom.scheduler.demo.story import Narrator
from drom.scheduler.live.cli import places
from drom.scheduler.live.cluster.jobs import COMPLETED, FINAL
from drom.scheduler.live.cluster.spec import Spec
from drom.scheduler.testbed import etcd
from drom.scheduler.testbed.local import PATIENCE, await_condition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from drom.scheduler.testbed.etcd import Member

SCHEMA_VERSION = 1
HOMES = ("p1", "p2", "p3")
KILLED = "p2"
NODES = 2
"""The nodes of a home partition."""
CORES = 4
LEASE = 2
MOST_SECONDS = LEASE + 3.0
"""The most seconds until another scheduler leads."""
LOOK = 0.2
"""Seconds between two questions to the schedulers."""
JOBS = 2
SECONDS = 4.0
"""The jobs that each home partition gets at first, and the seconds that each takes."""
WIDE, LONG = 3, 10.0
"""The nodes and seconds of a job that spans home partitions."""
TITLE = "three active schedulers, of which one is killed"
VERDICT = (
    "Every job ran once, two of them on nodes of several home partitions. {seconds:.1f} s after the kill another\n"
    "scheduler led {home}. Nothing is left behind."
)


def run(out: Path, *, as_json: bool, pace: float = 1.0) -> int:
    """Run the demonstration, with results in `out`; jobs take `pace` times as long as usual.

    Return the exit status: 0 if no errors were found, else 1.
    """
    return report.demonstrate(lambda: _run(out, pace, as_json=as_json), as_json=as_json)


def _run(out: Path, pace: float, *, as_json: bool) -> dict[str, Any]:
    etcd.program()
    results.prepare(out)
    paper = Console(silent=as_json)
    paper.write(
        f"{len(HOMES)} schedulers, each with a home partition of {NODES} nodes, and their queues in an etcd of three\n"
        "members: all are real processes on this machine, and the cores of nodes are emulated. Agents name no home\n"
        "partition: each gets that with fewest nodes.\n"
    )
    with tempfile.TemporaryDirectory(prefix="drom-controllers-") as folder, ExitStack() as stack:
        stage = Stage(Path(folder), stack.enter_context(etcd.running(Path(folder), 3)), paper, stack)
        _play(stage, pace, paper)
        paper.heading("Jobs that span home partitions")
        paper.write("\n".join(table(["JOB", "HOME", "NODES", "STATE"], stage.wide_rows())) + "\n")
        paper.heading("Who led which home partition")
        paper.write("\n".join(table(["HOME", "AT FIRST", "AFTER THE KILL", "AT THE END", "JOBS"], stage.rows())) + "\n")
        value = {"schema_version": SCHEMA_VERSION, "seconds": stage.seconds, "problems": stage.problems()}
        value["summary"] = report.account_of(stage.history, TITLE, out, paper)
    if not value["problems"]:
        paper.write("\n" + paper.ink(VERDICT.format(seconds=stage.seconds, home=KILLED), "1;32") + "\n")
    return value


def _play(stage: Stage, pace: float, paper: Console) -> None:
    paper.heading("Users submit jobs at each scheduler")
    stage.submit_everywhere(JOBS, SECONDS * pace)
    paper.heading(f"A job in {KILLED} needs {WIDE} nodes, and {KILLED} has {NODES}")
    first = stage.submit(KILLED, LONG * pace, WIDE)
    stage.until(lambda: stage.job(first)["started"] is not None)
    paper.heading(f"The scheduler of {KILLED} and a member of etcd are killed")
    stage.kill()
    stage.submit_everywhere(1, SECONDS * pace)
    paper.heading(f"{KILLED} gets another such job from the scheduler that leads it now")
    second = stage.submit(KILLED, SECONDS * pace, WIDE)
    stage.until(lambda: stage.job(first)["state"] in FINAL and stage.job(second)["started"] is not None)
    paper.heading("Both are started again")
    stage.bring_back()
    stage.submit_everywhere(1, SECONDS * pace)
    stage.until(lambda: all(job["state"] in FINAL for job in stage.history["jobs"]))
    stage.await_returns()


class Stage:
    """The cluster: its processes end with `stack`."""

    def __init__(self, folder: Path, members: list[Member], paper: Console, stack: ExitStack) -> None:
        self._folder, self._members, self._paper, self._stack = folder, members, paper, stack
        self._states = {home: folder / home for home in HOMES}
        self._schedulers = {home: self._scheduler(home) for home in HOMES}
        self._narrator = Narrator(time.time(), CORES)
        self.history: dict[str, Any] = {}
        self._led: list[dict[str, str]] = []
        """Who leads each home partition: at first, after the kill, and at the end."""
        self.seconds = 0.0
        """The time from the kill of a scheduler until another one leads its home partition."""
        for number in range(NODES * len(HOMES)):
            self._agent(f"n{number + 1}")
        await_condition(lambda: self._nodes_up() == NODES * len(HOMES))
        self._homes: dict[str, str] = {node["name"]: node["home"] for node in self._ask("nodes")["nodes"]}
        """The home partition of each node."""
        self._note_leaders()
        self._narrator.begin = time.time()

    def _scheduler(self, home: str) -> AgentProcess:
        store = f"etcd://{','.join(member.at for member in self._members)}/demo"
        words = ["scheduler", "--state", str(self._states[home]), "--policy", "fcfs", "--name", "controllers"]
        words += ["--store", store, "--lease", str(LEASE), "--home-partition", home]
        # Plain Python gives the same answers, and starts immediately on a machine that has compiled nothing.
        about = {"NUMBA_DISABLE_JIT": "1"}
        return self._start(home, words, about)

    def _agent(self, name: str) -> None:
        claimed = self._folder / "claims"
        claimed.mkdir(exist_ok=True)
        addresses = ",".join(f"ipc://{state}/agents" for state in self._states.values())
        words = ["agent", "--emulate", f"pack:1 core:{CORES} pu:1", "--runtime-dir", str(self._folder / name)]
        words += ["--node", name, "--scheduler", addresses]
        self._start(name, words, {cpu_locks.VARIABLE: str(claimed)})

    def _start(self, name: str, words: list[str], about: dict[str, str]) -> AgentProcess:
        log = self._folder / f"{name}.log"
        started = AgentProcess(command_of(*words), log, clean_environment() | about, apart=True)
        self._stack.callback(started.close, PATIENCE)
        if not started.await_ready(PATIENCE):
            raise ControlError(f"{name} does not start: {started.last_words()}")
        return started

    def _ask(self, order: str, **fields: Any) -> Any:  # noqa: ANN401 - JSON values
        return places.ask([*self._states.values()], order, **fields)

    def _nodes_up(self) -> int:
        return sum(node["state"] == "up" for node in self._ask("nodes")["nodes"])

    def _note_leaders(self) -> None:
        self._led.append({row["home"]: row["leader_home"] for row in self._ask("homes")["homes"]})

    # --- what happens ---

    def submit_everywhere(self, count: int, seconds: float) -> None:
        """Submit so many jobs in each home partition, and report that."""
        for home in HOMES:
            for _ in range(count):
                self.submit(home, seconds, 1)
        self._look()

    def submit(self, home: str, seconds: float, nodes: int) -> int:
        """Submit a job in a home partition, and return its number."""
        name, variables = f"job{len(self._narrator.jobs) + 1}", {"PATH": os.environ["PATH"]}
        script = f"#!/bin/sh\necho {name} >> {self._folder}/ran\nsleep {seconds:g}\n"
        spec = Spec(script=script, name=name, folder=str(self._folder), time=60, environment=variables, nodes=nodes)
        number: int = self._ask("submit", jobs=[spec.to_json()], home=home)["jobs"][0]
        self._narrator.jobs[number] = Submission(0.0, f"{name} of {home}", nodes, seconds, 60)
        return number

    def job(self, number: int) -> dict[str, Any]:
        """Return a job as it was when the schedulers were asked last."""
        return next(job for job in self.history["jobs"] if job["job"] == number)

    def kill(self) -> None:
        """Kill a scheduler and the leader of etcd, and wait until another scheduler has adopted the home partition."""
        begin = time.monotonic()
        self._schedulers[KILLED].process.kill()
        next(member for member in self._members if member.is_leader).end()
        await_condition(lambda: self._leader_of(KILLED) not in (None, KILLED))
        self.seconds = time.monotonic() - begin
        self._note_leaders()
        self._paper.write(f"{self.seconds:.1f} s later the scheduler of {self._led[-1][KILLED]} leads {KILLED}.\n")

    def bring_back(self) -> None:
        """Start what was killed, and wait until its home partition was given back."""
        for member in self._members:
            if member.process is None:
                member.start()
        self._schedulers[KILLED] = self._scheduler(KILLED)
        await_condition(lambda: self._leader_of(KILLED) == KILLED)
        self._note_leaders()
        self._paper.write(f"The scheduler of {KILLED} leads its home partition again.\n")

    def await_returns(self) -> None:
        """Wait until all borrowed nodes are back in their home partitions."""
        await_condition(lambda: not any(node["borrower"] for node in self._ask("nodes")["nodes"]))

    def _leader_of(self, home: str) -> str | None:
        leaders: dict[str, str | None] = {row["home"]: row["leader_home"] for row in self._ask("homes")["homes"]}
        return leaders[home]

    def until(self, condition: Callable[[], bool]) -> None:
        """Report what happens until a condition holds. Raises ControlError if it does not in time."""
        await_condition(lambda: self._look() and condition())

    def _look(self) -> bool:
        time.sleep(LOOK)
        self.history = self._ask("history", last=1000)
        for line in self._narrator.hear(self.history["entries"]):
            self._paper.write(f"{line}\n")
        return True

    # --- what came of it ---

    def rows(self) -> list[list[str]]:
        """Return a row for each home partition: the leaders, and how many of its jobs have completed."""
        done = Counter(job["home"] for job in self.history["jobs"] if job["state"] == COMPLETED)
        return [[home, *(led[home] for led in self._led), str(done[home])] for home in HOMES]

    def wide_rows(self) -> list[list[str]]:
        """Return a row for each job of several nodes: where it was."""
        wide = [job for job in self.history["jobs"] if len(job["shares"]) > 1]
        return [[job["name"], job["home"], self._where(job["shares"]), job["state"]] for job in wide]

    def _where(self, nodes: Iterable[str]) -> str:
        return ", ".join(f"{name} of {self._homes[name]}" for name in nodes)

    def problems(self) -> list[str]:
        """Return what went wrong, a sentence for each."""
        ran = (self._folder / "ran").read_text(encoding="utf-8").split()
        return judge(self.history["jobs"], ran, len(self._narrator.jobs), self.seconds, self._homes)


def judge(
    jobs: list[dict[str, Any]], ran: list[str], submitted: int, seconds: float, homes: dict[str, str]
) -> list[str]:
    """Return what went wrong: `ran` has the names of jobs as they began, `seconds` passed until another one led.

    `homes` are the home partitions of nodes.
    """
    times, sizes = Counter(ran), Counter(homes.values())
    found = [f"{job['name']} is {job['state']}." for job in jobs if job["state"] != COMPLETED]
    found += [f"{home} has {counted(sizes[home], 'node')}, and not {NODES}." for home in HOMES if sizes[home] != NODES]
    if not any(len({homes[node] for node in job["shares"]}) > 1 for job in jobs):
        found.append("no job was on nodes of several home partitions.")
    found += [f"{name} ran {counted(count, 'time')}." for name, count in times.items() if count != 1]
    if missing := submitted - len(times):
        found.append(f"{counted(missing, 'job')} did not run.")
    if seconds > MOST_SECONDS:
        took = f"it took {seconds:.1f} s until another scheduler led {KILLED}, more than {MOST_SECONDS:g} s"
        found.append(f"{took}: try again when this machine has less to do.")
    return found
