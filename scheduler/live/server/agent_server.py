# SPDX-License-Identifier: Apache-2.0
"""Where agents come in: ROUTER sockets on this node and, behind CURVE keys, for other nodes.

An agent may speak for a node when the kernel says that it runs as root or as the scheduler's own user, or when its key
is ours or known under the name of that node. A key that is called like a user here is that user's, and no node's: what
comes by it is not read.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import zmq
from drom.agent.control import keys
from drom.agent.control.gate import WAITING, Gate
from drom.agent.control.messages import endpoint, is_order
from drom.agent.control.server import caller_of, guest_of, repeat
from drom.agent.control.zmq_monitor import next_message
from drom.agent.errors import ControlError
from drom.agent.execution import protocol as say
from drom.agent.observe.reporter import Share
from drom.agent.system import connections
from drom.agent.system.proc import raise_fd_limit
from drom.agent.system.users import DIRECTORY, SilentDirectoryError, user_called

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.agent.control.keys import Keys
    from drom.agent.control.zmq_monitor import Heard
    from drom.agent.model.caller import Caller
    from drom.agent.observe.log import Log

PER_TURN = 256
TURN_SECONDS = 0.05
"""Messages that are heard at each socket, and for how long, before the scheduler looks at something else again."""
UNREAD = 1000
"""Messages that wait for an agent: more than one that lives leaves unread."""
LINES_AT_ONCE, LINES_A_SECOND = 10, 1.0
"""Lines of the log about who is not heard: at once, and in each second once those are used up."""
NO_USERS = "agents come in here, and no orders: give the address where users do (the scheduler's --users)."


def gate_for_agents(address: str, own: Keys) -> Gate:
    """Return where agents of other nodes come in: a cluster may have many. Raises `ControlError`."""
    most = raise_fd_limit() // 2
    return Gate(address, own, most, longest=say.MAX_MESSAGE, unread=UNREAD, option="--agents")


class Peer(NamedTuple):
    """A connection: the socket it came by, and ZeroMQ's name for it."""

    socket: int
    identity: bytes


class Said(NamedTuple):
    """A message of an agent; `why_not` says in a sentence why it may not speak for a node, empty if it may."""

    peer: Peer
    message: say.FromAgent
    why_not: Callable[[str], str]


