# SPDX-License-Identifier: Apache-2.0
"""The schedulers of a cluster as an agent sees them: connections to all, and orders from the one that leads.

Of two schedulers that both welcome the node, the one with the greater epoch has taken over from the other, which may
not know it yet: orders of the other no longer count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.agent.execution.connection import SchedulerConnection, host_of
from drom.agent.execution.protocol import No, Welcome, Who

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from drom.agent.control.keys import Keys
    from drom.agent.execution.protocol import FromAgent, Hello, ToAgent
    from drom.agent.observe.log import Log

OLDER = "it was replaced by another scheduler, which has this node: restart it, or this agent if it is a new cluster's."


class Schedulers:
    """Connections to the schedulers at `addresses`; `fds` are those of the connections."""

    def __init__(self, addresses: Iterable[str], log: Log, own: Keys | None) -> None:
        self._links = [SchedulerConnection(one, log, own if host_of(one) else None) for one in addresses]
        self._leader = self._links[0]
        """The one that has welcomed the node last."""
        self._epoch = 0
        self.fds = [link.fd for link in self._links]

    @property
    def is_member(self) -> bool:
        """Whether the node has been welcomed."""
        return self._leader.cluster is not None

    def send(self, message: FromAgent) -> None:
        """Send a message to the scheduler that leads, if the node has been welcomed."""
        if self.is_member:
            self._leader.send(message)

    def report(self, hello: Callable[[], Hello], alive: Callable[[], FromAgent], now: float) -> None:
        """Send what is due at `now` (CLOCK_MONOTONIC): `hello` until the node is welcomed, then `alive`."""
        for link in self._links:
            if link.is_due(now) and link.cluster is None:
                link.send_hello(hello(), now)
            elif link.is_due(now):
                link.send_heartbeat(alive(), now)

    def read(self) -> Iterator[tuple[SchedulerConnection, ToAgent]]:
        """Yield the messages that count, with their connections."""
        for link in self._links:
            for message in link.read():
                if link is self._leader or isinstance(message, (Welcome, No, Who)):
                    yield link, message

    def welcomed(self, link: SchedulerConnection, message: Welcome, now: float) -> bool:
        """Follow the scheduler that welcomes the node; return False if another one has taken over from it."""
        if message.epoch < self._epoch:
            link.rejected(OLDER)
            return False
        if link is not self._leader:
            self._leader.cluster = None
        self._leader, self._epoch = link, message.epoch
        link.welcome(message, now)
        return True

    def rejected(self, link: SchedulerConnection, reason: str) -> None:
        """Record that a scheduler does not take the node; that one stands by for the leader is not logged."""
        if link is self._leader or not self.is_member:
            link.rejected(reason)

    def next_due(self) -> float:
        """Return when the next message is due (seconds of CLOCK_MONOTONIC)."""
        return min(link.next_due() for link in self._links)

    def close(self) -> None:
        """Close all connections."""
        for link in self._links:
            link.close()
