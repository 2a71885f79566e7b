# SPDX-License-Identifier: Apache-2.0
"""ZeroMQ between the agent and its command line: orders (ROUTER) and signals (PUB), both over ipc.

On this node both are served by `drom.agent.control.zmtp`. Orders from other nodes come through a gate of
`drom.agent.control.gate`.

A request is one JSON object ``{"protocol": 1, "order": NAME, ...}``; the answer ``{"ok": true, "value": ...}`` or
``{"ok": false, "error": SENTENCE}``. Signals are those of `dromlib.signals`.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import zmq
from drom.agent.control.access import MOST_CONNECTIONS
from drom.agent.control.messages import MAX_MESSAGE, MOST_BRACKETS, PROTOCOL, endpoint
from drom.agent.control.zmtp import PublisherServer, ZmtpServer
from drom.agent.errors import ControlError, ElsewhereError, NotYetError
from drom.agent.model.caller import Caller
from drom.agent.system.connections import MOST_HELD, TURN_SECONDS

from dromlib import signals as events

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.agent.control.gate import RemoteEndpoint
    from drom.agent.control.zmtp import FrameReader

_Opened = TypeVar("_Opened")
PER_TURN = 32
"""Most requests through a gate that are answered before the agent's loop continues."""


class Encoded(NamedTuple):
    """The value of an answer that is already encoded as JSON."""

    json: bytes


class Server:
    """The agent's side. `fds` are readable if `serve` may have work; ZeroMQ signals edges, so drain after every use.

    Orders come from this node, and through the `gate` from others. `share` returns how many connections to each socket
    a user of this node may have, `longest` is the most bytes of a request, and `slots` the number of slots with
    signals. `most_held` and `turn`: see `MOST_HELD` and `TURN_SECONDS` in `drom.agent.system.connections`.
    Raises `ControlError` if a socket cannot be opened.
    """

    def __init__(
        self,
        runtime_dir: Path,
        mode: int,
        gate: RemoteEndpoint | None = None,
        share: Callable[[int], int] = lambda _: MOST_CONNECTIONS,
        longest: int = MAX_MESSAGE,
        *,
        most_held: int = MOST_HELD,
        turn: float = TURN_SECONDS,
        slots: int = 0,
    ) -> None:
        self._turn = turn
        self._gate = gate
        with ExitStack() as opened:
            if gate:
                opened.callback(gate.close)
            self._orders = _open(
                runtime_dir,
                "control",
                lambda path: ZmtpServer(path, mode, b"ROUTER", share, longest, most_held=most_held, refusal=_crowded),
            )
            opened.callback(self._orders.end)
            self._signals = _open(runtime_dir, "signals", lambda path: PublisherServer(path, mode, slots, share))
            opened.pop_all()
        self.fds = [self._orders.fd, self._signals.fd]
        if gate:
            self.fds += [int(gate.sock.getsockopt(zmq.FD)), gate.fd]

    def serve(self, answer: Callable[[dict[str, Any], Caller], Any]) -> bool:
        """Answer waiting orders; return whether there may be more. `answer` returns or raises `ControlError`."""
        self._signals.serve(self._turn)
        self._orders.serve(partial(self._answer, answer), self._turn)
        if not self._gate:
            return False
        return any([self._gate.run(), drain(partial(_serve_one, self._gate, answer), self._turn)])

    def _answer(
        self, answer: Callable[[dict[str, Any], Caller], Any], line: FrameReader, message: bytes | None
    ) -> None:
        self._orders.send(line, _reply(message, lambda: Caller(line.pid, line.uid), answer))

    def signal(self, slot: int, event: dict[str, Any]) -> None:
        """Publish an event about a slot, with or without subscribers."""
        self._signals.publish(slot, events.message(slot, event))

    def close(self) -> None:
        """Close all sockets."""
        if self._gate:
            self._gate.close()
        self._orders.end()
        self._signals.end()


