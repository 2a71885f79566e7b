# SPDX-License-Identifier: Apache-2.0
"""Where agents come in: ROUTER sockets on this node and, behind CURVE keys, for other nodes.

An agent may speak for a node when the kernel says that it runs as root or as the scheduler's own user, or when its key
is ours or known under the name of that node. A key that is called like a user here is that user's, and no node's.
"""

from __future__ import annotations

import os
import pwd
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import zmq

from agent import keys
from agent.control import ControlError, caller_of, endpoint, guest_of
from agent.processes import raise_fd_limit
from agent.remote import Gate
from agent.steward import protocol as say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.control import Caller
    from agent.keys import Keys
    from agent.log import Log

UNREAD = 1000
"""Messages that wait for an agent: more than one that lives leaves unread."""


def gate_for_agents(address: str, own: Keys) -> Gate:
    """Return where agents of other nodes come in: a cluster may have many. Raises `ControlError`."""
    return Gate(address, own, raise_fd_limit() // 2, longest=say.MAX_MESSAGE, unread=UNREAD)


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
        self._gate = gate
        self._context = zmq.Context()
        local: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._sockets = [local, *([gate.sock] if gate else [])]
        for sock in self._sockets:
            for option, value in (
                (zmq.LINGER, 0),
                (zmq.MAXMSGSIZE, say.MAX_MESSAGE),
                (zmq.ROUTER_MANDATORY, 1),
                (zmq.SNDHWM, 0),
                (zmq.RCVHWM, 0),
            ):
                sock.setsockopt(option, value)
        address = endpoint(folder, "agents")
        try:
            local.bind(address)
        except zmq.ZMQError as error:
            self.close()
            path, reason = address.removeprefix("ipc://"), os.strerror(error.errno or 0)
            raise ControlError(f"cannot open {path}: {reason}: check the folder, or choose another --state.") from error
        Path(address.removeprefix("ipc://")).chmod(0o600)
        self.fds = [*(int(sock.getsockopt(zmq.FD)) for sock in self._sockets), *([gate.fd] if gate else [])]
        self._peers: dict[str, Peer] = {}
        self._names: dict[Peer, str] = {}
        self._spoke: dict[Peer, float] = {}

    def read(self) -> Iterator[Said]:
        """Yield what agents have said; what is no message is dropped and told in the log."""
        while self._gate and self._gate.look():
            pass
        for number, sock in enumerate(self._sockets):
            while True:
                try:
                    frames = sock.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    break
                peer = Peer(number, frames[0].bytes)
                try:
                    message = say.from_agent(frames[1].bytes if len(frames) == 2 else b"")
                except say.MalformedError as error:
                    self._log("dropped", node=self._names.get(peer, "unknown"), message=str(error))
                    continue
                self._spoke[peer] = time.monotonic()
                yield Said(peer, message, partial(_why_not, guest_of if number else caller_of, frames[-1]))

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


def _why_not(who: Callable[[zmq.Frame], Caller], frame: zmq.Frame, node: str) -> str:
    """Return why the sender of a frame may not speak for a node; empty if it may."""
    try:
        caller = who(frame)
    except ControlError as error:
        return str(error)
    if caller.key == node and _is_user(node):
        return f"the key {node} is that of a user here: trust the node's key under a name that no user has."
    if caller.key in (node, keys.OURSELVES) if caller.key else caller.uid in (0, os.geteuid()):
        return ""
    whose = "run it as root or as the scheduler's user, or give its key the name of the node"
    return f"this agent may not speak for node {node}: {whose}."


def _is_user(name: str) -> bool:
    """Return whether a user of this machine is called so."""
    try:
        pwd.getpwnam(name)
    except (KeyError, ValueError):
        return False
    return True
