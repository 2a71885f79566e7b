# SPDX-License-Identifier: Apache-2.0
"""A cluster of namespaces as tests want it: jobs that say what they do, waits with a deadline, logs when it fails."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from drom.agent.execution.launch import job_name
from drom.agent.ipc import cpu_locks
from drom.scheduler.testbed.cluster import HEAD, Cluster

from dromlib.cpulist import parse_cpulist
from tests.support.agents import SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from drom.scheduler.testbed.namespaces import Process

QUICK = ("--silence", "3", "--give-up", "3", "--kill-wait", "1")
"""Options of a scheduler that gives up soon, so that tests need not wait."""


class Rig(Cluster):
    """A cluster whose jobs leave their traces in its folder `work`."""

    def tasks(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of `drom ps` on a node, none where no agent runs."""
        return super().tasks(name) if self.agents[name].poll() is None else []

    def endless(self, name: str, **fields: Any) -> int:
        """Submit a job that says where and in which attempt it runs, a line each time, until it is ended."""
        script = f"#!/bin/sh\necho $DROM_JOB_ATTEMPT $(hostname) >> {name}\nexec sleep inf\n"
        return self.submit(script=script, name=name, **fields)

    def lines(self, name: str) -> list[str]:
        """Return what a job has written into a file of its own."""
        file = self.work / name
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def output(self, number: int) -> str:
        """Return the output of a job."""
        return "\n".join(self.lines(f"drom-{number}.out"))

    def await_lines(self, name: str, count: int) -> list[str]:
        """Wait until a job has written so many lines, and return them."""
        return wait_until(
            lambda: lines if len(lines := self.lines(name)) >= count else None,
            lambda: f"{self.lines(name)}\n{self.said(HEAD)}",
        )

    def job(self, number: int) -> dict[str, Any]:
        """Return all about a job."""
        value: dict[str, Any] = self.ask("job", job=number)
        return value

    def await_state(self, number: int, *states: str) -> dict[str, Any]:
        """Wait until a job is in one of these states."""
        return wait_until(
            lambda: value if (value := self.job(number))["state"] in states else None,
            lambda: f"{self.job(number)}\n{self.output(number)}\n{self.said(HEAD)}",
            2 * SECONDS,
        )

    def await_node(self, name: str, *states: str) -> None:
        """Wait until a node is in one of these states."""

        def state() -> str:
            return next(str(node["state"]) for node in self.ask("nodes")["nodes"] if node["name"] == name)

        wait_until(lambda: state() in states, lambda: f"{name} is {state()}\n{self.said(HEAD)}")

    def await_said(self, name: str, words: str) -> None:
        """Wait until scheduler or agent of a machine has said something."""
        wait_until(lambda: words in self.said(name), lambda: self.said(name))

    def held(self, number: int) -> dict[str, int]:
        """Return the cores that the tasks of a job hold, by node."""
        found = {}
        for name in self.names:
            tasks = [row for row in self.tasks(name) if row["job"] == job_name(number)]
            if tasks:
                found[name] = sum(parse_cpulist(row["held"]).bit_count() for row in tasks)
        return found

    def await_held(self, number: int, cores: dict[str, int]) -> None:
        """Wait until the tasks of a job hold so many cores of these nodes, and no others."""
        wait_until(
            lambda: self.held(number) == cores,
            lambda: f"{self.held(number)}\n{self.output(number)}\n{self.said(HEAD)}",
        )

    def steps(self, number: int) -> dict[tuple[str, int], int]:
        """Return the steps that each rank of a job has made, by node and pid there."""
        rows = [(name, row) for name in self.names for row in self.tasks(name) if row["job"] == job_name(number)]
        return {(name, row["pid"]): row["progress"] for name, row in rows}

    def await_steps(self, number: int, ranks: int, more_than: int = 0) -> dict[tuple[str, int], int]:
        """Wait until so many ranks of a job have made more steps than that."""

        def there() -> dict[tuple[str, int], int] | None:
            steps = self.steps(number)
            return steps if len(steps) == ranks and min(steps.values()) > more_than else None

        return wait_until(there, lambda: f"{self.steps(number)}\n{self.output(number)}\n{self.said(HEAD)}")

    def try_agent(self, name: str, node: str, keys: Path, within: Iterable[str] = ()) -> Process:
        """Start one more agent, `within` a command on the machine `name`, which names `node` and shows these keys."""
        home = self.folder / f"stranger{len(list(self.folder.glob('stranger*')))}"
        (home / "claims").mkdir(parents=True)
        words = ["--runtime-dir", str(home / "run"), "--emulate", f"pack:1 core:{self.cores} pu:1"]
        words += ["--scheduler", self.address, "--node", node, "--remote-keys", str(keys)]
        return self.run_on(name, ["agent", *words], home / "log", within, {cpu_locks.VARIABLE: str(home / "claims")})

    def clear(self) -> None:
        """End all jobs, and wait until nothing of them is left."""
        for job in self.ask("queue")["jobs"]:
            self.ask("cancel", job=job["job"])
        wait_until(lambda: not self.ask("queue")["jobs"], lambda: self.ask("queue"))
        wait_until(lambda: not any(map(self.tasks, self.names)), lambda: self.said(HEAD))
        for path in self.work.iterdir():
            if path.name != "ring":
                path.unlink()


class RealRig(Rig):
    """A cluster each of whose nodes has a CPU of this machine."""

    def start_agent(self, name: str, *more: str, within: Iterable[str] = (), **variables: str) -> None:
        """Start the agent of a node on its CPU."""
        cpu = sorted(os.sched_getaffinity(0))[self.names.index(name)]
        alone = ("taskset", "-c", str(cpu), *within)
        super().start_agent(name, *(more or ("--topology", "core:1")), within=alone, **variables)


class PairRig(Rig):
    """A cluster each of whose nodes has the same two CPUs of this machine: their agents do not meet."""

    def start_agent(self, name: str, *more: str, within: Iterable[str] = (), **variables: str) -> None:
        """Start the agent of a node on the two CPUs."""
        both = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
        alone = ("taskset", "-c", both, *within)
        super().start_agent(name, *(more or ("--topology", "core:2")), within=alone, **variables)


class SocketRig(Rig):
    """A cluster each of whose nodes emulates two sockets of four cores with two hardware threads."""

    def start_agent(self, name: str, *more: str, within: Iterable[str] = (), **variables: str) -> None:
        """Start the agent of a node with its sockets."""
        super().start_agent(name, *(more or ("--emulate", "pack:2 core:4 pu:2")), within=within, **variables)


@contextlib.contextmanager
def rig(folder: Path, *options: str, nodes: int = 3, cores: int = 4, kind: type[Rig] = Rig) -> Iterator[Rig]:
    """Run a cluster for a block, under SD-Policy unless the options say another; after it nothing may be left.

    What was said is shown when it fails.
    """
    freely = () if "--policy" in options else ("--set", "max_slowdown=infinite")
    here = kind(folder, *QUICK, *freely, *options, nodes=nodes, cores=cores)
    try:
        with here:
            yield here
            here.clear()
            assert here.stop() == []
    except BaseException:
        for name in (HEAD, *here.names):
            print(f"--- {name}\n{here.said(name)}")
        raise
    for name in (HEAD, *here.names):
        assert "Traceback" not in here.said(name), here.said(name)
