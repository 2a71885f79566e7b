# SPDX-License-Identifier: Apache-2.0
"""Nodes without agents and programs: many of them in one process, for schedulers that are to be real.

Each has a connection of its own over TCP, and keeps to the protocol of agents. A job is `sleep SECONDS`, which ends
after that time. One with a range of cores has so many seconds of work for one core, and is as fast as its cores allow.
"""

from __future__ import annotations

import heapq
import itertools
import select
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import zmq
from drom.agent.control import keys
from drom.agent.errors import ControlError
from drom.agent.execution import protocol as say
from drom.agent.execution.connection import host_of
from drom.agent.system.proc import raise_fd_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from drom.agent.control.keys import Keys


class NodeSize(NamedTuple):
    """A node to emulate: its name, its cores, and its counted resources."""

    name: str
    cores: int
    resources: Mapping[str, int]


class _End(NamedTuple):
    """The end of a job's program on a node, by CLOCK_MONOTONIC."""

    at: float
    turn: int
    node: _Node
    attempt: tuple[int, int]


@dataclass
class _Work:
    """The work of a job with a range of cores: what is `left` at `since`, its `speed` since then, its expected end."""

    node: _Node
    left: float
    since: float
    speed: float = 0.0
    turn: int = -1


@dataclass
class _Node:
    """A node: its connection, the attempts of jobs that run there with their cores, and its next heartbeat."""

    size: NodeSize
    home: str
    socket: zmq.Socket[bytes]
    running: dict[tuple[int, int], int] = field(default_factory=dict)
    began: dict[tuple[int, int], float] = field(default_factory=dict)
    """When the attempts that run were started (time.time)."""
    is_welcome: bool = False
    heartbeat: float = 1.0
    turn: int = -1

    def send(self, message: say.FromAgent) -> None:
        """Send a message; ZeroMQ keeps it until there is a connection."""
        self.socket.send(say.encode(message), zmq.NOBLOCK)

    def hello(self) -> None:
        """Introduce the node."""
        name, cores, resources = self.size
        known = tuple(say.Known(*attempt, "running", held) for attempt, held in self.running.items())
        has = cores, 1, 0, dict(resources), ()
        about = say.PROTOCOL, "1", name, name, "boot", *has
        self.send(say.Hello(*about, emulated=True, time=time.time(), jobs=known, home=self.home))

    def end(self, attempt: tuple[int, int], status: int) -> None:
        """Report the end of a job, unless it has ended before."""
        if self.running.pop(attempt, None) is not None:
            self.send(say.Ended(*attempt, status, time.time(), 0.0, 0, began=self.began.pop(attempt)))


