# SPDX-License-Identifier: Apache-2.0
"""ZeroMQ between the agent and its command line: orders (ROUTER) and signals (PUB), both over ipc.

A request is one JSON object ``{"protocol": 1, "order": NAME, ...}``; the answer ``{"ok": true, "value": ...}`` or
``{"ok": false, "error": SENTENCE}``. Signals are two frames: a topic of fixed width and one JSON object.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq

from dromlib import signals as events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROTOCOL = 1
MAX_MESSAGE = 1 << 20
"""Bytes of a request; longer ones are dropped by ZeroMQ and the connection closed."""
TIMEOUT_MS = 30_000
"""How long an agent that listens is waited for: it answers in milliseconds, on an overloaded machine in seconds."""


class ControlError(Exception):
    """Raised when an order was refused or no agent answers; the message is a sentence for people."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent an order, in the kernel's words."""

    pid: int
    uid: int


def endpoint(runtime_dir: Path, name: str) -> str:
    """Return the ipc endpoint `name` of a runtime directory. Raises `ControlError` when its path is too long."""
    try:
        return events.endpoint(runtime_dir, name)
    except ValueError as error:
        raise ControlError(str(error)) from error


class Server:
    """The agent's side. `fd` is readable when `serve` may have work; ZeroMQ signals edges, so drain after every use."""

    def __init__(self, runtime_dir: Path, mode: int) -> None:
        self._context = zmq.Context()
        self._orders = self._bind(zmq.ROUTER, endpoint(runtime_dir, "control"), mode)
        self._signals = self._bind(zmq.PUB, endpoint(runtime_dir, "signals"), mode)
        self.fd = int(self._orders.getsockopt(zmq.FD))

    def _bind(self, kind: int, address: str, mode: int) -> zmq.Socket[bytes]:
        sock: zmq.Socket[bytes] = self._context.socket(kind)
        sock.setsockopt(zmq.LINGER, 0)
        sock.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE)
        try:
            sock.bind(address)
        except zmq.ZMQError as error:
            self.close()
            msg = f"cannot open {address.removeprefix('ipc://')}: {os.strerror(error.errno or 0)}: check the directory."
            raise ControlError(msg) from error
        Path(address.removeprefix("ipc://")).chmod(mode)  # ZeroMQ creates it 0755 whatever the policy
        return sock

    def serve(self, answer: Callable[[dict[str, Any], Caller], Any]) -> None:
        """Answer every order that is waiting. `answer` returns a value or raises `ControlError`."""
        while True:
            try:
                frames = self._orders.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                value = {"ok": True, "value": answer(_order([f.bytes for f in frames]), _caller(frames[-1]))}
            except ControlError as error:
                value = {"ok": False, "error": str(error)}
            with suppress(zmq.ZMQError):  # the asker has gone or does not read
                self._orders.send_multipart([frames[0].bytes, json.dumps(value).encode()], zmq.NOBLOCK)

    def signal(self, slot: int, event: dict[str, Any]) -> None:
        """Publish one event about a slot; nobody has to listen."""
        self._signals.send(events.message(slot, event), zmq.NOBLOCK)

    def close(self) -> None:
        """Close both sockets."""
        self._context.destroy(linger=0)


def _order(frames: list[bytes]) -> dict[str, Any]:
    try:
        order = json.loads(frames[1]) if len(frames) == 2 else None
    except (ValueError, RecursionError):  # brackets may be nested deeper than the parser goes
        order = None
    if not isinstance(order, dict) or not isinstance(order.get("order"), str):
        raise ControlError("an order is one JSON object with a field `order`: use the drom command of this version.")
    if order.get("protocol") != PROTOCOL:
        msg = f"this agent takes orders of protocol {PROTOCOL}: use the drom command of this version."
        raise ControlError(msg)
    return order


def _caller(frame: zmq.Frame) -> Caller:
    """Return who sent the frame: on ipc, Peer-Address reads ``localhost:uid:gid:pid``."""
    try:
        _, uid, _, pid = str(frame.get("Peer-Address")).rsplit(":", 3)
        return Caller(int(pid), int(uid))
    except (zmq.ZMQError, ValueError) as error:
        raise ControlError("the kernel did not say who you are: use the ipc socket of this node.") from error


def order(runtime_dir: Path, name: str, **fields: Any) -> Any:  # noqa: ANN401 - a JSON value
    """Send one order to the agent of `runtime_dir` and return the value it answers.

    Raises `ControlError` when it refuses, when nobody listens, or when there is no answer within `TIMEOUT_MS`.
    """
    address = endpoint(runtime_dir, "control")
    if not _listens(runtime_dir / "control"):
        raise ControlError(f"no agent answers in {runtime_dir}: start one with: drom agent --runtime-dir {runtime_dir}")
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.setsockopt(zmq.LINGER, 0)
        sock.connect(address)
        sock.send(json.dumps({"protocol": PROTOCOL, "order": name, **fields}).encode())
        if not sock.poll(TIMEOUT_MS):
            silence = f"for {TIMEOUT_MS / 1000:g} s: it is stopped, or this machine overloaded."
            raise ControlError(f"the agent in {runtime_dir} has not answered {silence}")
        answer = _answer(sock.recv())
    if "value" not in answer:
        raise ControlError(str(answer.get("error") or f"the agent in {runtime_dir} is of another version: restart it."))
    return answer["value"]


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
