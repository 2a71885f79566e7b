# SPDX-License-Identifier: Apache-2.0
"""The schedulers of a cluster as an agent sees them: it obeys the one that took over last."""

from __future__ import annotations

import io
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.config.options import OPTIONS, endpoints
from drom.agent.execution import connection
from drom.agent.execution import protocol as say
from drom.agent.execution.schedulers import OLDER, Schedulers
from drom.agent.observe.log import Log

from tests.agent.execution.test_connection import HELLO
from tests.support.agents import wait_until
from tests.support.fake_scheduler import FakeScheduler

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ALIVE = say.Alive("n1", 0.0)


class Node:
    """A node with connections to two schedulers, and the orders that count."""

    def __init__(self, schedulers: list[FakeScheduler]) -> None:
        self._stream = io.StringIO()
        self._all = schedulers
        self.links = Schedulers([one.address for one in schedulers], Log(self._stream), None)
        self.orders: list[Any] = []

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._stream.getvalue()

    def run(self) -> None:
        """Report, and read what has come, as an agent's loop does."""
        now = time.monotonic()
        self.links.report(lambda: HELLO, lambda: ALIVE, now)
        for link, message in self.links.read():
            if isinstance(message, say.Welcome):
                self.links.welcomed(link, message, now)
            elif isinstance(message, say.No):
                self.links.rejected(link, message.reason)
            elif isinstance(message, say.Who):
                link.send_hello(HELLO, now)
            else:
                self.orders.append(message.job)
        for one in self._all:
            one.serve(0.001)


@pytest.fixture
def schedulers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeScheduler]]:
    """Return two schedulers, of which the second has taken over from the first."""
    monkeypatch.setattr(connection, "PATIENCE", 0.05)
    with ExitStack() as stack:
        yield [
            stack.enter_context(closing(FakeScheduler(f"ipc://{tmp_path}/{epoch}", epoch=epoch))) for epoch in (5, 9)
        ]


def test_orders_of_a_scheduler_that_was_replaced_do_not_count(schedulers: list[FakeScheduler]) -> None:
    """The one with the greater epoch is obeyed, whichever welcomes the node first; the log says so once."""
    node = Node(schedulers)
    with closing(node.links):

        def obeyed(number: int) -> bool:
            node.run()
            for one, job in zip(schedulers, (1, 2), strict=True):
                if "n1" in one.names:
                    one.say("n1", say.Forget(job, 1))
            return node.orders[-3:] == [number] * 3 and all("n1" in one.names for one in schedulers)

        wait_until(lambda: obeyed(2), lambda: node.log)
        node.orders.clear()
        for _ in range(50):
            obeyed(2)
        assert set(node.orders) == {2}
        assert node.log.count(OLDER) <= 1
        schedulers[0].epoch = 12  # it has taken over in turn
        wait_until(lambda: obeyed(1), lambda: node.log)
        assert node.log.count("event=cluster_joined") >= 2


def test_a_standby_is_not_logged_by_a_node_that_has_a_scheduler(schedulers: list[FakeScheduler]) -> None:
    """That it has to wait for the leader is no news; a node without any scheduler says why."""
    node = Node(schedulers[:1])
    with closing(node.links):

        def joined() -> bool:
            node.run()
            return node.links.is_member

        wait_until(joined, lambda: node.log)
        other, leader = connection.SchedulerConnection("ipc:///nobody", Log(quiet=True)), node.links._leader
        node.links.rejected(other, "it stands by.")
        assert "node_refused" not in node.log
        node.links.rejected(leader, "it stands by.")
        assert node.log.count("node_refused") == 1
        other.close()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("tcp://a:1,tcp://b:2", 2),
        ("ipc:///a,b/c,tcp://[::1]:3", 2),
        ("tcp://a:1,tcp://a:1", 0),
        (",".join(f"tcp://a:{n}" for n in range(1, 10)), 0),
        ("tcp://a:1,", 0),
    ],
)
def test_several_addresses_are_given_with_commas(text: str, count: int) -> None:
    """Each once, eight at most; a path may have commas in it."""
    (option,) = [option for option in OPTIONS if option.name == "scheduler"]
    assert bool(count) == bool(option.about.kind.accepts(text))
    assert not count or len(endpoints(text)) == count