class EmulatedNodes:
    """Nodes that are connected to the scheduler at `address`, and alive while `serve` is called.

    They belong to the home partition `home`; `connect` adds others. `speed` returns how much faster than on one core a
    job with a range is on a number of cores. One that has lost its connection joins again. Raises KeysError if the
    scheduler's key is unknown.
    """

    def __init__(
        self,
        address: str,
        sizes: Iterable[NodeSize],
        own: Keys,
        speed: Callable[[int], float] = float,
        home: str = "",
    ) -> None:
        raise_fd_limit()  # each connection takes a few
        self._context = zmq.Context()
        self._epoll = select.epoll()
        self._nodes: dict[int, _Node] = {}
        """By the descriptors of their sockets."""
        self._unread: list[_Node] = []
        """Nodes that have said hello, and whose answers, which may have come by now, `serve` reads."""
        self._ends: list[_End] = []
        self._beats: list[tuple[float, int, _Node]] = []
        """The heartbeats to come, each with a number; only that which its node has counts."""
        self._turns = itertools.count()
        self._speed, self._own = speed, own
        self._work: dict[tuple[int, int], _Work] = {}
        self.launched: set[int] = set()
        """The jobs whose programs have begun."""
        self.connect(address, sizes, home)

    def connect(self, address: str, sizes: Iterable[NodeSize], home: str = "") -> None:
        """Add nodes of a home partition, connected to the scheduler at `address`. Raises KeysError."""
        for size in sizes:
            socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
            keys.guard_client(socket, self._own, host_of(address))
            socket.connect(address)
            fd = int(socket.getsockopt(zmq.FD))
            self._nodes[fd] = node = _Node(size, home, socket)
            self._epoll.register(fd, select.EPOLLIN)
            node.hello()
            self._unread.append(node)

    @property
    def are_welcome(self) -> bool:
        """Whether all nodes have joined the cluster."""
        return all(node.is_welcome for node in self._nodes.values())

    def serve(self, until: float) -> None:
        """Answer the scheduler, and end jobs, until this time of CLOCK_MONOTONIC. Raises ControlError if refused."""
        while (now := time.monotonic()) < until:
            while self._unread:
                self._read(self._unread.pop())
            while self._beats and self._beats[0][0] <= now:
                _, turn, node = heapq.heappop(self._beats)
                if turn == node.turn:
                    node.send(say.Alive(node.size.name, time.time()))
                    self._expect_beat(node, now + node.heartbeat)
                    self._read(node)
            while self._ends and self._ends[0].at <= now:
                end = heapq.heappop(self._ends)
                work = self._work.get(end.attempt)
                if work is None or work.turn == end.turn:
                    end.node.end(end.attempt, 0)
                    self._read(end.node)
            due = min([until, *(beat[0] for beat in self._beats[:1]), *(end.at for end in self._ends[:1])])
            for fd, _ in self._epoll.poll(max(0.0, due - now)):
                self._read(self._nodes[fd])

    def _expect_beat(self, node: _Node, at: float) -> None:
        node.turn = next(self._turns)
        heapq.heappush(self._beats, (at, node.turn, node))

    def _read(self, node: _Node) -> None:
        """Handle all messages to a node; after it has sent something, too: ZeroMQ signals edges."""
        with suppress(zmq.Again):
            while True:
                self._handle(node, say.to_agent(node.socket.recv(zmq.NOBLOCK)))

    def _handle(self, node: _Node, message: say.ToAgent) -> None:
        if isinstance(message, say.No):
            if not node.is_welcome:  # otherwise its connection was lost, and its next heartbeat is answered by Who
                raise ControlError(message.reason)
        elif isinstance(message, say.Who):
            node.hello()
        elif isinstance(message, say.Welcome):
            node.is_welcome, node.heartbeat = True, message.heartbeat
            self._expect_beat(node, time.monotonic())
        elif isinstance(message, say.Start):
            self._start(node, message)
        elif isinstance(message, say.Resize) and (message.job, message.attempt) in node.running:
            node.running[message.job, message.attempt] = message.cores
            self._set_speed((message.job, message.attempt))
            node.send(say.Resized(message.job, message.attempt, message.cores))
        elif isinstance(message, say.Signal):
            node.end((message.job, message.attempt), -message.signal)

    def _start(self, node: _Node, message: say.Start) -> None:
        attempt = message.job, message.attempt
        if message.mode != "hold" and attempt not in node.running:
            seconds, now = float(message.argv[-1]), time.monotonic()
            if message.rests:
                self._work[attempt] = _Work(node, seconds, now)
            else:
                heapq.heappush(self._ends, _End(now + seconds, next(self._turns), node, attempt))
            self.launched.add(message.job)
        node.running[attempt] = message.cores
        node.began.setdefault(attempt, time.time())
        self._set_speed(attempt)
        node.send(say.Started(*attempt, 1, time.time()))

    def _set_speed(self, attempt: tuple[int, int]) -> None:
        """Expect the end of a job with a range by the cores that it has now."""
        work, now = self._work.get(attempt), time.monotonic()
        if work is None:
            return
        work.left -= work.speed * (now - work.since)
        work.since, work.turn = now, next(self._turns)
        work.speed = self._speed(sum(node.running.get(attempt, 0) for node in self._nodes.values()))
        if work.speed:
            heapq.heappush(self._ends, _End(now + work.left / work.speed, work.turn, work.node, attempt))

    def close(self) -> None:
        """Close all connections."""
        self._epoll.close()
        self._context.destroy(linger=0)
