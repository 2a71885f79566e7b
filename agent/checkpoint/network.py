# SPDX-License-Identifier: Apache-2.0
"""Carries an image over the network once: a process serves it, and another node fetches it.

Both prove keys that were made for this image alone (CURVE): the server its own, whose public key the client knows, and
the client that of a pair whose secret half is handed to it. Without them nobody gets further than a handshake, and the
number of connections is bounded (`drom.agent.control.gate`). The client requests each message of the image
(`drom.agent.checkpoint.transfer`), up to `WINDOW` of them ahead.
"""

from __future__ import annotations

import math
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import zmq
from drom.agent.checkpoint import transfer
from drom.agent.checkpoint.images import CheckpointError
from drom.agent.control.gate import RemoteEndpoint
from drom.agent.control.keys import Keys
from drom.agent.text import in_words

if TYPE_CHECKING:
    from drom.agent.checkpoint.store import ImageStore
    from drom.agent.checkpoint.tools import Limit

WINDOW = 16
"""Messages that are requested before the first has come."""
IDLE = 30.0
"""Seconds without a message or a request after which the other side is given up."""
SLOWEST = 1 << 20
"""Bytes a second that have to come, on average, beyond the time that a fetch may take anyway."""
CONNECTIONS = 64
_REQUEST = b"+"
_HANDSHAKE = 1024
"""Bytes of a frame that both sides accept, also while they prove their keys, beside what is sent."""


@dataclass(frozen=True, slots=True)
class _OneClient(Keys):
    """A server's keys, and the public key of its only client."""

    client: bytes = b""

    def peers(self) -> dict[bytes, str]:
        """Return the client, by its key."""
        return {self.client: "client"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where an image can be fetched: a port of a host, the server's public key, and the client's secret one."""

    host: str
    port: int
    key: str
    secret: str


class Server:
    """Serves an image at a free port of the address `host`, for a client that is told the `place`."""

    def __init__(self, host: str) -> None:
        public, own = zmq.curve_keypair()
        client, secret = zmq.curve_keypair()
        keys = _OneClient(Path("/nonexistent"), public, own, client=client)
        address = f"[{host}]:0" if ":" in host else f"{host}:0"
        self._endpoint = RemoteEndpoint(address, keys, CONNECTIONS, longest=_HANDSHAKE, unread=2 * WINDOW)
        self.place = Place(host, self._endpoint.port, public.decode(), secret.decode())
        self._client = b""

    def serve(self, store: ImageStore, job: int, generation: int) -> None:
        """Send an image to the client, and wait until it has all of it.

        Raises `CheckpointError` if the image is missing, or the client does not fetch it.
        """
        transfer.send(store, job, generation, self._send)
        try:
            for _ in range(WINDOW):
                self._await_request()
        except OSError as error:
            msg = f"the image of job {job} was not sent in full: {error.strerror}."
            raise CheckpointError(msg) from error

    def _send(self, message: bytes) -> None:
        """Send a message once it is requested. Raises `TimeoutError`."""
        self._await_request()
        self._endpoint.sock.send_multipart([self._client, message], copy=False)

    def _await_request(self) -> None:
        """Wait for a request of the client, which is the first that sends one. Raises `TimeoutError`."""
        until = time.monotonic() + IDLE
        poller = zmq.Poller()
        poller.register(self._endpoint.sock, zmq.POLLIN)
        poller.register(self._endpoint.fd, zmq.POLLIN)
        while True:
            while self._endpoint.run():
                pass
            if heard := self._endpoint.read():
                self._client = self._client or heard.line
                if heard.line == self._client:
                    return
            elif time.monotonic() >= until:
                msg = "the other node does not fetch it"
                raise TimeoutError(0, msg)
            else:
                poller.poll(100)

    def close(self) -> None:
        """Close the port."""
        self._endpoint.close()


class _Messages:
    """The messages of a server, each requested `WINDOW` messages ahead. Each extends the limit by its length."""

    def __init__(self, sock: zmq.Socket[bytes], limit: Limit) -> None:
        self._sock = sock
        self._until = limit.until
        self._poller = zmq.Poller()
        self._poller.register(sock, zmq.POLLIN)
        if limit.stop >= 0:
            self._poller.register(limit.stop, zmq.POLLIN)
        for _ in range(WINDOW):
            sock.send(_REQUEST)

    def next(self) -> memoryview:
        """Return the next one. Raises OSError if none comes."""
        left = min(IDLE, max(0.0, self._until - time.monotonic()))
        ready = dict(self._poller.poll(math.ceil(left * 1000)))
        if ready.keys() - {self._sock}:
            raise TimeoutError(0, "a save was ordered meanwhile")
        if time.monotonic() >= self._until:
            raise TimeoutError(0, f"the other node sends less than {in_words(SLOWEST)} a second")
        if not ready:
            raise TimeoutError(0, "the other node does not send it")
        message = self._sock.recv(copy=False).buffer
        self._until += len(message) / SLOWEST
        self._sock.send(_REQUEST)
        return message


def fetch(store: ImageStore, wanted: tuple[int, int, int], at: Place, limit: Limit) -> None:
    """Fetch the image of a job, with the number of the save and the user `wanted`, into the store.

    A large image may take longer than the `limit`, by a second for each `SLOWEST` bytes.

    Raises `CheckpointError`, and then adds nothing.
    """
    host = at.host
    context = zmq.Context()
    try:
        sock = context.socket(zmq.DEALER)
        longest = transfer.PART + _HANDSHAKE
        for option, value in ((zmq.LINGER, 1000), (zmq.IPV6, 1), (zmq.MAXMSGSIZE, longest), (zmq.RCVHWM, WINDOW)):
            sock.setsockopt(option, value)
        sock.curve_serverkey, sock.curve_secretkey = at.key.encode(), at.secret.encode()
        sock.curve_publickey = zmq.curve_public(at.secret.encode())
        sock.connect(f"tcp://[{host}]:{at.port}" if ":" in host else f"tcp://{host}:{at.port}")
        transfer.receive(store, *wanted, _Messages(sock, limit).next)
        sock.close()
    except (zmq.ZMQError, ValueError) as error:
        msg = f"the image of job {wanted[0]} cannot be fetched from {host}: {error}."
        raise CheckpointError(msg) from error
    finally:
        context.destroy(linger=None)


def address_towards(scheduler: str) -> str:
    """Return this node's address in the network of a scheduler; that of the loopback if it is on this machine."""
    host, _, port = scheduler.removeprefix("tcp://").rpartition(":")
    if not scheduler.startswith("tcp://"):
        return "127.0.0.1"
    family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        found: str = probe.getsockname()[0]
    return found
