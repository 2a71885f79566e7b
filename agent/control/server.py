# SPDX-License-Identifier: Apache-2.0
"""ZeroMQ between the agent and its command line: orders (ROUTER) and signals (PUB), both over ipc.

On this node both are served by `agent.control.zmtp`. Orders from other nodes come through a gate of
`agent.control.gate`.

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

from agent.control import local_client
from agent.control.quotas import MOST_CONNECTIONS
from agent.control.zmtp import Exchange, Signals
from agent.errors import ControlError, NotYetError, RefusedError
from agent.ipc.runtime_dir import fault_of
from agent.model.caller import Caller
from agent.system.connections import TURN_SECONDS
from agent.text import escaped
from dromlib import signals as events

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from agent.control.gate import Gate, Remote
    from agent.control.zmtp import Line

_Opened = TypeVar("_Opened")
PROTOCOL = 1
MAX_MESSAGE = 1 << 16
"""Bytes of a request to an agent; who sends a longer one is hung up on."""
MOST_BRACKETS = 1 << 15
"""Lists and objects of an order, and brackets in its texts: each list takes 60 bytes of memory and some time."""
PER_TURN = 32
"""Requests through a gate that are answered before the agent looks at the rest of the world again."""
TIMEOUT_MS = 30_000
"""How long an agent that listens is waited for: it answers in milliseconds, on an overloaded machine in seconds."""


class Encoded(NamedTuple):
    """The value of an answer, as JSON already."""

    json: bytes


class Service(NamedTuple):
    """Who answers orders: its name, how it is started in a directory, and the bytes that it takes in a request.

    `option` says where it listens for those of other nodes.
    """

    name: str
    command: str
    option: str
    longest: int = MAX_MESSAGE


AGENT = Service("agent", "drom agent --runtime-dir", "remote.listen")


def endpoint(runtime_dir: Path, name: str) -> str:
    """Return the ipc endpoint `name` of a runtime directory. Raises `ControlError` when its path is too long."""
    try:
        return events.endpoint(runtime_dir, name)
    except ValueError as error:
        raise ControlError(str(error)) from error


class Server:
    """The agent's side. `fds` are readable when `serve` may have work; ZeroMQ signals edges, so drain after every use.

    Orders come from this node, and through the `gate` from others. `share` returns how many connections to each socket
    a user of this node may have, requests are at most `longest` bytes long, and signals are about so many `slots`.
    `turn`: see `agent.system.connections.TURN_SECONDS`. Raises `ControlError` where a socket cannot be opened.
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
        slots: int = 0,
    ) -> None:
        self._turn = turn
        self._gate = gate
        with ExitStack() as opened:
            if gate:
                opened.callback(gate.close)
            self._orders = _open(
                runtime_dir, "control", lambda path: Exchange(path, mode, b"ROUTER", share, longest, refusal=_crowded)
            )
            opened.callback(self._orders.end)
            self._signals = _open(runtime_dir, "signals", lambda path: Signals(path, mode, slots, share))
            opened.pop_all()
        self.fds = [self._orders.fd, self._signals.fd]
        if gate:
            self.fds += [int(gate.sock.getsockopt(zmq.FD)), gate.fd]

    def serve(self, answer: Callable[[dict[str, Any], Caller], Any]) -> bool:
        """Answer orders that are waiting; say whether there may be more. `answer` returns or raises `ControlError`."""
        self._signals.serve(self._turn)
        self._orders.serve(partial(self._answer, answer), self._turn)
        if not self._gate:
            return False
        return any([self._gate.look(), repeat(partial(_serve_one, self._gate, answer), self._turn)])

    def _answer(self, answer: Callable[[dict[str, Any], Caller], Any], line: Line, message: bytes | None) -> None:
        self._orders.send(line, _reply(message, lambda: Caller(line.pid, line.uid), answer))

    def signal(self, slot: int, event: dict[str, Any]) -> None:
        """Publish one event about a slot; nobody has to listen."""
        self._signals.publish(slot, events.message(slot, event))

    def close(self) -> None:
        """Close all sockets."""
        if self._gate:
            self._gate.close()
        self._orders.end()
        self._signals.end()


def _crowded(uid: int, has: int | None) -> bytes:
    """Return the answer to a user who has so many connections that no other is accepted."""
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


def repeat(step: Callable[[], bool], seconds: float, most: int = PER_TURN) -> bool:
    """Do a step as long as there is something to do, for a turn; say whether there may be more."""
    until = time.monotonic() + seconds
    for _ in range(most):
        if not step():
            return False
        if time.monotonic() >= until:
            break
    return True


def _serve_one(gate: Gate, answer: Callable[[dict[str, Any], Caller], Any]) -> bool:
    """Answer an order that came through a gate; False when none is waiting."""
    heard = gate.read()
    if heard is None:
        return False
    reply = _reply(heard.message, lambda: guest_of(heard.frame), answer)
    with suppress(zmq.ZMQError):  # the asker has gone or does not read
        gate.sock.send_multipart([heard.line, reply], zmq.NOBLOCK)
    return True


def _reply(
    message: bytes | None, caller: Callable[[], Caller], answer: Callable[[dict[str, Any], Caller], Any]
) -> bytes:
    """Return what is answered to a message (None: one of several frames)."""
    try:
        found = answer(_order(message), caller())
        if isinstance(found, Encoded):
            return b'{"ok": true, "value": ' + found.json + b"}"
        value = {"ok": True, "value": found}
    except ControlError as error:
        value = {"ok": False, "error": str(error)}
        if isinstance(error, NotYetError):
            value["again"] = True
    return _encoded(value)


