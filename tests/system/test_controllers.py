# SPDX-License-Identifier: Apache-2.0
"""Several schedulers that are active at once, each with a home partition; others adopt that of one that has gone."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from drom.agent.errors import ControlError

from tests.support.agents import environment, lives, wait_until
from tests.support.clusters import UNCOMPILED
from tests.support.etcd import running
from tests.support.schedulers import Schedulers, survive

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
    """Return three schedulers with home partitions, on an etcd of three members."""
    with ExitStack() as stack:
        found = Schedulers(tmp_path, stack.enter_context(running(tmp_path, 3)), ("p1", "p2", "p3"))
        stack.callback(found.end)
        found.start()
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


def test_what_is_wrong_is_told(here: Schedulers) -> None:
    """Each in one sentence."""
    first = here.all[0]
    choose = "choose --home-partition from p1, p2, p3."
    with pytest.raises(ControlError, match=rf"^there is no home partition p9: {choose}$"):
        here.submit("true", home="p9")
    with pytest.raises(ControlError, match=r"^there is no job 5: see drom queue --all\.$"):
        here.ask("job", job=5)
    for home, sentence in (
        ("p9", f"there is no home partition p9: {choose}"),
        ("", f"this cluster has home partitions: {choose}"),
    ):
        here.homes = (home, *here.homes[1:])
        here.agents["n1"].kill()
        here.join(0)
        here.agents["n1"].await_log(sentence)
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


def test_two_schedulers_of_a_home_partition(tmp_path: Path) -> None:
    """The second one stands by, and leads as soon as the first has gone."""
    with ExitStack() as stack:
        found = Schedulers(tmp_path, stack.enter_context(running(tmp_path)), ("p1", "p1"))
        stack.callback(found.end)
        found.all[0].start()
        found.all[1].start("standing_by")
        found.join(0)
        found.all[0].kill()
        found.await_state(found.submit("true"), "completed")
        assert "home_adopted" not in found.show()


def test_no_job_is_lost_or_run_twice(here: Schedulers) -> None:
    """Whatever is killed, paused or cut off: schedulers, agents, and members of etcd. KILLS and SEED may be set."""
    survive(here, ("kill", "pause", "etcd", "cut", "agent"))
