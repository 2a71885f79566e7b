# SPDX-License-Identifier: Apache-2.0
"""The connection to the scheduler: it is restored whenever it breaks, and the agent never waits for it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import zmq
from drom.agent.control import keys
from drom.agent.control.messages import is_answer
from drom.agent.control.remote import not_let_in, not_proven, watch_peer
from drom.agent.control.zmq_monitor import next_event
from drom.agent.execution import protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drom.agent.control.keys import Keys
    from drom.agent.execution.protocol import FromAgent, Hello, ToAgent, Welcome
    from drom.agent.observe.log import Log

PATIENCE = 3.0
"""Seconds from one Hello to the next until the node is welcomed."""
DEAD_MS = 10_000
"""Milliseconds without an answer of the scheduler's machine after which the connection is made again."""
_UNKNOWN = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_STRANGE = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_ENDED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
SURE = 3
"""Handshakes that fail in a row without a reason before keys are reported as the cause: a peer may have died."""
NO_AGENTS = "this is the address for users, not agents: give that of the scheduler's --agents, or its agents socket."


def host_of(address: str) -> str:
    """Return the host of a TCP endpoint, which names the stored public key of the scheduler; empty for others."""
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    return host if address.startswith("tcp://") else ""


class SchedulerConnection:
    """A DEALER socket connected to `address`.

    `fd` is readable when `read` may return something; ZeroMQ signals edges, so read after every use. Messages sent
    without a connection are lost: those that matter are sent again after `welcome`. Over TCP both sides show keys,
    because a scheduler starts programs as any user.
    """

    def __init__(self, address: str, log: Log, own: Keys | None = None) -> None:
        self.address = address
        self.malformed = 0
        """Number of messages that were dropped."""
        self.cluster: str | None = None
        """The name of the cluster, once the node has been welcomed."""
        self._log = log
        self._heartbeat = 1.0
        self._next = 0.0
        self._unsaid = False
        self._told = ""
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.IMMEDIATE, 1),
            (zmq.MAXMSGSIZE, protocol.MAX_MESSAGE),
            (zmq.RECONNECT_IVL, 100),
            (zmq.RECONNECT_IVL_MAX, 2000),
            (zmq.SNDHWM, 0),
            (zmq.RCVHWM, 0),
            (zmq.IPV6, 1),
        ):
            self._socket.setsockopt(option, value)
        watch_peer(self._socket, DEAD_MS)
        self._own, self._failures = own, 0
        self._monitor: zmq.Socket[bytes] | None = None
        if own:
            keys.guard_client(self._socket, own, host_of(address))
            self._monitor = self._socket.get_monitor_socket(_UNKNOWN | _STRANGE | _ENDED)
        self._socket.connect(address)
        self.fd = int(self._socket.getsockopt(zmq.FD))

    def read(self) -> Iterator[ToAgent]:
        """Yield the received messages; malformed ones are counted and logged."""
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            data = frames[0] if len(frames) == 1 else b""
            try:
                yield protocol.to_agent(data)
            except protocol.MalformedError as error:
                self.malformed += 1
                if is_answer(data):
                    self.rejected(NO_AGENTS)
                else:
                    self._log("message_dropped", message=str(error))

    def send(self, message: FromAgent) -> bool:
        """Send a message; return False if no scheduler is connected."""
        try:
            self._socket.send(protocol.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def send_hello(self, hello: Hello, now: float) -> None:
        """Send `hello`; it is due again after `PATIENCE` unless the node is welcomed. `now` is of CLOCK_MONOTONIC."""
        self.cluster = None
        self._read_handshakes()
        self._unsaid = not self.send(hello)
        self._next = now + PATIENCE

    def welcome(self, message: Welcome, now: float) -> None:
        """Record that the node has joined a cluster."""
        if self.cluster is None:
            self._log("cluster_joined", cluster=message.name, address=self.address)
        self.cluster, self._told, self._unsaid, self._failures = message.name, "", False, 0
        self._heartbeat = min(max(message.heartbeat, 0.05), 60.0)
        self._next = now + self._heartbeat

    def rejected(self, reason: str) -> None:
        """Record that the node may not join, and log each new reason once."""
        self.cluster = None
        if reason != self._told:
            self._told = reason
            self._log("node_refused", address=self.address, reason=reason)

    def _read_handshakes(self) -> None:
        """Read failed handshakes, report unknown keys, and connect again, which ZeroMQ does not do by itself."""
        event = 0
        with suppress(zmq.Again):
            while self._monitor:
                event, _ = next_event(self._monitor, zmq.NOBLOCK)
                self._failures += 1
        if not (event and self._own):
            return
        if event & _UNKNOWN or self._failures >= SURE:
            self.rejected(_why_not(event, self._own, self.address))
        with suppress(zmq.ZMQError):  # it has been given up already
            self._socket.disconnect(self.address)
        self._socket.connect(self.address)

    def is_due(self, now: float) -> bool:
        """Return whether a message is due; a Hello that could not be sent is due at once."""
        return self._unsaid or now >= self._next

    def send_heartbeat(self, alive: FromAgent, now: float) -> None:
        """Send a heartbeat, whether a scheduler is connected or not."""
        self._read_handshakes()
        self.send(alive)
        self._next = now + self._heartbeat

    def next_due(self) -> float:
        """Return when the next message is due (seconds of CLOCK_MONOTONIC)."""
        return self._next

    def close(self) -> None:
        """Close the connection."""
        self._context.destroy(linger=0)


def _why_not(event: int, own: Keys, address: str) -> str:
    """Return a sentence on what a failed handshake means for the keys of both sides."""
    if event & _UNKNOWN:
        hint = f"run `drom keys trust FILE NODE` there with {own.folder / keys.PUBLIC}."
        return f"the scheduler does not trust this node's key: {hint}"
    return (not_proven if event & _STRANGE else not_let_in)(address.removeprefix("tcp://"), own, host_of(address))
