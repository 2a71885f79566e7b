# SPDX-License-Identifier: Apache-2.0
"""The connection of an agent to its scheduler, behind keys: who is not known is told, and let in once he is."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from drom.agent.control import keys
from drom.agent.control.gate import RemoteEndpoint
from drom.agent.control.server import Server
from drom.agent.execution import connection
from drom.agent.execution import protocol as say
from drom.agent.execution.connection import SchedulerConnection
from drom.agent.observe.log import Log

from tests.support.agents import wait_until

if TYPE_CHECKING:
    from pathlib import Path

SCHEDULER = """
import sys, zmq
with zmq.Context() as context, context.socket(zmq.ROUTER) as sock:
    sock.setsockopt(zmq.RCVHWM, 8)
    sock.bind(sys.argv[1])
    print(flush=True)
    sys.stdin.readline()
    while sock.poll(1000):
        sock.recv_multipart()
"""
"""Reads messages as a scheduler does, of which few may wait, until no more come."""
HELLO = say.Hello(say.PROTOCOL, "1", "n1", "n1", "b", 4, 1, 0, {}, (), False, 0.0, ())


class Node:
    """A node that introduces itself again and again to the scheduler behind a gate; `said` is its log."""

    def __init__(self, gate: RemoteEndpoint, own: keys.Keys, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection, "PATIENCE", 0.05)
        self._gate, self._stream = gate, io.StringIO()
        self.link = SchedulerConnection(f"tcp://127.0.0.1:{gate.port}", Log(self._stream, form="json"), own)

    @property
    def said(self) -> list[str]:
        """Why it has been turned away, as its log says."""
        records = [json.loads(line) for line in self._stream.getvalue().splitlines()]
        return [record["reason"] for record in records if record["event"] == "node_refused"]

    def is_heard(self) -> bool:
        """Say who it is; return whether the scheduler has heard it."""
        if self.link.is_due(now := time.monotonic()):
            self.link.send_hello(HELLO, now)
        return bool(self._gate.sock.poll(1))

    def is_told(self) -> bool:
        """Say who it is; return whether the node has been told why it may not join."""
        return not self.is_heard() and bool(self.said)


@pytest.fixture
def head(tmp_path: Path) -> keys.Keys:
    """Return the keys of the scheduler."""
    return keys.make(tmp_path / "head")


def test_a_key_that_is_not_known_is_told_and_let_in_once_it_is(
    tmp_path: Path, head: keys.Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one sentence, however often it tries; nobody has to start the agent again."""
    own = keys.make(tmp_path / "node")
    keys.trust(own, head.folder / keys.PUBLIC, "127.0.0.1")
    gate = RemoteEndpoint("127.0.0.1:0", head)
    node = Node(gate, own, monkeypatch)
    wait_until(node.is_told, lambda: node.said)
    keys.trust(head, own.folder / keys.PUBLIC, "n1")

    wait_until(node.is_heard, lambda: node.said)

    hint = f"run `drom keys trust FILE NODE` there with {own.folder / keys.PUBLIC}."
    assert node.said == [f"the scheduler does not trust this node's key: {hint}"]
    node.link.close()
    gate.close()


def test_a_scheduler_with_another_key_is_told_of(
    tmp_path: Path, head: keys.Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node believes that it is another one's."""
    own, other = keys.make(tmp_path / "node"), keys.make(tmp_path / "other")
    keys.trust(own, other.folder / keys.PUBLIC, "127.0.0.1")
    gate = RemoteEndpoint("127.0.0.1:0", head)
    node = Node(gate, own, monkeypatch)

    wait_until(node.is_told, lambda: node.said)

    reason = "rejected the connection, perhaps because it has too many connections: try again in a moment"
    where = f"127.0.0.1:{gate.port} {reason}"
    ask = f"ask its administrator whether the key in {own.folder}/peers/127.0.0.1.key is still its identity.key"
    assert node.said == [f"{where}; if that does not help, {ask}."]
    node.link.close()
    gate.close()


def test_where_users_come_in_is_told_of(folder: Path, head: keys.Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, however often the node is answered as if it had given an order."""
    keys.trust(head, head.folder / keys.PUBLIC, "127.0.0.1")
    gate = RemoteEndpoint("127.0.0.1:0", head)
    node = Node(gate, head, monkeypatch)
    with closing(node.link), closing(Server(folder, 0o600, gate)) as server:

        def is_answered_again() -> bool:
            node.is_heard()
            server.serve(lambda *_: pytest.fail("it was an order"))
            assert not list(node.link.read())
            return node.link.malformed >= 2

        wait_until(is_answered_again, lambda: node.said)

    assert node.said == [connection.NO_AGENTS]


def test_a_scheduler_that_was_paused_reads_what_agents_have_sent_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents send no heartbeats of ZeroMQ: behind messages that wait, one of these would end the scheduler."""
    monkeypatch.setattr(connection, "DEAD_MS", 400)
    address = f"ipc://{tmp_path}/agents"
    words = [sys.executable, "-c", SCHEDULER, address]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as scheduler:
        assert scheduler.stdout
        scheduler.stdout.readline()
        with closing(SchedulerConnection(address, Log(io.StringIO()))) as agent:
            wait_until(lambda: agent.send(say.Alive("n1", 0.0)), lambda: address)
            scheduler.send_signal(signal.SIGSTOP)
            for _ in range(50):
                agent.send(say.Alive("n1", 0.0))
                assert not agent._socket.poll(10)  # a heartbeat would be due every 100 ms
        scheduler.send_signal(signal.SIGCONT)
        scheduler.communicate(b"\n", 60)
        assert scheduler.returncode == 0
