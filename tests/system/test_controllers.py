# SPDX-License-Identifier: Apache-2.0
"""Several schedulers that are active at once, each with a home partition; others adopt that of one that has gone."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from drom.agent.errors import ControlError

from tests.support.agents import environment, lives, wait_until
from tests.support.clusters import UNCOMPILED
from tests.support.etcd import running
from tests.support.schedulers import Schedulers, hurt, survive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.system
TAKE_OVER = 20.0
"""Seconds within which another scheduler has adopted a home partition: lease and 3 s, and more as other tests run."""
P1, P2, P3 = 100_000_001, 200_000_001, 300_000_001
"""The first jobs of the three home partitions."""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Schedulers]:
    """Return three schedulers with home partitions, on an etcd of three members, and the agent of a node for each."""
    with three(tmp_path) as found:
        found.start()
        yield found


@contextmanager
def three(folder: Path) -> Iterator[Schedulers]:
    """Return three schedulers with home partitions, and end them."""
    with ExitStack() as stack:
        found = Schedulers(folder, stack.enter_context(running(folder, 3)), ("p1", "p2", "p3"))
        stack.callback(found.end)
        yield found


def command(here: Schedulers, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command that knows all schedulers."""
    about = environment(DROM_QUEUE=",".join(str(one.state) for one in here.all), **UNCOMPILED)
    return subprocess.run(
        [sys.executable, "-m", "drom", *words], env=about, capture_output=True, text=True, check=False, cwd=here.folder
    )


def test_every_scheduler_takes_jobs_and_shows_all(here: Schedulers) -> None:
    """Orders reach the home partition that they concern, whichever scheduler is asked."""
    assert [here.submit("sleep", "1000", home=home) for home in ("p1", "p2", "p3")] == [P1, P2, P3]
    assert here.submit("true") == P1 + 1
    after = command(here, "submit", "--dependency", f"afterany:{P2}", "--parsable", "--", "true")
    assert (after.returncode, after.stdout) == (0, f"{P2 + 1}\n"), after.stderr
    for number in (P1, P2, P3):
        here.await_state(number, "running")
    rows = command(here, "queue").stdout.splitlines()
    assert [row.split()[4] for row in rows] == ["HOME", "p1", "p1", "p2", "p2", "p3"]
    assert [row.split()[:3] for row in command(here, "nodes").stdout.splitlines()[1:]] == [
        [f"n{number}", f"p{number}", "up"] for number in (1, 2, 3)
    ]
    about = [row.split() for row in command(here, "nodes", "--partitions").stdout.splitlines()]
    assert [row[0] for row in about] == ["HOME", "p1", "p2", "p3"]
    assert [row[-6:] for row in about[1:]] == [["1", "1", "4", "4", "1", str(more)] for more in (1, 1, 0)]
    names = [f"{socket.gethostname()}:{one.state}" for one in here.all]
    assert [row[1] for row in about[1:]] == names
    with pytest.raises(ControlError, match=rf"^home partition p2 is led by the scheduler on {names[1]}: ask that one"):
        here.all[0].ask("job", job=P2)

    assert command(here, "drain", "n3").returncode == 0
    assert "drained" in command(here, "nodes").stdout
    done = command(here, "cancel", str(P1), str(P3), "7")
    assert (done.returncode, done.stdout) == (1, f"Cancelled job {P1}\nCancelled job {P3}\n")
    assert "there is no job 7: see drom queue --all." in done.stderr
    here.await_state(P1 + 1, "completed")
    assert command(here, "cancel", "--me").returncode == 0
    here.await_state(P2 + 1, "cancelled")
    ended = command(here, "queue", "--all", "--last", "4").stdout.splitlines()[1:]
    assert sorted(int(row.split()[0]) for row in ended) == [P1 + 1, P2, P2 + 1, P3]


def test_a_home_partition_is_adopted_and_given_back(here: Schedulers) -> None:
    """Its jobs run on, waiting ones start, and its nodes are up at the scheduler that has adopted it."""
    first, *others = here.all
    long = here.submit("sleep", "1000", home="p1")
    here.await_state(long, "running")
    wait_until(here.agents["n1"].tasks, here.show)
    (pid,) = [task["pid"] for task in here.agents["n1"].tasks().values()]
    first.kill()
    begin = time.monotonic()
    assert here.submit("true", home="p1") == P1 + 1  # once another one has adopted it
    assert time.monotonic() - begin < TAKE_OVER
    (adopter,) = [one for one in others if "event=home_adopted home=p1" in one.log]
    assert lives(pid)
    wait_until(lambda: here.states() == ["up"] * 3, here.show)
    here.ask("cancel", job=long)
    here.await_state(P1 + 1, "completed")

    adopter.kill()  # which led two
    here.await_state(here.submit("true", home="p1"), "completed")
    here.await_state(here.submit("true", home=here.homes[here.all.index(adopter)]), "completed")
    first.start()
    adopter.start()
    wait_until(lambda: [row["leader_home"] for row in here.ask("homes")["homes"]] == ["p1", "p2", "p3"], here.show)
    wait_until(lambda: here.states() == ["up"] * 3, here.show)
    assert "event=home_returned home=p1" in here.show()
    here.await_state(here.submit("true", home="p1"), "completed")


