# SPDX-License-Identifier: Apache-2.0
"""What holds on a cluster of machines with names, addresses and networks of their own, whatever ends in the middle."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from drom.agent.control import keys
from drom.scheduler.testbed.cluster import HEAD

from tests.chaos.stage import Clock
from tests.cluster.rig import RealRig, rig
from tests.support.agents import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cluster.rig import Rig

LONG = {"time": 3600}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Return a cluster of three nodes with four cores each."""
    with rig(tmp_path_factory.mktemp("cluster") / "c") as started:
        yield started


def where(rig: Rig, number: int) -> list[str]:
    """Return the hosts that the ranks of a ring were on."""
    return [line.split()[-1] for line in rig.output(number).splitlines() if " was on " in line]


def test_ranks_run_on_their_nodes(here: Rig, ring: Path) -> None:
    """They see the name of their own node and the cores that its agent has granted; there is no ssh."""
    number = here.submit(str(ring), "2", nodes=3, **LONG)
    words = here.submit("sh", "-c", 'echo "$(hostname) $DROM_NODE $DROM_CPUS"', nodes=3, tasks=2, **LONG)

    assert here.await_state(number, "completed", "failed")["status"] == 0, here.output(number)
    assert where(here, number) == ["n1", "n2", "n3"]
    here.await_state(words, "completed")
    said = [line for line in here.output(words).splitlines() if line.startswith("n")]
    both = ("0-1", "2-3")
    assert sorted(said) == [f"{name} {name} {cpus}" for name in here.names for cpus in both]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_ranks_are_bound_to_the_cores_of_their_node(tmp_path: Path) -> None:
    """Each is on the CPU that the agent of its node manages, as the kernel says."""
    one, two = sorted(os.sched_getaffinity(0))[:2]
    with rig(tmp_path / "c", nodes=2, kind=RealRig) as real:
        words = 'echo "$(hostname) $DROM_CPUS $(grep Cpus_allowed_list /proc/self/status | cut -f2)"'
        number = real.submit("sh", "-c", words, nodes=2, **LONG)
        real.await_state(number, "completed", "failed")

        said = [line for line in real.output(number).splitlines() if line.startswith("n")]
        assert sorted(said) == [f"n1 {one} {one}", f"n2 {two} {two}"]


def test_mates_make_room_and_have_their_cores_back(here: Rig, ring: Path) -> None:
    """A guest of two nodes starts at once beside an MPI job that has them, on half of the cores."""
    mate = here.submit(str(ring), "4000", nodes=2, **LONG)
    here.await_held(mate, {"n1": 4, "n2": 4})
    guest = here.submit(str(ring), "4000", nodes=2, time=600)
    alone = here.submit(str(ring), "4000", nodes=1, tasks=2, **LONG)

    for number in (mate, guest):
        here.await_held(number, {"n1": 2, "n2": 2})
    here.await_held(alone, {"n3": 4})
    before = here.await_steps(mate, 2)
    here.await_steps(mate, 2, max(before.values()))
    here.ask("cancel", job=guest)

    here.await_held(mate, {"n1": 4, "n2": 4})
    assert here.job(mate)["attempt"] == 1


def test_a_killed_scheduler_loses_nothing(here: Rig, ring: Path) -> None:
    """MPI jobs make steps meanwhile and are found again; what ended has its status, and nobody starts twice."""
    runs = here.submit(str(ring), "4000", nodes=2, **LONG)
    ends = here.submit(script="#!/bin/sh\necho here >> once\nread x < gate\nexit 7\n", nodes=1, **LONG)
    os.mkfifo(here.work / "gate")
    here.await_lines("once", 1)
    before = here.await_steps(runs, 2)
    waits = here.endless("waits", nodes=1, time=60, job_class="rigid")
    assert here.scheduler
    here.scheduler.end(signal.SIGKILL)
    (here.work / "gate").write_text("go\n", encoding="utf-8")
    after = here.await_steps(runs, 2, max(before.values()))
    wait_until(lambda: not here.tasks("n3"), lambda: here.tasks("n3"))

    here.start_scheduler()

    value = here.await_state(ends, "failed")
    assert (value["status"], value["attempt"], here.lines("once")) == (7, 1, ["here"])
    assert here.await_lines("waits", 1) == ["1 n3"]
    assert here.job(waits)["attempt"] == 1
    assert here.job(runs)["attempt"] == 1
    assert here.await_steps(runs, 2, max(after.values())).keys() == before.keys()


