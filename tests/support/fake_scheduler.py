"""A fake scheduler: it welcomes nodes, sends the orders of a test and keeps the messages that it receives."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any, TypeVar

import zmq
from drom.agent.execution import protocol

from tests.support.agents import SECONDS, environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

M = TypeVar("M")


class FakeScheduler:
    """A ROUTER socket at `address`; `heard` has what agents said and no test has taken yet, `names` who says it."""

    def __init__(self, address: str, epoch: int = 0) -> None:
        self.address, self.epoch = address, epoch
        self.heard: list[Any] = []
        self.names: dict[str, bytes] = {}
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address)

    def close(self) -> None:
        """Be gone, as after a crash."""
        self._context.destroy(linger=0)

    def serve(self, seconds: float) -> bool:
        """Hear what is said within so many seconds, at most one message; say whether there was one."""
        if not self._socket.poll(max(0, int(seconds * 1000))):
            return False
        who, data = self._socket.recv_multipart()
        message = protocol.from_agent(data)
        if isinstance(message, protocol.Hello):
            self.names[message.node] = who
            self.say(message.node, protocol.Welcome("test", 0.5, self.epoch))
        elif isinstance(message, protocol.Post) and message.to in self.names:
            self.say(message.to, message)
            return True
        elif who not in self.names.values():
            self._socket.send_multipart([who, protocol.encode(protocol.Who())])
        if not isinstance(message, protocol.Alive):
            self.heard.append(message)
        return True

    def say(self, node: str, message: Any) -> None:
        """Send a message to a node that has said hello; bytes are sent as they are."""
        data = message if isinstance(message, bytes) else protocol.encode(message)
        self._socket.send_multipart([self.names[node], data])

    def hear(self, kind: type[M], seconds: float = SECONDS, **fields: Any) -> M:
        """Wait for a message of this class with these fields, and take it out of what was heard."""
        deadline = time.monotonic() + seconds
        while True:
            for message in self.heard:
                if isinstance(message, kind) and all(getattr(message, k) == v for k, v in fields.items()):
                    self.heard.remove(message)
                    return message
            left = deadline - time.monotonic()
            assert left > 0, f"no {kind.__name__} {fields} within {seconds:g} s; heard {self.heard}"
            self.serve(left)

    def silence(self, seconds: float) -> list[Any]:
        """Listen for so long, and return all that was heard and not taken."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.serve(left)
        return self.heard


@contextlib.contextmanager
def start_scheduler(folder: Path, name: str = "scheduler") -> Iterator[FakeScheduler]:
    """Run a fake scheduler on a socket in `folder` within a block; print its unread messages where the block raises."""
    scheduler = FakeScheduler(f"ipc://{folder}/{name}")
    try:
        yield scheduler
    except BaseException:
        print(*scheduler.heard, sep="\n")
        raise
    finally:
        scheduler.close()


def start(job: int, *argv: str, attempt: int = 1, **more: Any) -> protocol.Start:
    """Return the start of a job of this user in this folder."""
    fields: dict[str, Any] = {
        "job": job,
        "attempt": attempt,
        "name": "test",
        "cores": 1,
        "most": 2,
        "uid": os.geteuid(),
        "gid": os.getegid(),
        "user": "tester",
        "argv": argv,
        "env": environment(),
        "cwd": "/",
    }
    return protocol.Start(**(fields | more))