def _encoded(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _order(message: bytes | None) -> dict[str, Any]:
    if message and message.count(b"[") + message.count(b"{") > MOST_BRACKETS:
        raise ControlError(f"an order has at most {MOST_BRACKETS} opening brackets: put such data into a file.")
    try:
        order = None if message is None else json.loads(message)
    except (ValueError, RecursionError):  # brackets may be nested deeper than the parser goes
        order = None
    if not isinstance(order, dict) or not isinstance(order.get("order"), str):
        raise ControlError("an order is one JSON object with a field `order`: use the drom command of this version.")
    if order.get("protocol") != PROTOCOL:
        msg = f"orders here are of protocol {PROTOCOL}: use the drom command of this version."
        raise ControlError(msg)
    return order


def caller_of(frame: zmq.Frame) -> Caller:
    """Return who sent a frame on this node: on ipc, Peer-Address reads ``localhost:uid:gid:pid``.

    Of nobody else it is asked: the address of another node may read like that. Raises `ControlError`.
    """
    try:
        _, uid, _, pid = str(frame.get("Peer-Address")).rsplit(":", 3)
        return Caller(int(pid), int(uid))
    except (zmq.ZMQError, ValueError) as error:
        raise ControlError("the kernel did not say who you are: use the ipc socket of this node.") from error


def guest_of(frame: zmq.Frame) -> Caller:
    """Return who sent a frame through a gate, which names his key. Raises `ControlError` for who has none any more."""
    with suppress(zmq.ZMQError):  # ZeroMQ knows no such thing of who has no name
        if key := str(frame.get("User-Id")):
            return Caller(0, os.geteuid(), key)
    raise ControlError("your key is known here no longer: have it trusted (drom keys trust), and connect again.")


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
    data = _ask(where, message, server, who) if isinstance(where, Path) else _ask_far(where, message, server)
    if data is None:
        raise ControlError(_silence(who))
    answer = _object(data)
    if "value" not in answer:  # where agents come in we hear a reason
        said = str(answer.get("error") or answer.get("reason") or f"{who} is of another version: restart it.")
        kind = NotYetError if answer.get("again") is True else RefusedError
        raise kind("\n".join(map(escaped, said.split("\n"))))
    return answer["value"] if server is not AGENT or _is_plain(data) else _plain(answer["value"])


def _silence(who: str) -> str:
    return f"{who} has not answered for {TIMEOUT_MS / 1000:g} s: it is stopped, or this machine overloaded."


def _ask_far(where: Remote, message: bytes, server: Service) -> bytes | None:
    """Return the answer of a server on another node, None when there is none in time. Raises `ControlError`."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.setsockopt(zmq.LINGER, 0)
        where.connect(sock, server)
        sock.send(message)
        return sock.recv() if sock.poll(TIMEOUT_MS) else None


def _ask(runtime_dir: Path, message: bytes, server: Service, who: str) -> bytes | None:
    """Return the answer of a server on this node, None when there is none in time. Raises `ControlError`."""
    with _connected(runtime_dir, server) as connection:
        try:
            return local_client.ask(connection, message)
        except TimeoutError:
            return None
        except OSError as error:
            raise ControlError(f"{who} closed the connection: it has ended, or has too many: try again.") from error


def _connected(runtime_dir: Path, server: Service) -> socket.socket:
    """Return a connection to the control socket in a runtime directory. Raises `ControlError`."""
    path = Path(endpoint(runtime_dir, "control").removeprefix("ipc://"))
    _check_owner(runtime_dir)
    try:
        return local_client.connect(path, TIMEOUT_MS / 1000, trusted=server is not AGENT)
    except local_client.StrangerError as error:
        msg = f"the {server.name} in {runtime_dir} is user {error.uid}'s, not root's or yours: {_ELSEWHERE}"
        raise ControlError(msg) from error
    except TimeoutError as error:
        raise ControlError(_silence(f"the {server.name} in {runtime_dir}")) from error
    except OSError as error:
        start = f"start one with: {server.command} {runtime_dir}"
        raise ControlError(f"no {server.name} answers in {runtime_dir}: {start}") from error


_ELSEWHERE = "say where your agent is with DROM_RUNTIME_DIR."


def _is_plain(data: bytes) -> bool:
    """Return whether no text of a JSON value has a character to be escaped: JSON itself escapes control characters."""
    return data.isascii() and b"\\" not in data and b"\x7f" not in data


def _plain(value: Any) -> Any:  # noqa: ANN401 - JSON values
    """Return what an agent says, which may be another user's, so that it can be shown."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return escaped(value) if isinstance(value, str) else value


def _check_owner(runtime_dir: Path) -> None:
    if fault := fault_of(runtime_dir, os.geteuid()):
        raise ControlError(f"{runtime_dir} {fault}: {_ELSEWHERE}")


def is_order(message: bytes) -> bool:
    """Return whether a message is an order, of whatever version."""
    return isinstance(_object(message).get("order"), str)


def is_answer(message: bytes) -> bool:
    """Return whether a message is what is answered to an order."""
    return isinstance(_object(message).get("ok"), bool)


def _object(data: bytes) -> dict[str, Any]:
    """Return a JSON object, an empty one where somebody of another version says what nobody understands."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def signals(runtime_dir: Path, slot: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the agent's events, of one slot or of all, until the caller stops. The registry holds the truth."""
    _connected(runtime_dir, AGENT).close()
    with zmq.Context() as context, events.subscribe(context, runtime_dir, slot) as sock:
        while True:
            yield events.event(sock.recv())
