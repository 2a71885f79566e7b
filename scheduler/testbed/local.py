# SPDX-License-Identifier: Apache-2.0
"""A private cluster on this machine: a scheduler, an agent with emulated or real cores per node, and a client.

Its processes end with this process in any case; those of jobs stay if this process is killed. They have their own
sessions, so that Ctrl-C reaches only the process that runs the cluster.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from drom.agent.control import client
from drom.agent.errors import ControlError
from drom.agent.ipc import cpu_locks
from drom.agent.testbed.agent_process import AgentProcess, clean_environment, command_of
from drom.scheduler.live.cluster.jobs import COMPLETED
from drom.scheduler.live.cluster.paging import all_pages
from drom.scheduler.live.cluster.spec import SERVICE, Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

Process = subprocess.Popen[bytes]
PATIENCE = 300.0
"""Seconds after which a part that does not answer counts as failed."""
LOOK_S = 0.01
"""Seconds between two checks of a condition."""


class Client:
    """One connection to a scheduler, for many orders. Raises ControlError if it has ended, is silent, or refuses."""

    def __init__(self, state: Path) -> None:
        self._connection = client.Connection(state, SERVICE, PATIENCE)
        self.close = self._connection.close

    def ask(self, name: str, **fields: object) -> Any:  # noqa: ANN401 - a JSON value
        """Give an order and return the answer."""
        return all_pages(self._connection.order, name, **fields)

    def is_served(self) -> bool:
        """Return whether the scheduler accepts orders: it listens, and has compiled its policy."""
        try:
            self.ask("nodes")
        except ControlError:
            return False
        return True

    def submit(self, home: Path, *command: str, **more: object) -> int:
        """Submit a job and return its number."""
        spec = Spec(command=command, folder=str(home), time=600, environment={"PATH": os.environ["PATH"]})
        jobs = self.ask("submit", jobs=[spec.to_json() | more])["jobs"]
        return int(jobs[0])

    def await_nodes(self, count: int, agents: Sequence[Process] = ()) -> None:
        """Wait until `count` nodes are up. Raises ControlError after `PATIENCE`, or if one of the agents has ended."""
        await_condition(lambda: sum(node["state"] == "up" for node in self.ask("nodes")["nodes"]) == count, agents)

    def await_end(self, job: int) -> None:
        """Wait until a job is over. Raises ControlError if it did not complete."""
        await_condition(lambda: self.ask("job", job=job)["ended"] is not None)
        state = self.ask("job", job=job)["state"]
        if state != COMPLETED:
            msg = f"a job is {state}: {self.ask('job', job=job)['reason']}."
            raise ControlError(msg)


def await_condition(predicate: Callable[[], bool], processes: Sequence[Process] = ()) -> None:
    """Wait until a condition holds. Raises ControlError after `PATIENCE`, or if one of the processes has ended."""
    deadline = time.monotonic() + PATIENCE
    while not predicate():
        if time.monotonic() > deadline:
            raise ControlError("a part of the cluster does not answer: is this machine very busy?")
        if any(process.poll() is not None for process in processes):
            raise ControlError("a part of the cluster has ended: its last words stand above.")
        time.sleep(LOOK_S)


@contextlib.contextmanager
def scheduler(home: Path, *options: str, **variables: str) -> Iterator[Client]:
    """Run a scheduler with its state in the new folder `home` and yield a connection to it."""
    home.mkdir()
    words = ["scheduler", "--state", str(home), *options]
    with _process(home / "scheduler.log", *words, **variables) as process, contextlib.closing(Client(home)) as found:
        await_condition(found.is_served, [process])
        yield found


@contextlib.contextmanager
def agents(home: Path, count: int, options: Sequence[str]) -> Iterator[list[Process]]:
    """Run the agents of the nodes n0, n1, ..., with these options, for the scheduler with its state in `home`."""
    with unlike_agents(home, {f"n{number}": options for number in range(count)}) as started:
        yield started


@contextlib.contextmanager
def unlike_agents(home: Path, nodes: Mapping[str, Sequence[str]]) -> Iterator[list[Process]]:
    """Run the agents of nodes with these names and options, for the scheduler with its state in `home`.

    Agents with emulated cores lock no cores of this machine.
    """
    claimed = home / "claims"
    claimed.mkdir()
    started: list[Process] = []
    with contextlib.ExitStack() as stack:
        for name, options in nodes.items():
            about = {cpu_locks.VARIABLE: str(claimed)} if "--emulate" in options else {}
            words = [*options, "--scheduler", f"ipc://{home}/agents"]
            words += ["--runtime-dir", str(home / name), "--node", name]
            started.append(stack.enter_context(_process(home / f"{name}.log", "agent", *words, **about)))
        try:
            yield started
        finally:
            for process in started:  # in parallel: each takes a while
                process.terminate()


@contextlib.contextmanager
def _process(log: Path, *words: str, **about: str) -> Iterator[Process]:
    started = AgentProcess(command_of(*words), log, clean_environment() | about, apart=True)
    try:
        yield started.process
    except ControlError:
        if started.ended():
            sys.stderr.write("".join(log.read_text(encoding="utf-8").splitlines(keepends=True)[-1:]))
        raise
    finally:
        started.close(PATIENCE)
