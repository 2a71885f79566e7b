# SPDX-License-Identifier: Apache-2.0
"""The sockets for agents: ROUTER sockets on this node and, behind CURVE keys, for other nodes.

An agent may represent a node if the kernel reports that it runs as root or as the scheduler's own user, or if its key
is the scheduler's own or is trusted under the name of that node. A key with the name of a user of this machine belongs
to that user and represents no node: messages that come with it are rejected.

Agents of this node connect through libzmq as well: `drom.agent.control.zmtp` sends answers alone, while these get
messages unasked, of which any number may wait, and no other user can connect.
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
from drom.agent.control.gate import WAITING, RemoteEndpoint
from drom.agent.control.messages import endpoint, is_order
from drom.agent.control.server import drain, local_caller, remote_caller
from drom.agent.control.zmq_monitor import next_message
from drom.agent.errors import ControlError
from drom.agent.execution import protocol as say
from drom.agent.observe.reporter import TokenBucket
from drom.agent.system import connections
from drom.agent.system.proc import raise_fd_limit
from drom.agent.system.users import DIRECTORY, SilentDirectoryError, user_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.agent.control.keys import Keys
    from drom.agent.control.zmq_monitor import RouterMessage
    from drom.agent.model.caller import Caller
    from drom.agent.observe.log import Log

PER_TURN = 256
TURN_SECONDS = 0.05
"""Messages read from each socket, and seconds spent on them, before the scheduler turns to something else."""
UNREAD = 1000
"""Messages queued for an agent: more than a live agent leaves unread."""
LINES_AT_ONCE, LINES_A_SECOND = 10, 1.0
"""Log lines about rejected senders: in a burst, and per second once that is used up."""
NO_USERS = "this address is for agents, not orders: use the address for users (the scheduler's --users)."


def gate_for_agents(address: str, own: Keys) -> RemoteEndpoint:
    """Return the gate for agents of other nodes, of which a cluster may have many. Raises `ControlError`."""
    most = raise_fd_limit() // 2
    return RemoteEndpoint(address, own, most, longest=say.MAX_MESSAGE, unread=UNREAD, option="--agents")


class Peer(NamedTuple):
    """A connection: the index of its socket, and ZeroMQ's identity of it."""

    socket: int
    identity: bytes


class AgentMessage(NamedTuple):
    """A message of an agent. `why_not` returns why it may not represent a node, in a sentence; empty if it may."""

    peer: Peer
    message: say.FromAgent
    why_not: Callable[[str], str]


