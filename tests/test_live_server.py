# SPDX-License-Identifier: Apache-2.0
"""The scheduler's loop, turned by hand, and what it tells of itself."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from agent import control
from agent.log import Log
from agent.steward import protocol as say
from scheduler.compiling import load_policy
from scheduler.errors import SchedulerError
from scheduler.live.cli import SERVICE
from scheduler.live.metrics import ClusterCollector
from scheduler.live.server import Server
from scheduler.live.settings import Settings
from scheduler.live.spec import LARGEST, Spec
from tests.prometheus import tool

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(600)
"""The policy takes a while to compile, once."""


@pytest.fixture
def server() -> Iterator[Server]:
    """Return a scheduler of one node."""
    with TemporaryDirectory(dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("scheduler.live.server.RETRY", 0.0)
        with closing(Server(Path(folder), load_policy("fcfs"), Settings(), Log(quiet=True))) as found:
            found.cluster.hello(say.Hello(say.PROTOCOL, "1", "n1", "n1", "b", 4, 1, 0, {}, (), False, 0.0, ()), 1.0)
            yield found


def scrape(server: Server) -> str:
    """Return what Prometheus gets."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ClusterCollector(server.cluster, server.counts, server.lock))
    return generate_latest(registry).decode()


def test_a_queue_that_cannot_be_written_is_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it can be again: nothing new begins meanwhile, and whoever watches should know."""

    def full(*_: object) -> None:
        raise SchedulerError("the queue cannot be written: make room on its disk.")

    with monkeypatch.context() as changed:
        changed.setattr(server._store, "write", full)
        server.turn()
        assert "\ndrom_scheduler_stuck 1.0\n" in scrape(server)

    server.turn()
    assert "\ndrom_scheduler_stuck 0.0\n" in scrape(server)
    assert [node.name for node in server._store.nodes()] == ["n1"]


def test_the_longest_job_is_heard(server: Server) -> None:
    """Nobody else's requests may be as long."""
    room = LARGEST - len(json.dumps(Spec(command=("true",), folder="/", environment={"A": ""}).to_json()))
    spec = Spec(command=("true",), folder="/", environment={"A": "x" * room})
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(control.order, server._folder, "submit", server=SERVICE, jobs=[spec.to_json()], count=1)
        while not asked.done():
            server.turn()

    assert asked.result()["jobs"] == [1]
    assert server.cluster.jobs[1].spec.environment == spec.environment
    with pytest.raises(control.ControlError, match=r"^an order is at most 64 KiB long"):
        control.order(server._folder, "submit", jobs=[spec.to_json()], count=1)


def test_promtool_has_nothing_to_say(server: Server) -> None:
    """Names, units and help texts follow Prometheus's own rules."""
    command = [tool("promtool"), "check", "metrics"]
    done = subprocess.run(command, input=scrape(server), capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")
