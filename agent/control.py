# SPDX-License-Identifier: Apache-2.0
"""ZeroMQ between the agent and its command line: orders (ROUTER) and signals (PUB), both over ipc.

Orders from other nodes come through a gate of `agent.remote`.

A request is one JSON object ``{"protocol": 1, "order": NAME, ...}``; the answer ``{"ok": true, "value": ...}`` or
``{"ok": false, "error": SENTENCE}``. Signals are those of `dromlib.signals`.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import zmq

from agent.crowd import Crowd
from agent.quotas import MOST_CONNECTIONS
from dromlib import signals as events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.remote import Gate, Remote

PROTOCOL = 1
MAX_MESSAGE = 1 << 16
"""Bytes of a request to an agent; longer ones are dropped by ZeroMQ and the connection closed."""
PILE = 16
"""Requests that wait on a connection at most, fewer where they may be longer: they must not fill memory."""
UNREAD = 2
"""Answers that wait on a connection at most; of one that takes none, the others are dropped. They may be very long."""
PER_TURN = 32
TURN_SECONDS = 0.005
"""Requests that are answered, and for how long, before the agent looks at the rest of the world again."""
TIMEOUT_MS = 30_000
"""How long an agent that listens is waited for: it answers in milliseconds, on an overloaded machine in seconds."""


class ControlError(Exception):
    """Raised when an order was refused or no agent answers; the message is a sentence for people."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent an order: process and user in the kernel's words, or on another node the name of its `key`."""

    pid: int
    uid: int
    key: str = ""


class Service(NamedTuple):
    """Who answers orders: its name, how it is started in a directory, and the bytes that it takes in a request."""

    name: str
    command: str
    longest: int = MAX_MESSAGE


AGENT = Service("agent", "drom agent --runtime-dir")


def endpoint(runtime_dir: Path, name: str) -> str:
    """Return the ipc endpoint `name` of a runtime directory. Raises `ControlError` when its path is too long."""
    try:
        return events.endpoint(runtime_dir, name)
    except ValueError as error:
        raise ControlError(str(error)) from error


