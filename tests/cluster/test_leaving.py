# SPDX-License-Identifier: Apache-2.0
"""Adaptive MPI jobs under SD-Policy: they share the cores of nodes first, and leave whole nodes for others."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.cluster.adaptive_jobs import EACH, OPEN_MPI, await_cores, end, start
from tests.cluster.rig import rig
from tests.support.agents import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cluster.rig import Rig
    from tests.support.mpi_programs import Mpi

pytestmark = pytest.mark.timeout(300)
ALL = {"n1": 2, "n2": 2, "n3": 2, "n4": 2}
FIRST = ALL | {"n3": 0, "n4": 0}
"""The cores of a job whose ranks rest on half of the nodes."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Return a cluster of four nodes with two cores each."""
    with rig(tmp_path_factory.mktemp("leaving") / "c", "--give-up", "60", nodes=4, cores=2) as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where programs are compiled."""
    return tmp_path_factory.mktemp("programs")


def owner(here: Rig, folder: Path, *words: str, mpi: Mpi = OPEN_MPI) -> int:
    """Submit a program with a rank on each core of all nodes, which can run on half of these."""
    number = start(here, folder, *words, mpi=mpi, nodes=4, min_nodes=2, tasks=2)
    here.await_held(number, ALL)
    await_said(here, number, "begins 8")
    return number


def await_said(here: Rig, number: int, words: str) -> None:
    """Wait until a job has printed these words in a line."""
    wait_until(lambda: words in here.output(number), lambda: here.output(number))


def guest(here: Rig) -> int:
    """Submit a rigid job that needs two nodes."""
    return here.submit("sleep", "inf", nodes=2, job_class="rigid", time=600)


def end_both(here: Rig, number: int, other: int) -> None:
    """End the other job, wait until a program has all its cores again, and end the program."""
    here.ask("cancel", job=other)
    here.await_held(number, ALL)
    end(here, number)


@EACH
def test_a_job_leaves_nodes_and_comes_back(here: Rig, folder: Path, mpi: Mpi) -> None:
    """Its ranks rest on the nodes that a rigid job has whole, and run there again after it; every element is right."""
    number = owner(here, folder, mpi=mpi)
    other = guest(here)
    here.await_state(other, "running")
    here.await_held(number, FIRST)
    here.await_held(other, {"n3": 2, "n4": 2})
    nodes = {node["name"]: node for node in here.ask("nodes")["nodes"]}
    assert {name: nodes[name]["resting"] for name in nodes} == {"n1": [], "n2": [], "n3": [number], "n4": [number]}
    await_said(here, number, "changed 4")

    here.ask("cancel", job=other)
    here.await_held(number, ALL)
    await_said(here, number, "changed 8")
    end(here, number, mpi)


def test_a_job_keeps_the_nodes_that_its_program_needs(here: Rig, folder: Path) -> None:
    """A program that needs six ranks leaves one of four nodes, and is never asked to leave two."""
    number = owner(here, folder, "0", "6", "8")
    keeps = "It keeps 3 nodes, as its program needs the ranks of so many."
    wait_until(lambda: keeps in here.job(number)["explanation"], lambda: here.job(number))
    one = here.submit("sleep", "inf", nodes=1, job_class="rigid", time=600)
    here.await_state(one, "running")
    here.await_held(number, ALL | {"n4": 0})
    here.ask("cancel", job=one)
    here.await_held(number, ALL)

    other = guest(here)
    assert here.job(other)["state"] == "pending"
    end(here, number)
    here.await_state(other, "running")
    assert "resize_failed" not in [entry["what"] for entry in here.job(number)["history"]]


def test_a_job_shares_nodes_before_it_leaves_any(here: Rig, folder: Path) -> None:
    """A malleable job of all nodes has a core of each, where one of the two ranks rests meanwhile."""
    number = owner(here, folder)
    other = here.submit("sleep", "inf", nodes=4, time=600)
    here.await_state(other, "running")
    here.await_held(number, dict.fromkeys(ALL, 1))

    end_both(here, number, other)


def test_a_change_survives_the_scheduler(here: Rig, folder: Path) -> None:
    """A scheduler that is killed in the middle of a change, or after it, is followed by one that completes it."""
    number = owner(here, folder)
    other = guest(here)
    for _ in range(2):
        assert here.scheduler
        here.scheduler.end(signal.SIGKILL)
        here.start_scheduler()
        here.await_state(other, "running")
        here.await_held(number, FIRST)
    assert here.job(other)["attempt"] == 1

    end_both(here, number, other)


def test_ranks_rest_while_agents_are_killed(here: Rig, folder: Path) -> None:
    """Ranks rest on nodes that they have left without an agent, and the next agents have them run again there."""
    number = owner(here, folder)
    other = guest(here)
    here.await_state(other, "running")
    here.await_held(number, FIRST)
    for name in here.names:
        here.agents[name].end(signal.SIGKILL)
    for name in here.names:
        here.start_agent(name)
    here.await_nodes(up=here.names)
    here.await_held(number, FIRST)

    end_both(here, number, other)


def test_a_rank_that_reaches_no_point_keeps_its_node(tmp_path: Path, folder: Path) -> None:
    """The change is withdrawn after its time on all nodes, and the job is asked no more, while others wait."""
    with rig(tmp_path / "c", "--shrink-within", "1", nodes=4, cores=2) as here:
        number = owner(here, folder, "8")
        await_said(here, number, "stops")
        other = guest(here)
        why = f"job {number} did not make room: it was not applied in time: 0 cores were ordered."
        wait_until(lambda: why in str(here.job(other)["explanation"]), lambda: here.job(other))
        assert here.job(other)["state"] == "pending"
        assert "It leaves no more nodes" in " ".join(here.job(number)["explanation"])
        await_cores(here, number, 8)
        end(here, number)
