# SPDX-License-Identifier: Apache-2.0
"""What Prometheus sees of a cluster is enough to decide as its scheduler does."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import pytest
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.live.cluster.controller import Controller, JobRequest
from drom.scheduler.live.cluster.jobs import CLASSES
from drom.scheduler.live.cluster.settings import LIVE

from tests.support.clusters import FREELY, cluster, samples

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.clusters import Cluster

pytestmark = pytest.mark.system


class Running(NamedTuple):
    """A job as the scheduler's metrics tell it."""

    start: int
    limit: int
    cls: int


def shares_of(here: Cluster) -> tuple[int, dict[int, dict[int, int]]]:
    """Return the cores of a node, and those that each job holds by index of node, from the scrapes of the agents."""
    cores, shares = set(), defaultdict[int, dict[int, int]](dict)
    for index, agent in enumerate(here.agents.values()):
        text = agent.metrics()
        cores.add(int(sum(value for _, value in samples(text, "drom_cpus"))))
        for labels, value in samples(text, "drom_job_cpus"):
            held = shares[int(labels["job_name"].removeprefix("drom-"))]
            held[index] = held.get(index, 0) + int(value)
    (size,) = cores
    return size, shares


def running(text: str) -> dict[int, Running]:
    """Return the running jobs by number, from a scrape of the scheduler."""
    begun = {
        int(labels["job_id"]): int(value) for labels, value in samples(text, "drom_scheduler_job_start_time_seconds")
    }
    return {
        number: Running(begun[number], int(value), CLASSES[labels["class"]])
        for labels, value in samples(text, "drom_scheduler_job_limit_seconds")
        for number in [int(labels["job_id"])]
    }


def test_a_scrape_is_enough_to_decide(tmp_path: Path) -> None:
    """A policy that knows only what agents and scheduler tell Prometheus puts a guest where the scheduler puts it."""
    with cluster(tmp_path, nodes=3) as here:
        here.begin()
        mates = [
            here.submit("--time", limit, "--class", cls, "--", "sleep", "inf")
            for limit, cls in (("60", "malleable"), ("90", "rigid"), ("70", "malleable"))
        ]
        for mate in mates:
            here.await_state(mate, "running")
        guest = here.submit("--hold", "--nodes", "2", "--time", "10", "--", "sleep", "inf")

        cores, shares = shares_of(here)
        found = running(here.metrics())
        controller = Controller(load_policy("sd", [*LIVE["sd"], FREELY[1]]), cores)
        for node in range(len(here.agents)):
            controller.node_up(node)
        for number, job in sorted(found.items()):
            demand = JobRequest(len(shares[number]), job.limit, job.cls)
            controller.restore(number, demand, shares[number], job.start, job.limit)
        now = int(time.time())
        controller.submit(guest, JobRequest(2, 600, CLASSES["malleable"]), now)
        assert controller.turn(now) == [guest]
        names = list(here.agents)
        decided = {names[node]: controller.cores_on(guest, node) for node in controller.nodes_of(guest)}
        assert decided == {"n1": 2, "n3": 2}

        here.ask("hold", job=guest, held=False)
        here.await_state(guest, "running")

        placed = next(entry for entry in here.job(guest)["history"] if entry["what"] == "placed")
        assert placed["detail"]["shares"] == decided
        for node, residents in controller.changes().items():
            seen = {mate: here.job(mate)["shares"].get(names[node]) for mate in residents}
            assert seen == residents
