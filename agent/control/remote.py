# SPDX-License-Identifier: Apache-2.0
"""The agent of another node: a TCP connection on which both sides prove their keys."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zmq
from drom.agent.control import keys
from drom.agent.control.zmq_monitor import next_event
from drom.agent.errors import ControlError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from drom.agent.control.keys import Keys
    from drom.agent.control.messages import Service


HANDSHAKE_MS = 10_000
"""Most milliseconds for a peer to identify itself."""
LAST_PORT = 65535
"""The greatest port; ZeroMQ truncates greater numbers."""
ATTEMPTS = 3
RETRY_S = 0.2
"""Attempts if a connection ends before the server has proved its key, and seconds of wait per earlier attempt."""
_NOT_THERE = zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
_NOT_KNOWN = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_NOT_IT = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_ENDED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_DISCONNECTED
REFUSED_KEY = 400
"""Value of EVENT_HANDSHAKE_FAILED_AUTH if the server does not trust the key; others: it could not check the key."""


def watch_peer(sock: zmq.Socket[bytes], dead_ms: int) -> None:
    """End TCP connections of a socket to machines that have not answered for `dead_ms`, by the kernel's keepalive.

    ZeroMQ's own heartbeats do not serve: libzmq 4.3.5 aborts the process (`!_io_error`) if it sends or answers one on a
    connection that the peer has closed while messages from it wait to be read, as after a pause of this process.
    """
    seconds = max(1, dead_ms // 4000)
    for option, value in (
        (zmq.TCP_KEEPALIVE, 1),
        (zmq.TCP_KEEPALIVE_IDLE, seconds),
        (zmq.TCP_KEEPALIVE_INTVL, seconds),
        (zmq.TCP_MAXRT, dead_ms),
    ):
        sock.setsockopt(option, value)


def _has_port(address: str) -> bool:
    """Return whether an address has no port number, or a valid one."""
    port = address.rpartition(":")[2]
    return not port.isdecimal() or int(port) <= LAST_PORT


@dataclass(frozen=True, slots=True)
class RemoteAddress:
    """An agent or a scheduler on another node: its `address` (``HOST:PORT``), and the folder of our keys for it."""

    address: str
    folder: Path
    patience_ms: int = HANDSHAKE_MS
    """Most milliseconds for it to answer a connection at all."""

    def __str__(self) -> str:
        """Return its name in messages: the address."""
        return self.address

    @property
    def host(self) -> str:
        """The name of the node, under which the agent's public key is stored."""
        return self.address.rpartition(":")[0].strip("[]")

    def ask(self, sock: zmq.Socket[bytes], message: bytes, server: Service, timeout_ms: int) -> bytes | None:
        """Send a message to the service `server` and return the answer; None if there is none in time.

        Nothing is sent before both sides have proved their keys. Raises `ControlError` with a sentence.
        """
        own = keys.load(self.folder)
        with self._connect(sock, own, server) as monitor:
            sock.send(message)
            poller = zmq.Poller()
            poller.register(sock, zmq.POLLIN)
            poller.register(monitor, zmq.POLLIN)
            ready = dict(poller.poll(timeout_ms))
            if sock in ready or not ready:
                return sock.recv() if ready else None
            raise ControlError(not_let_in(self.address, own, self.host))  # there was no room for it

    @contextmanager
    def _connect(self, sock: zmq.Socket[bytes], own: Keys, server: Service) -> Iterator[zmq.Socket[bytes]]:
        """Connect a socket; yield its monitor once both sides have proved their keys.

        The monitor has an event when the connection ends.
        """
        keys.guard_client(sock, own, self.host)
        sock.setsockopt(zmq.RECONNECT_IVL, -1)
        sock.setsockopt(zmq.IPV6, 1)
        watched = zmq.EVENT_HANDSHAKE_SUCCEEDED | _NOT_THERE | _NOT_KNOWN | _NOT_IT | _ENDED
        event = value = 0
        for attempt in range(ATTEMPTS):
            time.sleep(RETRY_S * attempt)
            with sock.get_monitor_socket(watched) as monitor:
                self._begin(sock)
                event, value = _first_event(monitor, self.patience_ms)
                if event & zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    yield monitor
                sock.disable_monitor()
            if not event & _ENDED:
                break
            with suppress(zmq.ZMQError):  # ZeroMQ has given it up already
                sock.disconnect(f"tcp://{self.address}")
        self._check(event, value, own, server)

    def _begin(self, sock: zmq.Socket[bytes]) -> None:
        sentence = (
            f"{self.address} is not an address: write HOST:PORT, such as node1:9465, with a port up to {LAST_PORT}."
        )
        if not _has_port(self.address):
            raise ControlError(sentence)
        try:
            sock.connect(f"tcp://{self.address}")
        except zmq.ZMQError as error:
            raise ControlError(sentence) from error

    def _check(self, event: int, value: int, own: Keys, server: Service) -> None:
        if event & zmq.EVENT_HANDSHAKE_SUCCEEDED:
            return
        if event & _NOT_KNOWN and value != REFUSED_KEY:
            raise ControlError(f"the {server.name} at {self.address} cannot check keys at present: {_AGAIN}")
        if event & _NOT_KNOWN:
            hint = f"let its administrator run `drom keys trust FILE NAME` with {own.folder / keys.PUBLIC}."
            raise ControlError(f"the {server.name} at {self.address} does not trust this key: {hint}")
        if event & _NOT_IT:
            raise ControlError(not_proven(self.address, own, self.host))
        if event & _ENDED:
            raise ControlError(not_let_in(self.address, own, self.host))
        where = f"no {server.name} listens at {self.address}"
        raise UnreachableError(f"{where}: check the address and its option {server.option}.")


_AGAIN = "try again in a moment."


def not_proven(address: str, own: Keys, host: str) -> str:
    """Return the sentence for a server that does not have the key stored here."""
    return f"the program at {address} did not prove to be {host}, and nothing was sent to it: {_compare(own, host)}."


def not_let_in(address: str, own: Keys, host: str) -> str:
    """Return the sentence for a server that ended the connection before either side had proved a key."""
    reason = f"{address} rejected the connection, perhaps because it has too many connections"
    return f"{reason}: {_AGAIN[:-1]}; if that does not help, {_compare(own, host)}."


def _compare(own: Keys, host: str) -> str:
    if path := own.file_of(host):
        return f"ask its administrator whether the key in {path} is still its identity.key"
    return f"ask its administrator for its identity.key, as there is none for {host} in {own.folder / keys.PEERS}"


def _first_event(monitor: zmq.Socket[bytes], timeout_ms: int) -> tuple[int, int]:
    """Return the first event of a socket's monitor and its value, zeros if there is none in time."""
    deadline = time.monotonic() + timeout_ms / 1000
    while monitor.poll(max(0, int((deadline - time.monotonic()) * 1000))):
        return next_event(monitor)
    return 0, 0
