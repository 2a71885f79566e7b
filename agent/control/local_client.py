# SPDX-License-Identifier: Apache-2.0
"""Requests and their answers over a server's control socket on this node, without libzmq.

libzmq reports neither which user listens at a socket nor that a connection has ended. A server that uses libzmq may
drop the request: it accepts no message before its own READY.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

from drom.agent.control.zmtp import MORE, frame
from drom.agent.system.proc import is_unknown_user, peer_credentials

from dromlib.subscription import COMMAND, GREETING, LONG, ready

if TYPE_CHECKING:
    from pathlib import Path

_READY = ready(b"DEALER")
LARGEST = 1 << 30
"""Most bytes of an answer; a listener that sends more is not a server of drom."""


class ForeignListenerError(Exception):
    """Raised when a socket's listener runs as another user than root or the caller."""

    def __init__(self, uid: int) -> None:
        super().__init__(uid)
        self.uid = uid


def connect(path: Path, seconds: float, *, trusted: bool = False, greeted: bool = False) -> socket.socket:
    """Return a connection to the socket at `path`, with a timeout of `seconds` for its operations.

    `trusted`: any user may listen there. `greeted`: wait until the server has accepted the connection, as drom's
    servers then send their greeting. Raises `ForeignListenerError`, TimeoutError and other OSErrors.
    """
    made = socket.socket(socket.AF_UNIX)
    try:
        # The kernel waits in turn for a place in the server's queue; a loop of attempts would hardly get one.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))
        try:
            made.connect(os.fspath(path))
        except BlockingIOError:
            raise TimeoutError from None
        made.settimeout(seconds)
        if not trusted:
            _check_listener(made)
        if greeted:
            made.recv(1, socket.MSG_PEEK)
    except BaseException:
        made.close()
        raise
    return made


def _check_listener(connection: socket.socket) -> None:
    uid = peer_credentials(connection)[1]
    if uid not in (0, os.geteuid()) and not is_unknown_user(uid):
        raise ForeignListenerError(uid)


def ask(connection: socket.socket, message: bytes, *, greeted: bool = False) -> bytes:
    """Send a message and return the answer. The first one goes with the greeting, as drom's servers read both at once.

    `greeted`: an answer has come through this connection before. Raises TimeoutError, ConnectionError if the other side
    closes the connection or does not use ZMTP, and other OSErrors.
    """
    _send(connection, frame(message) if greeted else GREETING + frame(_READY, COMMAND) + frame(message))
    greeting = GREETING if greeted else _read(connection, len(GREETING))
    if greeting[0] != GREETING[0] or greeting[10] < GREETING[10]:
        raise ConnectionError("the program that listens there does not use ZMTP 3")
    while True:
        kind = _read(connection, 1)[0]
        length = int.from_bytes(_read(connection, 8 if kind & LONG else 1), "big")
        if length > LARGEST or kind & MORE:
            raise ConnectionError("the program that listens there sends no answers")
        body = _read(connection, length)
        if not kind & COMMAND:
            return body


def _send(connection: socket.socket, data: bytes) -> None:
    """Send to a server, which may refuse without reading: then its answer has arrived already."""
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(data)


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(min(size - len(data), 1 << 20))
        if not piece:
            raise ConnectionResetError("the other side has closed the connection")
        data += piece
    return bytes(data)
