# SPDX-License-Identifier: Apache-2.0
"""Signals that do not end a job: before its limit, once in each attempt, and at once by an order."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.text import WordError
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster.spec import Notice, Spec, check, notice_of, parse_signal_now

from tests.support.fake_cluster import ANN, FakeCluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USR1 = signal.SIGUSR1


@pytest.fixture
def here(tmp_path: Path) -> Iterator[FakeCluster]:
    """Return a cluster of two nodes."""
    found = FakeCluster(tmp_path, load_policy("fcfs"), 2)
    found.settle()
    yield found
    found.store.close()


def spec(text: str, **more: Any) -> Spec:
    """Return a job of two nodes and ten minutes."""
    return Spec(**{"command": ("true",), "nodes": 2, "time": 600, "folder": "/", "signal": text, **more})


def signals(here: FakeCluster) -> dict[tuple[str, int, int], list[tuple[int, str]]]:
    """Return the signals that attempts of jobs got on their nodes, without those that end them."""
    there = [(node.name, key, one) for node in here.nodes.values() for key, one in node.known.items()]
    return {(name, *key): one.signals for name, key, one in there if one.signals}


def entries(here: FakeCluster, job: int) -> list[dict[str, Any]]:
    """Return what the history of a job says of signals."""
    return [entry.detail for entry in here.store.history(job, job) if entry.what == "signalled"]


@pytest.mark.parametrize(
    ("text", "notice"),
    [
        ("USR1", Notice(USR1, 60, first=False)),
        ("SIGUSR1@0", Notice(USR1, 0, first=False)),
        ("B:usr1@120", Notice(USR1, 120, first=True)),
        ("10", Notice(10, 60, first=False)),
        ("64@99999", Notice(64, 99999, first=False)),
    ],
)
def test_a_signal_is_read_as_sbatch_reads_it(text: str, notice: Notice) -> None:
    """Signals have names or numbers, with or without SIG."""
    assert notice_of(text) == notice
    check(spec(text))


@pytest.mark.parametrize("text", ["0", "65", "FOO", "USR1@", "USR1@x", "R:USR1", "B:", "USR1@100000", "-9", "1\n"])
def test_other_words_are_refused(text: str) -> None:
    """One sentence says what to write."""
    with pytest.raises(WordError, match=r"^'.*' is not a signal.*: write "):
        notice_of(text)
    with pytest.raises(SchedulerError, match=r"^--signal: '.*' is not a signal"):
        check(spec(text))


def test_a_signal_that_is_sent_at_once_has_no_time() -> None:
    """It may be for the first process alone."""
    assert parse_signal_now("B:USR1") == Notice(USR1, first=True)
    assert parse_signal_now("12") == Notice(12)
    with pytest.raises(WordError, match=r"^'USR1@5' is not a signal"):
        parse_signal_now("USR1@5")


def test_a_signal_before_the_start_is_refused(here: FakeCluster) -> None:
    """The program of the job may not be ready for it."""
    sentence = (
        r"^--signal asks for a signal 10 min before the limit of the job, which is 10 min: give a longer --time, "
        r"or fewer seconds after an @ in --signal\.$"
    )
    with pytest.raises(SchedulerError, match=sentence):
        here.cluster.submit(spec("USR1@600"), ANN, here.now)
    assert here.submit(spec("USR1@599"))


@pytest.mark.parametrize("restart", [False, True])
def test_a_job_gets_its_signal_once_before_its_limit(here: FakeCluster, *, restart: bool) -> None:
    """All of its nodes are sent it, whatever becomes of the scheduler."""
    job = here.submit(spec("USR1@100"))
    assert job
    here.settle()
    began = here.now
    here.turn(490.0)
    here.settle()
    assert signals(here) == {}
    if restart:
        here.crash()
        here.settle()
    assert here.cluster.next_look() <= began + 500
    here.turn(began + 501 - here.now)
    here.settle()
    once = {("n0", 1, 1): [(USR1, "tasks")], ("n1", 1, 1): [(USR1, "tasks")]}
    assert signals(here) == once
    here.crash()
    here.settle()
    here.turn(5.0)
    here.settle()
    assert (signals(here), entries(here, 1)) == (once, [{"signal": USR1}])
    here.turn(100.0)
    here.settle()
    assert here.cluster.jobs[1].state == "timeout"


def test_a_node_that_was_away_gets_the_signal_when_it_is_back(here: FakeCluster) -> None:
    """What is sent to an agent that does not run is lost; the next agent has the signal sent."""
    here.submit(spec("USR1@100"))
    here.settle()
    here.turn(502.0)
    here.nodes["n1"].inbox.clear()
    here.nodes["n1"].welcome = False
    here.settle()

    assert signals(here) == {("n0", 1, 1): [(USR1, "tasks")], ("n1", 1, 1): [(USR1, "tasks")]}


def test_a_limit_that_moves_takes_the_signal_along(here: FakeCluster) -> None:
    """A longer limit, and a job that has got its signal gets no other."""
    job = here.submit(spec("USR1@100"))
    assert job
    here.settle()
    here.turn(100.0)
    here.cluster.update(1, here.cluster.changed(1, {"time": 1200}), here.now, "ann", "--time 20 min")
    here.turn(500.0)
    here.settle()
    assert signals(here) == {}
    here.turn(501.0)
    here.settle()
    assert len(signals(here)) == 2
    here.cluster.update(1, here.cluster.changed(1, {"time": 9000}), here.now, "ann", "--time 150 min")
    here.turn(8000.0)
    here.settle()
    assert len(entries(here, 1)) == 1


@pytest.mark.parametrize(
    ("text", "more", "to"),
    [("B:USR1@100", {}, "first"), ("USR1@100", {"script": "#!/bin/sh\ntrue\n"}, "tasks")],
)
def test_first_processes_and_scripts_get_a_signal_on_their_node_alone(
    here: FakeCluster, text: str, more: dict[str, Any], to: str
) -> None:
    """On other nodes a script has only what mpirun started there, to which mpirun passes it on."""
    here.submit(spec(text, **more))
    here.settle()
    here.turn(501.0)
    here.settle()

    assert signals(here) == {("n0", 1, 1): [(USR1, to)]}


def test_each_attempt_gets_its_signal(here: FakeCluster) -> None:
    """A job that is lost after its signal gets another when it has run again."""
    job = here.submit(spec("USR1@100"))
    assert job
    here.settle()
    here.turn(501.0)
    here.settle()
    del here.nodes["n1"].known[1, 1]
    here.nodes["n1"].welcome = False
    here.settle()
    assert (job.state, job.attempt, job.notified) == ("running", 2, False)
    here.turn(501.0)
    here.settle()

    assert signals(here) == {("n0", 1, 2): [(USR1, "tasks")], ("n1", 1, 2): [(USR1, "tasks")]}


def test_each_job_of_an_array_gets_its_signal(here: FakeCluster) -> None:
    """Each has a limit of its own, as it starts at another time."""
    here.cluster.submit_many(spec("USR1@100", nodes=1, array="0-2"), ANN, here.now, 1)
    here.settle()
    here.turn(200.0)
    here.nodes["n0"].end((1, 1), 0)
    here.settle()
    here.turn(301.0)
    here.settle()
    assert signals(here) == {("n1", 2, 1): [(USR1, "tasks")]}
    here.turn(200.0)
    here.settle()
    assert [len(entries(here, number)) for number in (1, 2, 3)] == [0, 1, 1]


def test_a_job_that_ends_before_gets_no_signal(here: FakeCluster) -> None:
    """It is over when its signal would be due."""
    job = here.submit(spec("USR1@100"))
    assert job
    here.settle(ends=True)
    here.turn(600.0)

    assert (job.state, job.notified, entries(here, 1)) == ("completed", False, [])


def test_users_signal_running_jobs(here: FakeCluster) -> None:
    """The tasks of a job get the signal on all of its nodes, its first process on one, as often as it is ordered."""
    here.submit(spec(""))
    here.settle()
    for notice in (Notice(USR1), Notice(USR1), Notice(12, first=True)):
        here.cluster.signal(1, notice, here.now, "ann")
    here.send()
    here.settle()

    twice = [(USR1, "tasks")] * 2
    assert signals(here) == {("n0", 1, 1): [*twice, (12, "first")], ("n1", 1, 1): twice}
    assert entries(here, 1)[-1] == {"signal": 12, "by": "ann"}