def lent(here: Schedulers) -> dict[str, str]:
    """Return the nodes that are lent, with their borrowers."""
    return {node["name"]: node["borrower"] for node in here.ask("nodes")["nodes"] if node["borrower"]}


def test_a_job_spans_home_partitions(here: Schedulers) -> None:
    """The nodes that it borrows are shown, drained at their home partition, and return when it ends."""
    job = here.submit("sleep", "1000", home="p1", nodes=2)
    here.await_state(job, "running")
    (borrowed,) = lent(here)
    home = "p" + borrowed[1:]
    rows = [row.split() for row in command(here, "nodes").stdout.splitlines()[1:]]
    assert [row[:3] for row in rows] == [[f"n{number}", f"p{number}", "up"] for number in (1, 2, 3)]
    assert [row[0] for row in rows if row[-3:] == ["lent", "to", "p1"]] == [borrowed]
    heading, *about = command(here, "nodes", "--partitions").stdout.splitlines()
    assert heading.split()[-2:] == ["LENT", "BORROWED"]
    assert {row.split()[0]: row.split()[-2:] for row in about if row.split()[-2:] != ["0", "0"]} == {
        home: ["1", "0"],
        "p1": ["0", "1"],
    }
    waits = here.submit("true", home="p3", nodes=3)
    assert here.ask("job", job=waits)["reason"] == (
        "fewer than 3 nodes are free at once, here and in other home partitions"
    )
    with pytest.raises(ControlError, match=r"^the job asks for 4 nodes, and home partition p2 has 1 node, and all tog"):
        here.submit("true", home="p2", nodes=4)

    assert command(here, "drain", borrowed, "--reason", "dust").returncode == 0
    here.ask("cancel", job=job)
    here.await_state(job, "cancelled")
    assert lent(here) == {borrowed: "p1"}
    assert command(here, "drain", "--undo", borrowed).returncode == 0
    here.await_state(waits, "completed")
    wait_until(lambda: not lent(here) and here.states() == ["up"] * 3, here.show)


def test_a_job_on_borrowed_nodes_survives_both_schedulers(here: Schedulers) -> None:
    """Its own scheduler is killed, then that of the node that it borrows, then the agent of that node."""
    job = here.submit("sleep", "1000", home="p1", nodes=2)
    here.await_state(job, "running")
    (borrowed,) = lent(here)
    number = int(borrowed[1:]) - 1
    for one in (here.all[0], here.all[number]):
        one.kill()
        wait_until(here.answers, here.show)
        wait_until(lambda: lent(here) == {borrowed: "p1"} and here.states() == ["up"] * 3, here.show)
        one.start("metrics")
    here.agents[borrowed].kill()
    here.join(number)
    wait_until(lambda: lent(here) == {borrowed: "p1"} and here.states() == ["up"] * 3, here.show)
    about = here.ask("job", job=job)
    assert (about["state"], about["attempt"]) == ("running", 1)
    own = here.submit("true", home=here.homes[number])
    here.ask("cancel", job=job)
    here.await_state(own, "completed")
    wait_until(lambda: not lent(here) and here.states() == ["up"] * 3, here.show)


def test_what_is_wrong_is_told(here: Schedulers) -> None:
    """Each in one sentence."""
    first = here.all[0]
    choose = "choose --home-partition from p1, p2, p3."
    with pytest.raises(ControlError, match=rf"^there is no home partition p9: {choose}$"):
        here.submit("true", home="p9")
    with pytest.raises(ControlError, match=r"^there is no job 5: see drom queue --all\.$"):
        here.ask("job", job=5)
    here.homes = ("p2", *here.homes[1:])
    here.agents["n1"].kill()
    here.join(0)
    here.agents["n1"].await_log("node n1 belongs to home partition p1, not p2: start its agent with that one or")
    here.homes = ("p9", *here.homes[1:])
    here.join(3)
    here.agents["n4"].await_log(f"there is no home partition p9: {choose}")
    store = next(word for word in first.options if word.startswith("etcd://"))
    for words, sentence in (
        (("--store", store), "the cluster at the prefix test has home partitions: choose one with --home-partition"),
        (("--store", store, "--name", "b", "--home-partition", "p1"), "belongs to the cluster 'drom', not 'b'"),
        (("--store", store, "--home-partition", "a/b"), "'a/b' is no name of a home partition"),
        (("--store", f"{store}/home/p1", "--home-partition", "p1"), "has no home partitions: omit --home-partition"),
        (("--home-partition", "p1"), "home partitions need a queue in etcd: give --store as well"),
    ):
        done = command(here, "scheduler", "--state", f"{here.folder}/x", "--policy", "fcfs", *words)
        assert done.returncode in (1, 2)
        assert sentence in " ".join(done.stderr.replace("│", " ").split())


