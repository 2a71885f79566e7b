# SPDX-License-Identifier: Apache-2.0
"""A scheduler with constraint programming, whose planner is killed and hangs: jobs run, and nobody waits for it."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.live.cluster.resource_controller import PATIENCE

from tests.support.agents import lives, wait_until
from tests.support.clusters import Cluster, cluster, samples

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("ortools")
pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster of two nodes with four cores each under the policy cp."""
    with cluster(tmp_path_factory.mktemp("planned"), "--policy", "cp") as started:
        wait_until(lambda: len(started.children) == 1, lambda: started.log)
        yield started


@pytest.fixture
def here(running: Cluster) -> Iterator[Cluster]:
    """Return it without a job."""
    running.begin()
    yield running
    running.clear()


def plans(here: Cluster) -> dict[str, float]:
    """Return how many plans there have been, by who has made them."""
    return {about["by"]: count for about, count in samples(here.metrics(), "drom_scheduler_plans_total")}


def test_jobs_share_nodes_as_the_planner_says(here: Cluster) -> None:
    """All run at once that fit, and the next when there is room."""
    failures = here.log.count("event=planner_failed")
    job = ("--ntasks", "1", "--cpus-per-task", "2", "--time", "2", "--", "sleep", "inf")
    numbers = [here.submit(*job) for _ in range(4)]
    for number in numbers:
        here.await_state(number, "running")
    last = here.submit(*job)  # not before: of equal jobs that wait, a plan may start any first
    wait_until(lambda: here.job(last)["reason"] == "no node has 2 cores free", lambda: here.job(last))
    assert here.job(last)["state"] == "pending"
    here.ask("cancel", job=numbers[0])
    here.await_state(last, "running")
    assert here.log.count("event=planner_failed") == failures


def test_a_killed_planner_is_started_again(here: Cluster) -> None:
    """Meanwhile the rule decides."""
    (planner,), failures = here.children, here.log.count("event=planner_failed")
    before = plans(here)
    os.kill(planner, signal.SIGKILL)
    here.await_state(here.submit("--ntasks", "1", "--time", "2", "--", "true"), "completed")
    wait_until(lambda: here.log.count("event=planner_failed") == failures + 1, lambda: here.log)
    assert plans(here) == before | {"fallback": before["fallback"] + 1}
    here.await_state(here.submit("--ntasks", "1", "--time", "2", "--", "true"), "completed")
    wait_until(lambda: sum(plans(here).values()) == sum(before.values()) + 2, lambda: plans(here))
    assert plans(here)["solver"] == before["solver"]
    longest = {about["clock"]: most for about, most in samples(here.metrics(), "drom_scheduler_longest_turn_seconds")}
    assert longest["real"] >= longest["cpu"] > 0
    wait_until(lambda: len(here.children) == 1 and here.children != [planner], lambda: here.log)


def test_a_planner_that_hangs_holds_up_nobody(here: Cluster) -> None:
    """Orders are answered, and the rule starts jobs once patience ends; afterwards it plans again."""
    (planner,) = here.children
    os.kill(planner, signal.SIGSTOP)
    try:
        number = here.submit("--ntasks", "1", "--time", "2", "--", "true")
        begin = time.monotonic()
        assert here.ask("nodes")["nodes"]
        assert here.job(number)["state"] == "pending"
        assert time.monotonic() - begin < PATIENCE
        here.await_state(number, "completed")
    finally:
        os.kill(planner, signal.SIGCONT)
    here.await_state(here.submit("--ntasks", "1", "--time", "2", "--", "true"), "completed")
    assert here.children == [planner]


def test_a_planner_ends_with_its_scheduler(here: Cluster) -> None:
    """Also where that is killed; jobs that run are known to the next one."""
    number = here.submit("--ntasks", "1", "--time", "2", "--", "sleep", "inf")
    here.await_state(number, "running")
    for how in (signal.SIGKILL, signal.SIGTERM):
        (planner,) = here.children
        here.end(how)
        wait_until(lambda: not lives(planner), lambda: f"{planner} lives")  # noqa: B023 - it is awaited here
        here.start()
        wait_until(lambda: len(here.children) == 1, lambda: here.log)
        wait_until(lambda: all(node["state"] == "up" for node in here.ask("nodes")["nodes"]), lambda: here.log)
    assert here.job(number)["state"] == "running"