class Desk:
    """The agents' side of a scheduler: their connections by name of node. `fds` are as those of `control.Server`."""

    def __init__(self, folder: Path, log: Log, gate: Gate | None = None) -> None:
        self._log = log
        self._lines = Share(LINES_AT_ONCE, time.monotonic(), LINES_A_SECOND)
        self._gate = gate
        self._context = zmq.Context()
        local: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._sockets = [local, *([gate.sock] if gate else [])]
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.MAXMSGSIZE, say.MAX_MESSAGE),
            (zmq.SNDHWM, 0),
            (zmq.RCVHWM, WAITING),
        ):
            local.setsockopt(option, value)
        for sock in self._sockets:
            sock.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._open(local, endpoint(folder, "agents"))
        self._readers: list[Callable[[], Heard | None]] = [partial(next_message, local), *([gate.read] if gate else [])]
        self.fds = [*(int(sock.getsockopt(zmq.FD)) for sock in self._sockets), *([gate.fd] if gate else [])]
        self._peers: dict[str, Peer] = {}
        self._names: dict[Peer, str] = {}
        self._spoke: dict[Peer, float] = {}

    def _open(self, local: zmq.Socket[bytes], address: str) -> None:
        """Listen on this node: nobody else's process may connect, not even before the mode is set."""
        path = address.removeprefix("ipc://")
        try:
            local.setsockopt(zmq.USE_FD, connections.listen(Path(path), 0o600, socket.SOCK_STREAM).detach())
            local.bind(address)
        except OSError as error:
            self.close()
            reason = os.strerror(error.errno or 0)
            raise ControlError(f"cannot open {path}: {reason}: check the folder, or choose another --state.") from error

    def serve(self, heed: Callable[[Said], object]) -> bool:
        """Call `heed` with what agents have said, for a turn; say whether there may be more.

        What is no message is dropped, and told in the log.
        """
        steps = [partial(self._serve_one, number, heed) for number in range(len(self._sockets))]
        turns = [repeat(step, TURN_SECONDS, PER_TURN) for step in steps]
        return any([*turns, self._gate and self._gate.look()])

    def _serve_one(self, number: int, heed: Callable[[Said], object]) -> bool:
        """Hear a message; False when none is waiting."""
        heard = self._readers[number]()
        if heard is None:
            return False
        peer = Peer(number, heard.line)
        try:
            caller = self._caller(peer, heard.frame)
        except ControlError as error:
            self.turn_away(peer, "unknown", str(error))
        else:
            self._read(peer, caller, heard.message or b"", heed)
        return True

    def _caller(self, peer: Peer, frame: zmq.Frame) -> Caller:
        """Return who has said something. Raises `ControlError` for who may speak for no node."""
        caller = (guest_of if peer.socket else caller_of)(frame)
        if peer in self._names:
            self._spoke[peer] = time.monotonic()
        elif caller.key not in ("", keys.OURSELVES) and _is_user(caller.key):
            whose = f"agents come in here, and the key {caller.key} is that of a user"
            raise ControlError(f"{whose}: go where users do (--users), or trust a node's key under another name.")
        return caller

    def _read(self, peer: Peer, caller: Caller, data: bytes, heed: Callable[[Said], object]) -> None:
        try:
            message = say.from_agent(data)
        except say.HelloError as error:
            self.turn_away(peer, error.node, str(error))
        except say.MalformedError as error:
            node = self._names.get(peer) or caller.key or "unknown"
            if is_order(data):
                self.turn_away(peer, node, NO_USERS)
            else:
                self._tell("message_dropped", node=node, message=str(error))
        else:
            heed(Said(peer, message, partial(_why_not, caller)))

    def turn_away(self, peer: Peer, node: str, reason: str) -> None:
        """Tell whoever has spoken, and the log, why it may not speak for a node."""
        self.answer(peer, say.No(reason))
        self._tell("node_refused", node=node, reason=reason)

    def _tell(self, event: str, **fields: object) -> None:
        """Write a line about who is not heard, unless there are too many."""
        if (unsaid := self._lines.take(time.monotonic())) is not None:
            self._log(event, **fields, **unsaid)

    def name_of(self, peer: Peer) -> str | None:
        """Return the node that a connection speaks for."""
        return self._names.get(peer)

    def is_taken(self, name: str, peer: Peer, within: float) -> bool:
        """Return whether another connection has spoken for this node in the last `within` seconds."""
        other = self._peers.get(name, peer)
        return other != peer and time.monotonic() - self._spoke.get(other, 0.0) < within

    def seat(self, name: str, peer: Peer) -> None:
        """Let a connection speak for a node, and nobody else."""
        before = self._peers.get(name, peer)
        if before != peer:
            self._names.pop(before, None)
            self._spoke.pop(before, None)
        self._peers[name], self._names[peer] = peer, name
        self._spoke[peer] = time.monotonic()

    def send(self, name: str, message: say.ToAgent) -> None:
        """Send a message to a node's agent. It is lost when that has gone: it will say hello when it is back."""
        peer = self._peers.get(name)
        if peer:
            self.answer(peer, message)

    def answer(self, peer: Peer, message: say.ToAgent) -> None:
        """Send a message to whoever has spoken."""
        with suppress(zmq.ZMQError):
            self._sockets[peer.socket].send_multipart([peer.identity, say.encode(message)], zmq.NOBLOCK)

    def close(self) -> None:
        """Close all connections."""
        if self._gate:
            self._gate.close()
        self._context.destroy(linger=0)


def _why_not(caller: Caller, node: str) -> str:
    """Return why a caller may not speak for a node; empty if it may."""
    if caller.key in (node, keys.OURSELVES) if caller.key else caller.uid in (0, os.geteuid()):
        return ""
    whose = "run it as root or as the scheduler's user, or give its key the name of the node"
    return f"this agent may not speak for node {node}: {whose}."


def _is_user(name: str) -> bool:
    """Return whether a user of this machine is called so."""
    try:
        return DIRECTORY.ask(user_called, name) is not None
    except SilentDirectoryError:
        return False