def _crowded(uid: int, has: int | None) -> bytes:
    """Return the answer that refuses a connection: the user `uid` has `has` others, or (None) descriptors run out."""
    sentence = "the agent has no descriptors left for this command: try again in a moment."
    if has is not None:
        sentence = f"user {uid} has {has} commands connected to the agent already: wait until some of them have ended."
    return _encoded({"ok": False, "error": sentence})


def _open(runtime_dir: Path, name: str, make: Callable[[Path], _Opened]) -> _Opened:
    path = Path(endpoint(runtime_dir, name).removeprefix("ipc://"))
    try:
        return make(path)
    except OSError as error:
        msg = f"cannot open {path}: {os.strerror(error.errno or 0)}: check the directory."
        raise ControlError(msg) from error


def drain(step: Callable[[], bool], seconds: float, most: int = PER_TURN) -> bool:
    """Repeat a step, for a turn, while it returns that there may be more; return whether there may be more."""
    until = time.monotonic() + seconds
    for _ in range(most):
        if not step():
            return False
        if time.monotonic() >= until:
            break
    return True


def _serve_one(gate: RemoteEndpoint, answer: Callable[[dict[str, Any], Caller], Any]) -> bool:
    """Answer an order that came through a gate; return False if none is waiting."""
    heard = gate.read()
    if heard is None:
        return False
    reply = _reply(heard.message, lambda: remote_caller(heard.frame), answer)
    with suppress(zmq.ZMQError):  # the client has gone or does not read
        gate.sock.send_multipart([heard.line, reply], zmq.NOBLOCK)
    return True


def _reply(
    message: bytes | None, caller: Callable[[], Caller], answer: Callable[[dict[str, Any], Caller], Any]
) -> bytes:
    """Return the answer to a message (None: one of several frames)."""
    try:
        found = answer(_order(message), caller())
        if isinstance(found, Encoded):
            return b'{"ok": true, "value": ' + found.json + b"}"
        value = {"ok": True, "value": found}
    except ControlError as error:
        value = {"ok": False, "error": str(error)}
        if isinstance(error, NotYetError):
            value["again"] = True
        if isinstance(error, ElsewhereError):
            value["elsewhere"] = True
    return _encoded(value)


def _encoded(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _order(message: bytes | None) -> dict[str, Any]:
    if message and message.count(b"[") + message.count(b"{") > MOST_BRACKETS:
        raise ControlError(f"an order has at most {MOST_BRACKETS} opening brackets: put such data into a file.")
    try:
        order = None if message is None else json.loads(message)
    except (ValueError, RecursionError):  # brackets may be nested too deep for the parser
        order = None
    if not isinstance(order, dict) or not isinstance(order.get("order"), str):
        raise ControlError("an order is one JSON object with a field `order`: use the drom command of this version.")
    if order.get("protocol") != PROTOCOL:
        msg = f"orders here are of protocol {PROTOCOL}: use the drom command of this version."
        raise ControlError(msg)
    return order


def local_caller(frame: zmq.Frame) -> Caller:
    """Return the sender of a frame on this node: on ipc, Peer-Address reads ``localhost:uid:gid:pid``.

    Only for frames from ipc: the address of another node may look like that. Raises `ControlError`.
    """
    try:
        _, uid, _, pid = str(frame.get("Peer-Address")).rsplit(":", 3)
        return Caller(int(pid), int(uid))
    except (zmq.ZMQError, ValueError) as error:
        raise ControlError(
            "the kernel did not identify the user of this connection: use the ipc socket of this node."
        ) from error


def remote_caller(frame: zmq.Frame) -> Caller:
    """Return the sender of a frame through a gate, with the name of its key.

    Raises `ControlError` if the sender's key is no longer trusted.
    """
    with suppress(zmq.ZMQError):  # raised for a peer without a name
        if key := str(frame.get("User-Id")):
            return Caller(0, os.geteuid(), key)
    raise ControlError("your key is no longer trusted: have it trusted again (drom keys trust), then reconnect.")