class Server:
    """The agent's side. `fds` are readable when `serve` may have work; ZeroMQ signals edges, so drain after every use.

    Orders come from this node, and through the `gate` from others. `share` returns how many connections to each socket
    a user of this node may have, and requests are at most `longest` bytes long. `turn`: see `TURN_SECONDS`.
    """

    def __init__(
        self,
        runtime_dir: Path,
        mode: int,
        gate: Gate | None = None,
        share: Callable[[int], int] = lambda _: MOST_CONNECTIONS,
        longest: int = MAX_MESSAGE,
        *,
        turn: float = TURN_SECONDS,
    ) -> None:
        self._longest = longest
        self._turn = turn
        self._context = zmq.Context()
        self._gate = gate
        self._crowds: list[Crowd] = []
        self._orders = self._bind(zmq.ROUTER, endpoint(runtime_dir, "control"), mode)
        self._signals = self._bind(zmq.XPUB, endpoint(runtime_dir, "signals"), mode)
        pairs = ((self._orders, "control"), (self._signals, "signals"))
        self._crowds += [Crowd(self._context, sock, runtime_dir.absolute() / name, share) for sock, name in pairs]
        self._counters = [self._orders, *([gate.sock] if gate else [])]
        fds = [int(sock.getsockopt(zmq.FD)) for sock in (*self._counters, self._signals)]
        self._lookers: list[Crowd | Gate] = [*self._crowds, *([gate] if gate else [])]
        self.fds = [*fds, *(looker.fd for looker in self._lookers)]

    def _bind(self, kind: int, address: str, mode: int) -> zmq.Socket[bytes]:
        sock: zmq.Socket[bytes] = self._context.socket(kind)
        sock.setsockopt(zmq.LINGER, 0)
        sock.setsockopt(zmq.MAXMSGSIZE, self._longest)
        sock.setsockopt(zmq.RCVHWM, max(1, PILE * MAX_MESSAGE // self._longest))
        if kind == zmq.ROUTER:
            sock.setsockopt(zmq.SNDHWM, UNREAD)
        try:
            sock.bind(address)
        except zmq.ZMQError as error:
            self.close()
            msg = f"cannot open {address.removeprefix('ipc://')}: {os.strerror(error.errno or 0)}: check the directory."
            raise ControlError(msg) from error
        Path(address.removeprefix("ipc://")).chmod(mode)  # ZeroMQ creates it 0755 whatever the policy
        return sock

    def serve(self, answer: Callable[[dict[str, Any], Caller], Any]) -> bool:
        """Answer orders that are waiting; say whether there may be more. `answer` returns or raises `ControlError`."""
        more = [looker.look() for looker in self._lookers]
        more.append(_repeat(self._hear_listener, self._turn))
        more += [_repeat(partial(_serve_one, counter, answer), self._turn) for counter in self._counters]
        return any(more)

    def _hear_listener(self) -> bool:
        """Look at a new subscription: who wants topics that there are none of fills the memory, and is sent away."""
        try:
            request = self._signals.recv(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        if request.bytes[1:] and not events.is_topic(request.bytes[1:]):
            with suppress(ControlError):
                self._crowds[1].expel(caller_of(request).pid)
        return True

    def signal(self, slot: int, event: dict[str, Any]) -> None:
        """Publish one event about a slot; nobody has to listen."""
        self._signals.send(events.message(slot, event), zmq.NOBLOCK)

    def close(self) -> None:
        """Close all sockets."""
        if self._gate:
            self._gate.close()
        for crowd in self._crowds:
            crowd.close()
        self._context.destroy(linger=0)


def _repeat(step: Callable[[], bool], seconds: float) -> bool:
    """Do a step as long as there is something to do, for a turn; say whether there may be more."""
    until = time.monotonic() + seconds
    for _ in range(PER_TURN):
        if not step():
            return False
        if time.monotonic() >= until:
            break
    return True


def _serve_one(counter: zmq.Socket[bytes], answer: Callable[[dict[str, Any], Caller], Any]) -> bool:
    """Answer an order; False when none is waiting."""
    try:
        frames = counter.recv_multipart(zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return False
    try:
        value = {"ok": True, "value": answer(_order([f.bytes for f in frames]), caller_of(frames[-1]))}
    except ControlError as error:
        value = {"ok": False, "error": str(error)}
    with suppress(zmq.ZMQError):  # the asker has gone or does not read
        counter.send_multipart([frames[0].bytes, json.dumps(value).encode()], zmq.NOBLOCK)
    return True


def _order(frames: list[bytes]) -> dict[str, Any]:
    try:
        order = json.loads(frames[1]) if len(frames) == 2 else None
    except (ValueError, RecursionError):  # brackets may be nested deeper than the parser goes
        order = None
    if not isinstance(order, dict) or not isinstance(order.get("order"), str):
        raise ControlError("an order is one JSON object with a field `order`: use the drom command of this version.")
    if order.get("protocol") != PROTOCOL:
        msg = f"orders here are of protocol {PROTOCOL}: use the drom command of this version."
        raise ControlError(msg)
    return order


def caller_of(frame: zmq.Frame) -> Caller:
    """Return who sent the frame: on ipc, Peer-Address reads ``localhost:uid:gid:pid``; a gate names the key."""
    with suppress(zmq.ZMQError):
        if key := str(frame.get("User-Id")):
            return Caller(0, os.geteuid(), key)
    try:
        _, uid, _, pid = str(frame.get("Peer-Address")).rsplit(":", 3)
        return Caller(int(pid), int(uid))
    except (zmq.ZMQError, ValueError) as error:
        raise ControlError("the kernel did not say who you are: use the ipc socket of this node.") from error


def request(name: str, longest: int = MAX_MESSAGE, **fields: Any) -> bytes:  # noqa: ANN401 - JSON values
    """Return an order as it is sent. Raises ControlError for one that is longer than anybody reads."""
    message = json.dumps({"protocol": PROTOCOL, "order": name, **fields}).encode()
    if len(message) > longest:
        raise ControlError(f"an order is at most {longest >> 10} KiB long: give shorter words.")
    return message


def order(
    where: Path | Remote,
    name: str,
    *,
    server: Service = AGENT,
    **fields: Any,  # noqa: ANN401 - JSON values
) -> Any:  # noqa: ANN401 - a JSON value
    """Send one order to the agent of a runtime directory, or to a remote one, and return the value it answers.

    `server` is who else may be meant.

    Raises `ControlError` when it refuses, when nobody listens, when there is no answer within `TIMEOUT_MS`, and for an
    order that is longer than anybody reads.
    """
    message = request(name, server.longest, **fields)
    who = f"the {server.name} {'in' if isinstance(where, Path) else 'at'} {where}"
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.setsockopt(zmq.LINGER, 0)
        if isinstance(where, Path):
            _connect(sock, where, server)
        else:
            where.connect(sock)
        sock.send(message)
        if not sock.poll(TIMEOUT_MS):
            silence = f"for {TIMEOUT_MS / 1000:g} s: it is stopped, or this machine overloaded."
            raise ControlError(f"{who} has not answered {silence}")
        answer = _answer(sock.recv())
    if "value" not in answer:
        raise ControlError(str(answer.get("error") or f"{who} is of another version: restart it."))
    return answer["value"]


def _connect(sock: zmq.Socket[bytes], runtime_dir: Path, server: Service) -> None:
    address = endpoint(runtime_dir, "control")
    if not _listens(runtime_dir / "control"):
        raise ControlError(f"no {server.name} answers in {runtime_dir}: start one with: {server.command} {runtime_dir}")
    sock.connect(address)


def _answer(data: bytes) -> dict[str, Any]:
    """Return an answer, or an empty one where an agent of another version says what nobody understands."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _listens(path: Path) -> bool:
    """Say whether somebody listens on the socket at `path`: a killed agent leaves the file behind."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
    return True


def signals(runtime_dir: Path, slot: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the agent's events, of one slot or of all, until the caller stops. The registry holds the truth."""
    with zmq.Context() as context, events.subscribe(context, runtime_dir, slot) as sock:
        while True:
            yield events.event(sock.recv())