class AgentServer:
    """A scheduler's connections to agents, by name of node. `fds` are as those of `control.Server`."""

    def __init__(self, folder: Path, log: Log, gate: RemoteEndpoint | None = None) -> None:
        self._log = log
        self._lines = TokenBucket(LINES_AT_ONCE, time.monotonic(), LINES_A_SECOND)
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
        self._readers: list[Callable[[], RouterMessage | None]] = [
            partial(next_message, local),
            *([gate.read] if gate else []),
        ]
        self.fds = [*(int(sock.getsockopt(zmq.FD)) for sock in self._sockets), *([gate.fd] if gate else [])]
        self._peers: dict[str, Peer] = {}
        self._names: dict[Peer, str] = {}
        self._spoke: dict[Peer, float] = {}

    def _open(self, local: zmq.Socket[bytes], address: str) -> None:
        """Listen on a socket of this node; processes of other users cannot connect, not even before its mode is set.

        Raises ControlError if the socket cannot be opened.
        """
        path = address.removeprefix("ipc://")
        try:
            local.setsockopt(zmq.USE_FD, connections.listen(Path(path), 0o600, socket.SOCK_STREAM).detach())
            local.bind(address)
        except OSError as error:
            self.close()
            reason = os.strerror(error.errno or 0)
            raise ControlError(f"cannot open {path}: {reason}: check the folder, or choose another --state.") from error

    def serve(self, heed: Callable[[AgentMessage], object]) -> bool:
        """Call `heed` with each message of agents, for one turn; return whether there may be more.

        Malformed messages are dropped and logged.
        """
        steps = [partial(self._serve_one, number, heed) for number in range(len(self._sockets))]
        turns = [drain(step, TURN_SECONDS, PER_TURN) for step in steps]
        return any([*turns, self._gate and self._gate.run()])

    @property
    def has_more(self) -> bool:
        """Whether messages wait. ZeroMQ's descriptors signal edges, which sending takes away as well as reading."""
        return any(int(sock.getsockopt(zmq.EVENTS)) & zmq.POLLIN for sock in self._sockets)

    def _serve_one(self, number: int, heed: Callable[[AgentMessage], object]) -> bool:
        """Read and handle one message; return False if none is waiting."""
        heard = self._readers[number]()
        if heard is None:
            return False
        peer = Peer(number, heard.line)
        try:
            caller = self._caller(peer, heard.frame)
        except ControlError as error:
            self.reject(peer, "unknown", str(error))
        else:
            self._read(peer, caller, heard.message or b"", heed)
        return True

    def _caller(self, peer: Peer, frame: zmq.Frame) -> Caller:
        """Return the sender of a message. Raises `ControlError` for one that may not represent any node."""
        caller = (remote_caller if peer.socket else local_caller)(frame)
        if peer in self._names:
            self._spoke[peer] = time.monotonic()
        elif caller.key not in ("", keys.OWN_KEY) and _is_user(caller.key):
            whose = f"this address is for agents, and the key {caller.key} is that of a user"
            raise ControlError(
                f"{whose}: use the address for users (--users), or trust a node's key under another name."
            )
        return caller

    def _read(self, peer: Peer, caller: Caller, data: bytes, heed: Callable[[AgentMessage], object]) -> None:
        try:
            message = say.from_agent(data)
        except say.HelloError as error:
            self.reject(peer, error.node, str(error))
        except say.MalformedError as error:
            node = self._names.get(peer) or caller.key or "unknown"
            if is_order(data):
                self.reject(peer, node, NO_USERS)
            else:
                self._log_limited("message_dropped", node=node, message=str(error))
        else:
            heed(AgentMessage(peer, message, partial(_why_not, caller)))

    def reject(self, peer: Peer, node: str, reason: str) -> None:
        """Reject a sender, and log, with the reason why it may not represent a node."""
        self.answer(peer, say.No(reason))
        self._log_limited("node_refused", node=node, reason=reason)

    def _log_limited(self, event: str, **fields: object) -> None:
        """Log an event about a rejected sender, unless there are too many."""
        if (unsaid := self._lines.take(time.monotonic())) is not None:
            self._log(event, **fields, **unsaid)

    def name_of(self, peer: Peer) -> str | None:
        """Return the name of the node that a connection represents, None if it represents none."""
        return self._names.get(peer)

    def peer_of(self, name: str) -> Peer | None:
        """Return the connection that represents a node, None if none does."""
        return self._peers.get(name)

    def has_speaker(self, name: str, peer: Peer, within: float) -> bool:
        """Return whether another connection has sent messages for this node in the last `within` seconds."""
        other = self._peers.get(name, peer)
        return other != peer and time.monotonic() - self._spoke.get(other, 0.0) < within

    def bind(self, name: str, peer: Peer) -> None:
        """Register a connection as the only one that represents a node."""
        before = self._peers.get(name, peer)
        if before != peer:
            self._names.pop(before, None)
            self._spoke.pop(before, None)
        self._peers[name], self._names[peer] = peer, name
        self._spoke[peer] = time.monotonic()

    def send(self, name: str, message: say.ToAgent) -> None:
        """Send a message to a node's agent. It is lost if the agent has gone, which sends Hello when it is back."""
        peer = self._peers.get(name)
        if peer:
            self.answer(peer, message)

    def answer(self, peer: Peer, message: say.ToAgent) -> None:
        """Send a message to a connection; it is lost if that has gone."""
        with suppress(zmq.ZMQError):
            self._sockets[peer.socket].send_multipart([peer.identity, say.encode(message)], zmq.NOBLOCK)

    def close(self) -> None:
        """Close all connections."""
        if self._gate:
            self._gate.close()
        self._context.destroy(linger=0)


def _why_not(caller: Caller, node: str) -> str:
    """Return why a caller may not represent a node; empty if it may."""
    if caller.key in (node, keys.OWN_KEY) if caller.key else caller.uid in (0, os.geteuid()):
        return ""
    whose = "run it as root or as the scheduler's user, or give its key the name of the node"
    return f"this agent may not act for node {node}: {whose}."


def _is_user(name: str) -> bool:
    """Return whether this machine has a user of that name; False if its directory of users does not answer."""
    try:
        return DIRECTORY.ask(user_named, name) is not None
    except SilentDirectoryError:
        return False
