# SPDX-License-Identifier: Apache-2.0
"""The socket for launchers, with who asks in this process and a loop that is turned by hand."""

from __future__ import annotations

import os
import select
import socket
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest
from drom.agent.execution.step_requests import Request, StepRequestServer
from drom.agent.system.connections import LOOK, SILENCE

from tests.support.child_processes import open_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def request(number: int) -> bytes:
    """Return a request with this number."""
    return b"7\x001\x00%032x\0n2\0/tmp\0orted -x\0" % number


class Asked:
    """A loop and a host in one: `asked` and `left` are the numbers of requests, as they came and went."""

    def __init__(self, path: Path, share: int) -> None:
        self.path = path
        self.handlers: dict[int, Callable[[], None]] = {}
        self.numbers: list[int] = []
        self.left: list[int] = []
        self.hooks = StepRequestServer(path, self, self, lambda _: share)

    def watch(self, fd: int, handler: Callable[[], None]) -> None:
        """Call `handler` when `turn` finds `fd` readable."""
        self.handlers[fd] = handler

    def unwatch(self, fd: int) -> None:
        """Look at `fd` no longer."""
        self.handlers.pop(fd, None)

    def asked(self, wanted: Request) -> None:
        """Keep the number of a request."""
        self.numbers.append(int(wanted.number, 16))

    def hung_up(self, wanted: Request) -> None:
        """Keep the number of a request that nobody waits for any more."""
        self.left.append(int(wanted.number, 16))

    def turn(self) -> int:
        """Deal with all that can be read, until there is nothing, and say how often that was."""
        for turns in range(100):
            ready, *_ = select.select(list(self.handlers), [], [], 0)
            if not ready:
                return turns
            for fd in ready:
                if fd in self.handlers:
                    self.handlers[fd]()
        raise AssertionError("the loop spins")

    def call(self, data: bytes = b"") -> socket.socket:
        """Return a connection, over which a request may have been sent."""
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        caller.settimeout(10)
        caller.connect(str(self.path))
        if data:
            caller.send(data)
        return caller


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    """Return a socket of which a user may have two connections."""
    found = Asked(tmp_path / "steps", 2)
    yield found
    found.hooks.close()
    assert not found.handlers


def test_a_request_waits_for_its_answer(asked: Asked) -> None:
    """Who hangs up is gone from those that wait, and an answer ends the connection."""
    with asked.call(request(1)) as one, asked.call(request(2)) as other:
        asked.turn()
        assert asked.numbers == [1, 2]
        assert [wanted.uid for wanted in asked.hooks.waiting] == [os.getuid()] * 2
        other.close()
        asked.turn()
        asked.hooks.answer(f"{1:032x}", "0")
        asked.hooks.answer(f"{2:032x}", "0")

        assert (asked.left, asked.hooks.waiting) == ([2], [])
        assert (one.recv(100), one.recv(100)) == (b"0", b"")


def test_a_user_has_a_share_of_the_connections(asked: Asked) -> None:
    """More are told so, whether they have asked or not, and there is room again once one has gone."""
    with ExitStack() as callers:
        first, _ = (callers.enter_context(asked.call()) for _ in range(2))
        asked.turn()
        third = callers.enter_context(asked.call(request(3)))
        asked.turn()
        sentence = third.recv(1000).decode()
        first.close()
        asked.turn()
        callers.enter_context(asked.call(request(4)))
        asked.turn()

        uid = os.getuid()
        assert sentence == f"1 user {uid} has 2 commands on other nodes already: wait until some have ended."
        assert asked.numbers == [4]


def test_who_says_nothing_is_sent_away(asked: Asked) -> None:
    """A connection without a request is closed after a while, one that has asked is not."""
    with asked.call() as silent, asked.call(request(1)) as waiting:
        asked.turn()
        asked.hooks.tend(time.monotonic())
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.recv(10)
        asked.hooks.tend(time.monotonic() + SILENCE + LOOK)

        assert silent.recv(10) == b""
        assert len(asked.hooks.waiting) == 1
        waiting.setblocking(False)
        with pytest.raises(BlockingIOError):
            waiting.recv(10)


@pytest.mark.parametrize("ending", ["stays", "hangs up", "half a message", "reset", "floods", "never reads"])
def test_a_request_costs_nobody_else(asked: Asked, ending: str) -> None:
    """Whatever its sender does next, another one is answered, and nothing is kept of one that has gone."""
    before = open_descriptors()
    message = request(1)
    peer = asked.call(message[:-1] if ending == "half a message" else message)
    peer.setblocking(False)
    asked.turn()
    for _ in range({"floods": 200, "never reads": 2}.get(ending, 0)):
        with suppress(OSError):
            peer.send(message)
        asked.turn()
    if ending == "reset":
        asked.hooks.answer(f"{1:032x}", "0")  # which is not read
    if ending in {"hangs up", "reset"}:
        peer.close()
    with asked.call(request(2)) as other:
        asked.turn()
        asked.hooks.answer(f"{2:032x}", "0")
        assert other.recv(100) == b"0"
    assert [int(wanted.number, 16) for wanted in asked.hooks.waiting] == [1] * (ending == "stays")
    peer.close()
    asked.turn()
    assert asked.hooks.waiting == []
    assert not list(asked.hooks._callers)
    assert open_descriptors() == before