def test_killed_agents_take_their_jobs_up_again(here: Rig, ring: Path) -> None:
    """The ranks of an MPI job run on without the agents of its nodes, shrink under the next ones, and grow again."""
    number = here.submit(str(ring), "4000", nodes=2, **LONG)
    before = here.await_steps(number, 2)
    for name in ("n1", "n2"):
        here.agents[name].end(signal.SIGKILL)
    for name in ("n1", "n2"):
        here.start_agent(name)
    here.await_nodes(up=here.names)
    assert here.await_steps(number, 2, max(before.values())).keys() == before.keys()
    here.ask("drain", node="n3", reason="so that a guest needs mates")
    guest = here.submit(str(ring), "8", nodes=2, time=60)
    here.await_held(number, {"n1": 2, "n2": 2})

    assert here.await_state(guest, "completed", "failed")["status"] == 0, here.output(guest)
    here.await_held(number, {"n1": 4, "n2": 4})
    assert here.job(number)["attempt"] == 1
    here.ask("drain", node="n3", reason="")


def test_a_short_cut_harms_nobody(here: Rig, ring: Path) -> None:
    """A node whose cable is pulled for less than the silence that is allowed keeps its ranks and its place."""
    number = here.submit(str(ring), "4000", nodes=2, **LONG)
    before = here.await_steps(number, 2)
    here.network.disconnect("n2")
    here.network.connect("n2")

    after = here.await_steps(number, 2, max(before.values()))
    assert here.await_steps(number, 2, max(after.values())).keys() == before.keys()
    assert here.job(number)["attempt"] == 1


def test_a_node_that_disappears_loses_its_jobs_as_they_asked(here: Rig) -> None:
    """One is started anew on another node, one fails; when the node is back what was left on it is ended."""
    mine = {"nodes": 1, "job_class": "rigid", **LONG}
    for name in ("n2", "n3"):
        here.ask("drain", node=name, reason="not yet")
    again = here.endless("again", **mine)
    here.await_lines("again", 1)
    here.ask("drain", node="n1", reason="full")
    here.ask("drain", node="n2", reason="")
    fails = here.endless("fails", requeue=False, **mine)
    here.await_lines("fails", 1)
    here.ask("drain", node="n3", reason="")
    for name in ("n1", "n2"):
        here.network.disconnect(name)

    assert here.await_lines("again", 2) == ["1 n1", "2 n3"]
    value = here.await_state(fails, "node_fail")
    assert value["reason"] == "node n2 went down"
    assert here.lines("fails") == ["1 n2"]
    assert here.tasks("n1")  # its agent has heard of nothing

    for name in ("n1", "n2"):
        here.network.connect(name)
    here.ask("drain", node="n1", reason="")
    here.await_nodes(up=here.names)
    wait_until(lambda: not here.tasks("n1") and not here.tasks("n2"), lambda: here.said(HEAD))
    assert here.job(again)["attempt"] == 2
    assert list(here.held(again)) == ["n3"]


