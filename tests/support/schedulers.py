# SPDX-License-Identifier: Apache-2.0
"""Several schedulers on one etcd with agents of nodes, and faults in them after which no job is lost or run twice."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from drom.agent.control import client
from drom.agent.errors import ControlError
from drom.scheduler.live.cli import places
from drom.scheduler.live.cluster.spec import SERVICE, Spec

from tests.support.agents import wait_until
from tests.support.clusters import Cluster
from tests.support.etcd import LEASE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.support.etcd import Member

FAULTS = int(os.environ.get("KILLS", "6"))
SEED = int(os.environ.get("SEED", "1"))
JOB = """#!/bin/sh
nodes=$(echo $DROM_NODELIST | tr , " ")
for node in $nodes; do mkdir {folder}/busy-$node || echo $node {name} >> {folder}/twice; done
echo {name} >> {folder}/done
sleep 0.2
for node in $nodes; do rmdir {folder}/busy-$node; done
"""
"""A job that notes that it ran, and whether another one was on its nodes, which are its alone."""


class Orders:
    """Orders to schedulers on one etcd, each with one of the `homes` (empty: none) and its copy of the queue.

    Jobs run in `folder`.
    """

    def __init__(self, folder: Path, queues: Sequence[Path], homes: Sequence[str]) -> None:
        self.folder, self.homes = folder, homes
        self._queues = queues

    def ask(self, name: str, **fields: Any) -> Any:
        """Give an order as users do."""
        return places.ask(self._queues, name, **fields)

    def states(self) -> list[str]:
        """Return the states of the nodes."""
        return [node["state"] for node in self.ask("nodes")["nodes"]]

    def homes_of_nodes(self) -> dict[str, str]:
        """Return the home partitions of nodes."""
        return {node["name"]: node["home"] for node in self.ask("nodes")["nodes"]}

    def answers(self) -> bool:
        """Return whether each home partition has a scheduler that answers users."""
        try:
            self.ask("nodes")
        except ControlError:
            return False
        return True

    def submit(self, *command: str, script: str = "", name: str = "", home: str = "", nodes: int = 1) -> int:
        """Submit a job and return its number."""
        spec = Spec(
            command=command,
            script=script,
            folder=str(self.folder),
            time=600,
            environment={"PATH": os.environ["PATH"]},
            name=name,
            threads=2,
            nodes=nodes,
        )
        return int(self.ask("submit", jobs=[spec.to_json()], home=home)["jobs"][0])

    def state(self, number: int) -> str:
        """Return the state of a job."""
        return str(self.ask("job", job=number)["state"])

    def await_state(self, number: int, state: str) -> None:
        """Wait until a job is in a state."""
        wait_until(lambda: self.state(number) == state, self.show)

    def show(self) -> str:
        """Return all logs."""
        raise NotImplementedError


class Schedulers(Orders):
    """Schedulers on one etcd, each with one of the `homes` (empty: none), and for each an agent that knows them all."""

    def __init__(self, folder: Path, members: list[Member], homes: Sequence[str] = ("", "")) -> None:
        store = f"etcd://{','.join(member.at for member in members)}/test"
        options = ("--policy", "fcfs", "--store", store, "--lease", str(LEASE))
        self.all = [Cluster(folder / name, *options, *_at(home)) for name, home in zip("abcd", homes, strict=False)]
        super().__init__(folder, [one.state for one in self.all], homes)
        self.members = members
        self._first = {one.folder: one.options for one in self.all}
        for one in self.all:
            one.folder.mkdir()
        self._nodes = Cluster(folder)
        self._options = (*self._nodes.agent_options, "--scheduler", ",".join(one.address for one in self.all))
        self.agents = self._nodes.agents

    def start(self, *, named: bool = True) -> None:
        """Start all of them, of which without home partitions the first leads, and the agents."""
        for number, one in enumerate(self.all):
            one.start("standing_by" if number and not self.homes[number] else "ready")
        for number in range(len(self.all)):
            self.join(number, named=named)
        wait_until(lambda: self.states() == ["up"] * len(self.all), self.show)

    def join(self, number: int, *, named: bool = True) -> None:
        """Start an agent, or another one after it was killed: n1 names the first home partition, and so on in turn."""
        home = self.homes[number % len(self.homes)] if named else ""
        self._nodes.agent_options = (*self._options, *_at(home))
        self._nodes.join(f"n{number + 1}")

    def options_of(self, one: Cluster) -> tuple[str, ...]:
        """Return the options that a scheduler had at first."""
        return self._first[one.folder]

    def end(self) -> None:
        """End what runs."""
        for agent in self.agents.values():
            agent.discard()
            agent.kill_jobs()
        for one in self.all:
            if one.runs:
                one.send(signal.SIGCONT)
                one.kill()

    def leads(self, one: Cluster) -> bool:
        """Return whether a scheduler answers users."""
        try:
            client.order(one.state, "nodes", server=SERVICE)
        except ControlError:
            return False
        return True

    def show(self) -> str:
        """Return all logs."""
        logs = [one.log for one in self.all] + [agent.log for agent in self.agents.values()]
        return "\n".join(logs)


def _at(home: str) -> tuple[str, ...]:
    return ("--home-partition", home) if home else ()


def survive(here: Orders, kinds: Sequence[str], hurt: Callable[[random.Random, str], None]) -> None:
    """Check that no job is lost or run twice, and no node has two, whatever is killed, paused or cut off.

    `hurt` carries out a fault of one of the `kinds`. The environment variables KILLS and SEED say how many faults there
    are, and which.
    """
    chance, done = random.Random(SEED), here.folder / "done"
    nodes_there = len(here.states())
    confirmed: dict[str, int] = {}
    faults = Counter[str]()
    for number in range(FAULTS):
        for part in range(3):
            name = f"j{number}-{part}"
            script = JOB.format(folder=here.folder, name=name)
            try:
                home, nodes = chance.choice(here.homes), chance.choice((1, 1, 2, 3) if here.homes[0] else (1,))
                confirmed[name] = here.submit(script=script, name=name, home=home, nodes=nodes)
            except ControlError:
                continue  # which is rare: see below
        kind = chance.choice(kinds)
        hurt(chance, kind)
        wait_until(here.answers, here.show)
        faults[kind] += 1
        if faults.total() % 50 == 0:
            print(f"{faults.total()} faults, {len(confirmed)} jobs")
    assert len(confirmed) > FAULTS
    for number in confirmed.values():
        here.await_state(number, "completed")
    wait_until(lambda: here.states() == ["up"] * nodes_there, here.show)
    ran = Counter(done.read_text(encoding="utf-8").split())
    assert set(confirmed) <= set(ran)
    assert set(ran.values()) == {1}
    assert not (here.folder / "twice").exists()
    assert "Traceback" not in here.show()
    spanned = here.show().count("event=nodes_borrowed")
    print(f"{FAULTS} faults ({dict(faults)}), {len(confirmed)} jobs, each ran once, {spanned} on borrowed nodes")


def hurt(here: Schedulers, chance: random.Random, kind: str, *, named: bool = True) -> None:
    """Kill or pause a scheduler, a member of etcd or an agent, and bring it back."""
    pause = chance.uniform(0, 2 * LEASE)
    one, member = chance.choice(here.all), chance.choice(here.members)
    if kind == "pause":
        one.send(signal.SIGSTOP)
        time.sleep(pause)
        one.send(signal.SIGCONT)
    elif kind == "kill":
        one.kill()
        time.sleep(pause)
        one.start("metrics")
    elif kind == "cut":  # a member that is stopped answers nobody, as one whose links are cut
        member.send(signal.SIGSTOP)
        time.sleep(pause)
        member.send(signal.SIGCONT)
    elif kind == "etcd":
        leader = next((member for member in here.members if member.is_leader), member)
        leader.end()
        time.sleep(pause / 2)
        leader.start()
        wait_until(lambda: any(member.is_leader for member in here.members), here.show)
    else:
        number = here.all.index(one)
        here.agents[f"n{number + 1}"].kill()
        time.sleep(pause / 2)
        here.join(number, named=named)
