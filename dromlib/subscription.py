# SPDX-License-Identifier: Apache-2.0
"""A subscription to the agent's ZeroMQ signals, read by the program itself from the socket.

libzmq adds two threads to the program, one of which reads the message and wakes the program: two wake-ups instead of
one. The protocol of a subscriber is small: ZMTP 3.0 (https://rfc.zeromq.org/spec/23/) with the mechanism NULL.
"""

from __future__ import annotations

import socket

from dromlib import signals

TYPE_CHECKING = False  # as typing's, whose import takes longer than all else here
if TYPE_CHECKING:
    import os

    from typing_extensions import Self

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
GREETING = SIGNATURE + bytes([3, 0]) + b"NULL".ljust(20, b"\0") + bytes(32)
LONG, COMMAND = 2, 4
"""Bits of a frame's first byte: its length takes eight bytes; it is a command."""
IS_READY = b"\x05READY"


def ready(kind: bytes) -> bytes:
    """Return the command READY of a socket of this type."""
    return IS_READY + b"\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind


READY = ready(b"SUB")
LARGEST = 1 << 20
"""Maximum bytes of a frame: no agent sends larger signals."""
AT_ONCE = 1 << 16


class Subscription:
    """The signals of one slot, as `signals.subscribe` delivers them; a context manager that unsubscribes at its end.

    Its descriptor is readable when `receive` may have something to do. Signals published before the agent has received
    the subscription are lost: read the slot after a while. It does not connect again.
    """

    def __init__(self, runtime_dir: str | os.PathLike[str], slot: int) -> None:
        """Connect. Raises OSError if no agent listens, ValueError as `signals.endpoint` does."""
        self._topic = signals.topic(slot)
        self._data = bytearray()
        self._greeted = False
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.setblocking(False)
            self._socket.connect(signals.endpoint(runtime_dir).removeprefix("ipc://"))
            self._socket.sendall(GREETING + _frame(COMMAND, READY))
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._socket.fileno()

    def receive(self) -> bytes | None:
        """Return the next signal, as `signals.event` takes it; None if there is none yet. Does not wait.

        Raises OSError if the agent has closed the connection, or another program listens there.
        """
        while True:
            while frame := self._frame():
                kind, body = frame
                if not kind & COMMAND:
                    return body
                if body.startswith(IS_READY):
                    self._socket.sendall(_frame(0, b"\x01" + self._topic))
            try:
                data = self._socket.recv(AT_ONCE)
            except BlockingIOError:
                return None
            if not data:
                raise ConnectionResetError("The agent has closed the connection of a subscription.")
            self._data += data

    def close(self) -> None:
        """Unsubscribe."""
        self._socket.close()

    def _frame(self) -> tuple[int, bytes] | None:
        """Remove the next complete frame from the received data; return its first byte and its body, or None.

        The greeting, which comes first, is checked and skipped.
        """
        data = self._data
        if not self._greeted and len(data) >= len(GREETING):
            if not (data[0] == SIGNATURE[0] and data[9] == SIGNATURE[9] and data[10] >= GREETING[10]):
                raise ConnectionError("The socket for subscriptions is not an agent's: its answer is not ZMTP 3.")
            del data[: len(GREETING)]
            self._greeted = True
        head = 9 if data and data[0] & LONG else 2
        if not self._greeted or len(data) < head:
            return None
        end = head + int.from_bytes(data[1:head], "big")
        if end > LARGEST:
            raise ConnectionError("The socket for subscriptions is not an agent's: it sends more than signals.")
        if len(data) < end:
            return None
        frame = data[0], bytes(data[head:end])
        del data[:end]
        return frame


def _frame(kind: int, body: bytes) -> bytes:
    return bytes([kind, len(body)]) + body