def test_a_node_whose_power_is_cut_starts_its_jobs_anew(here: Rig, ring: Path) -> None:
    """An MPI job that has lost one of its nodes leaves the other, and begins again on two that are there."""
    here.ask("drain", node="n3", reason="not yet")
    number = here.submit(str(ring), "4000", nodes=2, job_class="rigid", **LONG)
    here.await_steps(number, 2)
    here.network.power_off("n2")
    here.agents["n2"].end(signal.SIGKILL)

    here.await_state(number, "pending")
    here.ask("drain", node="n3", reason="")
    here.await_state(number, "running")
    assert {name for name, _ in here.await_steps(number, 2)} == {"n1", "n3"}
    assert here.job(number)["attempt"] == 2

    here.network.power_on("n2")
    here.start_agent("n2")
    here.await_nodes(up=here.names)
    assert here.tasks("n2") == []


def test_a_clock_that_differs_is_told_of(here: Rig, tmp_path: Path) -> None:
    """In one line of the scheduler's log, when the node joins."""
    clock = Clock(tmp_path)
    clock.move(40)
    with clock.in_force():
        variables = {name: os.environ[name] for name in ("LD_PRELOAD", "DROM_TEST_CLOCK")}
    here.agents["n3"].end(signal.SIGTERM)
    here.start_agent("n3", **variables)

    here.await_said(HEAD, "event=node_clock_off node=n3 ")
    line = next(line for line in here.said(HEAD).splitlines() if "event=node_clock_off" in line)
    assert line.endswith('s ahead of this one: set both by NTP."')
    assert 39 < float(line.split("its clock is ")[1].split()[0]) < 41
    here.agents["n3"].end(signal.SIGTERM)
    here.start_agent("n3")


NEWER = """
import sys
from drom.agent.execution import protocol
from drom.agent.system import python_command
protocol.PROTOCOL = 99
python_command.drom = lambda *words: [sys.executable, __file__, *python_command.python("", *words)]
sys.argv = ["drom", *sys.argv[5:]]
from drom.__main__ import main
main()
"""
"""Becomes the command that it is given, an agent, with a newer protocol."""


def test_who_may_not_join_is_turned_away(here: Rig, tmp_path: Path) -> None:
    """Each with one sentence that says what to do, and the cluster goes on."""
    strange, blind, head = (keys.make(tmp_path / name) for name in ("strange", "blind", "head"))
    keys.trust(strange, here.keys_of(HEAD) / keys.PUBLIC, HEAD)
    keys.trust(blind, head.folder / keys.PUBLIC, HEAD)
    (tmp_path / "newer.py").write_text(NEWER, encoding="utf-8")
    newer = (sys.executable, str(tmp_path / "newer.py"))
    expected: tuple[tuple[str, Path, tuple[str, ...], str], ...] = (
        ("n3", here.keys_of("n2"), (), "this agent may not act for node n3: run it as root or as"),
        (
            "n2",
            strange.folder,
            (),
            "the scheduler does not trust this node's key: run `drom keys trust FILE NODE` there with",
        ),
        ("n2", blind.folder, (), f"the key in {blind.folder}/peers/{HEAD}.key is still its identity.key."),
        (
            "n2",
            here.keys_of("n2"),
            (),
            "another agent for node n2 is connected: stop it, or give this one another name with",
        ),
        (
            "n3",
            here.keys_of("n3"),
            newer,
            "this scheduler uses protocol 1, not 99: install the same version.",
        ),
    )
    here.agents["n3"].end(signal.SIGTERM)
    here.await_node("n3", "gone")
    tried = [(here.try_agent("n2", node, folder, within), said) for node, folder, within, said in expected]
    none = here.try_agent("n2", "n2", tmp_path / "nothing")

    for agent, sentence in tried:
        wait_until(lambda a=agent, s=sentence: s in a.log.read_text(encoding="utf-8"), agent.log.read_text)  # type: ignore[misc]
        assert agent.log.read_text(encoding="utf-8").count("event=node_refused") == 1
        agent.end(signal.SIGTERM)
    wait_until(lambda: none.poll() is not None, none.log.read_text)
    (line,) = none.log.read_text(encoding="utf-8").splitlines()
    assert line.startswith("drom: there are no keys in ")
    here.start_agent("n3")
