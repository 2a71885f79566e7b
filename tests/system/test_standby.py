# SPDX-License-Identifier: Apache-2.0
"""Several schedulers on one etcd: one leads, and another takes over from one that was killed or paused; jobs go on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.control import client
from drom.agent.errors import ControlError
from drom.scheduler.live.cli import places
from drom.scheduler.live.cluster.spec import SERVICE, Spec

from tests.support.agents import environment, lives, wait_until
from tests.support.clusters import UNCOMPILED, Cluster
from tests.support.etcd import LEASE, Member, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.system
TAKE_OVER = 5.0
"""Seconds within which another scheduler leads, with a lease of `LEASE`, on a machine with nothing else to do."""
BUSY = 4.0
"""How much longer anything may take here, where other tests run."""
FAULTS = int(os.environ.get("KILLS", "6"))
SEED = int(os.environ.get("SEED", "1"))


class Schedulers:
    """Schedulers on one etcd, and agents of two nodes that know them all."""

    def __init__(self, folder: Path, members: list[Member], count: int) -> None:
        store = f"etcd://{','.join(member.at for member in members)}/test"
        options = ("--policy", "fcfs", "--store", store, "--lease", str(LEASE))
        self.folder, self.members = folder, members
        self.all = [Cluster(folder / name, *options) for name in "abcd"[:count]]
        for one in self.all:
            one.folder.mkdir()
        self._nodes = Cluster(folder)
        self._nodes.agent_options += ("--scheduler", ",".join(one.address for one in self.all))
        self.agents = self._nodes.agents

    def start(self) -> None:
        """Start all of them, of which the first leads, and the agents."""
        self.all[0].start()
        for one in self.all[1:]:
            one.start("standing_by")
        for name in ("n1", "n2"):
            self._nodes.join(name)
        wait_until(lambda: self.states() == ["up", "up"], self.show)

    def end(self) -> None:
        """End what runs."""
        for agent in self.agents.values():
            agent.discard()
        for one in self.all:
            if one.runs:
                one.send(signal.SIGCONT)
                one.kill()

    def ask(self, name: str, **fields: Any) -> Any:
        """Give an order as users do."""
        return places.ask([one.state for one in self.all], name, **fields)

    def states(self) -> list[str]:
        """Return the states of the nodes."""
        return [node["state"] for node in self.ask("nodes")["nodes"]]

    def leads(self, one: Cluster) -> bool:
        """Say whether a scheduler answers users."""
        try:
            client.order(one.state, "nodes", server=SERVICE)
        except ControlError:
            return False
        return True

    def submit(self, *command: str, name: str = "") -> int:
        """Submit a job and return its number."""
        variables = {"PATH": os.environ["PATH"]}
        spec = Spec(command=command, folder=str(self.folder), time=600, environment=variables, name=name, threads=2)
        return int(self.ask("submit", jobs=[spec.to_json()])["jobs"][0])

    def state(self, number: int) -> str:
        """Return the state of a job."""
        return str(self.ask("job", job=number)["state"])

    def await_state(self, number: int, state: str) -> None:
        """Wait until a job is in a state."""
        wait_until(lambda: self.state(number) == state, self.show)

    def show(self) -> str:
        """Return all logs."""
        logs = [one.log for one in self.all] + [agent.log for agent in self.agents.values()]
        return "\n".join(logs)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Schedulers]:
    """Return two schedulers on an etcd of three members."""
    with ExitStack() as stack:
        found = Schedulers(tmp_path, stack.enter_context(running(tmp_path, 3)), 2)
        stack.callback(found.end)
        found.start()
        yield found


def took(step: Callable[[], object]) -> float:
    """Return the seconds of a step."""
    begin = time.monotonic()
    step()
    return time.monotonic() - begin


def test_a_standby_takes_over_from_a_killed_scheduler(here: Schedulers) -> None:
    """Jobs go on, waiting ones start, and users find the new one; the old one stands by once it is back."""
    first, second = here.all
    long, short = here.submit("sleep", "1000"), here.submit("true")
    here.await_state(long, "running")
    here.await_state(short, "completed")
    (pid,) = [task["pid"] for agent in here.agents.values() for task in agent.tasks().values()]
    first.kill()
    waits = here.submit("true")  # which waits until another one leads
    here.await_state(waits, "completed")
    assert lives(pid)
    assert here.state(long) == "running"
    first.start("standing_by")
    words = [sys.executable, "-m", "drom", "queue"]
    about = environment(DROM_QUEUE=f"{first.state},{second.state}", **UNCOMPILED)
    done = subprocess.run(words, env=about, capture_output=True, text=True, check=False)
    assert (done.returncode, f"{long} " in done.stdout) == (0, True), done.stderr
    with pytest.raises(ControlError, match=r"^this scheduler stands by for the one on .*: ask that one\.$"):
        first.ask("queue")

    assert second.end() == 0
    assert took(lambda: here.await_state(long, "running")) < TAKE_OVER * BUSY
    here.ask("cancel", job=long)
    here.await_state(long, "cancelled")
    assert not lives(pid)


def test_a_paused_scheduler_changes_nothing(here: Schedulers) -> None:
    """It finds that another one has taken over, and its agents do not obey it; it stands by for that one."""
    first, second = here.all
    long = here.submit("sleep", "1000")
    here.await_state(long, "running")
    first.send(signal.SIGSTOP)
    wait_until(partial(here.leads, second), here.show)
    other = int(
        second.ask("submit", jobs=[Spec(command=("sleep", "1000"), folder="/", threads=2).to_json()])["jobs"][0]
    )
    wait_until(lambda: second.job(other)["state"] == "running", here.show)
    first.send(signal.SIGCONT)
    wait_until(lambda: "event=standing_by" in first.log, here.show)
    assert [here.state(one) for one in (long, other)] == ["running", "running"]
    second.kill()
    assert [here.state(one) for one in (long, other)] == ["running", "running"]
    for one in (long, other):
        here.ask("cancel", job=one)
        here.await_state(one, "cancelled")
    assert "job_unknown" not in here.show()


def test_no_job_is_lost_or_run_twice(here: Schedulers) -> None:
    """Whatever is killed or paused: schedulers, and members of etcd. KILLS and SEED may be set."""
    chance, done = random.Random(SEED), here.folder / "done"
    confirmed: dict[str, int] = {}
    for number in range(FAULTS):
        for part in range(3):
            name = f"j{number}-{part}"
            try:
                confirmed[name] = here.submit("sh", "-c", f"echo {name} >> {done}; sleep 0.2", name=name)
            except ControlError:
                assert len(confirmed) < 3 * FAULTS
        hurt(here, chance)
    for name, number in confirmed.items():
        here.await_state(number, "completed")
        assert name
    ran = Counter(done.read_text(encoding="utf-8").split())
    assert set(confirmed) <= set(ran)
    assert set(ran.values()) == {1}
    assert "Traceback" not in here.show()


def hurt(here: Schedulers, chance: random.Random) -> None:
    """Kill or pause a scheduler, or the leader of etcd, and bring it back."""
    kind = chance.choice(("kill", "pause", "etcd"))
    if kind == "etcd":
        leader = next((member for member in here.members if member.is_leader), here.members[0])
        leader.end()
        time.sleep(chance.uniform(0, 2))
        leader.start()
        wait_until(lambda: any(member.is_leader for member in here.members), here.show)
        return
    one = chance.choice(here.all)
    if kind == "pause":
        one.send(signal.SIGSTOP)
        time.sleep(chance.uniform(0, 2 * LEASE))
        one.send(signal.SIGCONT)
    else:
        one.kill()
        time.sleep(chance.uniform(0, 2 * LEASE))
        one.start("metrics")
    wait_until(lambda: any(map(here.leads, here.all)), here.show)