def test_agents_that_name_no_home_partition_are_shared_out(here: Schedulers) -> None:
    """Each home partition gets as many nodes, which are the same after restarts of everything."""
    job = here.submit("sleep", "1000", home="p2", nodes=1)
    here.await_state(job, "running")
    for number in range(3, 6):
        here.join(number, named=False)
    wait_until(lambda: here.states() == ["up"] * 6, here.show)
    first = here.homes_of_nodes()
    assert here.show().count("event=home_chosen") == 6  # though each agent has asked all schedulers
    assert sorted(first.values()) == ["p1", "p1", "p2", "p2", "p3", "p3"]

    for one in here.all:
        one.kill()
    for member in here.members:
        member.end()
    for member in here.members:
        member.start()
    for number, agent in enumerate(here.agents.values()):
        agent.kill()
        here.join(number, named=False)
    for one in here.all:
        one.start()
    wait_until(lambda: here.states() == ["up"] * 6, here.show)
    assert here.homes_of_nodes() == first
    assert (here.state(job), here.ask("job", job=job)["attempt"]) == ("running", 1)


def restart(here: Schedulers, *options: str) -> None:
    """Stop all schedulers, and start them with these options in addition to those that they had at first."""
    for one in here.all:
        one.end()
        one.options = (*here.options_of(one), *options)
        one.start()


def test_rules_give_nodes_their_home_partitions(here: Schedulers) -> None:
    """A node stays where it is, and its job goes on, when the rules change; it is moved by removing it."""
    restart(here, "--home-rule", "n[4-5]=p2", "--home-rule", "m*=p3,p1")
    for number in (3, 4):
        here.join(number, named=False)
    here.join(5, named=False)
    here.agents["n6"].await_log(r"no rule is for node n6 \(--home-rule\): add one such as '\*=p1', or start its agent")
    wait_until(lambda: here.states() == ["up"] * 5, here.show)
    assert here.homes_of_nodes() == {"n1": "p1", "n2": "p2", "n3": "p3", "n4": "p2", "n5": "p2"}
    job = here.submit(script="#!/bin/sh\nexec sleep 1000\n", home="p2", nodes=3)
    here.await_state(job, "running")

    restart(here, "--home-rule", "n[4-6]=p1")
    wait_until(lambda: here.states() == ["up"] * 6, here.show)  # n6 as well
    reason = "the rule n[4-6]=p1 does not move a node that is there already: drain it, stop its agent once its jobs"
    assert f'event=home_kept node=n4 home=p2 reason="{reason}' in here.show()
    assert (here.state(job), here.ask("job", job=job)["attempt"]) == ("running", 1)
    here.ask("cancel", job=job)
    here.await_state(job, "cancelled")

    here.ask("drain", node="n4", reason="moves", forget=False)
    here.agents["n4"].stop()
    restart(here, "--home-rule", "n[4-6]=p1", "--silence", "5", "--give-up", "0")
    wait_until(lambda: "down" in here.states(), here.show)
    done = command(here, "drain", "--forget", "n4")
    assert (done.returncode, done.stdout) == (0, "Forgot node n4\n"), done.stderr
    restart(here, "--home-rule", "n[4-6]=p1")
    here.join(3, named=False)
    wait_until(lambda: here.homes_of_nodes().get("n4") == "p1", here.show)
    here.await_state(here.submit(script="#!/bin/sh\ntrue\n", home="p1", nodes=3), "completed")


def test_two_schedulers_of_a_home_partition(tmp_path: Path) -> None:
    """The second one stands by, and leads as soon as the first has gone."""
    with ExitStack() as stack:
        found = Schedulers(tmp_path, stack.enter_context(running(tmp_path)), ("p1", "p1"))
        stack.callback(found.end)
        found.all[0].start()
        found.all[1].start("standing_by")
        found.join(0)
        wait_until(lambda: found.states() == ["up"], found.show)
        found.all[0].kill()
        found.await_state(found.submit("true"), "completed")
        assert "home_adopted" not in found.show()


def test_no_job_is_lost_or_run_twice(tmp_path: Path) -> None:
    """Whatever is killed, paused or cut off: schedulers, agents, and members of etcd. KILLS and SEED may be set.

    Agents name no home partition, and have the same ones in the end.
    """
    with three(tmp_path) as here:
        here.start(named=False)
        homes = here.homes_of_nodes()
        assert sorted(homes.values()) == ["p1", "p2", "p3"]
        survive(here, ("kill", "pause", "etcd", "cut", "agent"), partial(hurt, here, named=False))
        assert here.homes_of_nodes() == homes
