# SPDX-License-Identifier: Apache-2.0
"""Who may speak for which node, by the keys of those who come over the network, and what strangers cannot do."""

from __future__ import annotations

import errno
import io
import json
import os
import select
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
import zmq
from drom.agent.control import keys
from drom.agent.control.client import order
from drom.agent.control.remote import RemoteAddress
from drom.agent.execution import protocol as say
from drom.agent.observe.log import Log
from drom.scheduler.live.cluster.spec import SERVICE
from drom.scheduler.live.server import agent_server as desk_module
from drom.scheduler.live.server.agent_server import LINES_AT_ONCE, AgentServer, gate_for_agents

from tests.agent.control.test_remote import acquainted, peer_at, sent_unread
from tests.support.agents import SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drom.scheduler.live.server.agent_server import AgentMessage

ANOTHER = "give its key the name of the node"
HELLO = say.Hello(say.PROTOCOL, "1", "n1", "n1", "b", 4, 1, 0, {}, (), False, 0.0, ())
ALIVE = say.Alive("n1", 0.0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder with a short path."""
    with TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def lines() -> io.StringIO:
    """Return what the log has been told, a line of JSON each."""
    return io.StringIO()


@pytest.fixture
def desk(folder: Path, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentServer]:
    """Return a desk for agents of this node, whose log has no more lines with each second."""
    monkeypatch.setattr(desk_module, "LINES_A_SECOND", 0.0)
    with closing(AgentServer(folder, Log(lines, form="json"))) as found:
        yield found


@contextmanager
def agent_of(folder: Path) -> Iterator[zmq.Socket[bytes]]:
    """Connect an agent of this node."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as agent:
        agent.setsockopt(zmq.LINGER, 0)
        agent.setsockopt(zmq.SNDHWM, 1)
        agent.connect(f"ipc://{folder}/agents")
        yield agent


def heard(desk: AgentServer, many: int = 1) -> list[AgentMessage]:
    """Return so many messages, and those that came with them."""
    found: list[AgentMessage] = []

    def enough() -> bool:
        desk.serve(found.append)
        return len(found) >= many

    wait_until(enough, lambda: found)
    return found


def answered(desk: AgentServer, agent: zmq.Socket[bytes]) -> say.ToAgent:
    """Return what an agent is answered without anybody having been asked what to say."""

    def served() -> bool:
        desk.serve(lambda said: pytest.fail(f"{said} was heard"))
        return bool(agent.poll(1))

    wait_until(served, lambda: "nothing")
    return say.to_agent(agent.recv())


def keys_of(tmp_path: Path, key: str) -> tuple[keys.Keys, keys.Keys]:
    """Return the keys of a scheduler, and those of who is known there by this name."""
    ours = keys.make(tmp_path / "ours")
    return ours, ours if key == keys.OWN_KEY else acquainted(ours, tmp_path / "theirs", key)


@pytest.mark.parametrize(
    ("key", "node", "why_not"),
    [
        ("node-1", "node-1", ""),
        ("node-1", "node-2", ANOTHER),
        (keys.OWN_KEY, "nobody", ""),
    ],
)
def test_a_key_speaks_for_the_node_of_its_name(tmp_path: Path, folder: Path, key: str, node: str, why_not: str) -> None:
    """Our own key may be any node."""
    ours, theirs = keys_of(tmp_path, key)
    gate = gate_for_agents("127.0.0.1:0", ours)
    with closing(AgentServer(folder, Log(quiet=True), gate)) as desk, peer_at(gate, theirs) as agent:
        agent.send(say.encode(say.Alive(node, 0.0)))
        (said,) = heard(desk)
        reason = said.why_not(node)

    assert (why_not in reason) if why_not else (reason == "")


@pytest.mark.parametrize("data", [say.encode(HELLO), b"x" * say.MAX_MESSAGE], ids=["a hello", "no message"])
def test_a_users_key_is_no_nodes(tmp_path: Path, folder: Path, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is trusted as a user cannot join as a node and be sent the jobs of others; nothing is read to tell it so."""
    ours, theirs = keys_of(tmp_path, "nobody")
    gate = gate_for_agents("127.0.0.1:0", ours)
    monkeypatch.setattr(say, "from_agent", lambda _: pytest.fail("it was read"))
    with closing(AgentServer(folder, Log(quiet=True), gate)) as desk, peer_at(gate, theirs) as agent:
        agent.send(data)
        said = answered(desk, agent)

    who = "this address is for agents, and the key nobody is that of a user"
    assert said == say.No(f"{who}: use the address for users (--users), or trust a node's key under another name.")


@pytest.mark.parametrize(
    ("key", "reason"),
    [(keys.OWN_KEY, desk_module.NO_USERS), ("nobody", "this address is for agents, and the key nobody ")],
)
def test_an_order_is_told_that_users_are_elsewhere(tmp_path: Path, folder: Path, key: str, reason: str) -> None:
    """Who has mixed up the two addresses need not wait to learn it."""
    ours, theirs = keys_of(tmp_path, key)
    if key == keys.OWN_KEY:
        keys.trust(ours, ours.folder / keys.PUBLIC, "127.0.0.1")
    gate = gate_for_agents("127.0.0.1:0", ours)
    where = RemoteAddress(f"127.0.0.1:{gate.port}", theirs.folder)
    with closing(AgentServer(folder, Log(quiet=True), gate)) as desk, ThreadPoolExecutor() as pool:
        asked = pool.submit(order, where, "queue", server=SERVICE)
        wait_until(lambda: not desk.serve(lambda _: pytest.fail("it was heard")) and asked.done(), lambda: asked)

    assert str(asked.exception()).startswith(reason)


def test_who_has_no_name_any_more_is_nobody(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key may be removed while its owner comes in: the address of another node is not asked instead."""
    ours, theirs = keys_of(tmp_path, "n1")
    looks = iter([{theirs.public: "n1"}])
    monkeypatch.setattr(keys.Keys, "peers", lambda _: next(looks, {}))
    gate = gate_for_agents("127.0.0.1:0", ours)
    with closing(AgentServer(folder, Log(quiet=True), gate)) as desk, peer_at(gate, theirs) as agent:
        agent.send(say.encode(HELLO))
        said = answered(desk, agent)

    assert said == say.No("your key is no longer trusted: have it trusted again (drom keys trust), then reconnect.")


def test_a_message_that_is_too_long_is_not_heard(tmp_path: Path, folder: Path) -> None:
    """Who says it over the network is hung up on, and heard when he says something else."""
    ours, theirs = keys_of(tmp_path, "n1")
    gate = gate_for_agents("127.0.0.1:0", ours)
    with closing(AgentServer(folder, Log(quiet=True), gate)) as desk, peer_at(gate, theirs) as agent:
        agent.send(say.encode(ALIVE))
        heard(desk)
        with agent.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor:
            agent.send(bytes(say.MAX_MESSAGE + 1))
            wait_until(lambda: desk.serve(lambda _: pytest.fail("it was heard")) or monitor.poll(1), lambda: "nothing")
            agent.disable_monitor()
        agent.send(say.encode(ALIVE))
        assert heard(desk)[0].message == ALIVE


def test_a_turn_is_over_after_some_messages(folder: Path, desk: AgentServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever says as much as he can, users are answered in between, and the rest is heard later."""
    monkeypatch.setattr(desk_module, "PER_TURN", 2)
    turns: list[tuple[int, bool]] = []

    def all_heard() -> bool:
        said: list[AgentMessage] = []
        more = desk.serve(said.append)
        turns.append((len(said), more))
        return sum(many for many, _ in turns) == 7

    with agent_of(folder) as agent:
        for _ in range(7):
            agent.send(say.encode(ALIVE))
        wait_until(all_heard, lambda: turns)

    assert max(many for many, _ in turns) <= 2
    assert all(more == (many == 2) for many, more in turns)


def test_a_message_that_comes_before_one_is_sent_is_known(folder: Path, desk: AgentServer) -> None:
    """ZeroMQ's descriptor may not signal it any more."""
    with agent_of(folder) as agent:
        agent.send(say.encode(ALIVE))
        (first,) = heard(desk)
        assert not desk.has_more

        agent.send(say.encode(ALIVE))
        assert select.select(desk.fds, [], [], SECONDS)[0]
        desk.answer(first.peer, say.Who())
        assert desk.has_more
        assert len(heard(desk)) == 1
        assert not desk.has_more


def test_few_messages_of_an_agent_wait(folder: Path, desk: AgentServer) -> None:
    """Who says more than is read has to keep it; nothing of it is lost."""
    with agent_of(folder) as agent:
        many = sent_unread(agent, say.encode(say.Post(1, 1, "n1", "n2", {"x": "x" * (1 << 20)})))
        assert many < 64
        assert len(heard(desk, many)) == many


def test_what_is_no_message_fills_no_log(folder: Path, desk: AgentServer, lines: io.StringIO) -> None:
    """The line that follows tells how many there would have been."""
    with agent_of(folder) as agent:
        for _ in range(LINES_AT_ONCE + 5):
            agent.send(b"junk")
        agent.send(say.encode(ALIVE))
        heard(desk)
    desk._lines.left = 1.0
    desk._log_limited("message_dropped", node="unknown", message="no.")

    *records, last = [json.loads(line) for line in lines.getvalue().splitlines()]
    told = {(record["event"], record["node"], record["message"]) for record in records}
    assert (len(records), told) == (LINES_AT_ONCE, {("message_dropped", "unknown", "a message is one JSON object.")})
    assert last["unsaid"] == 5


def test_a_hello_of_a_newer_version_is_answered(folder: Path, desk: AgentServer, lines: io.StringIO) -> None:
    """With what one is told that differs in its version alone, and the log has the name of the node."""
    newer = json.loads(say.encode(HELLO)) | {"protocol": 2, "colour": "red"}
    with agent_of(folder) as agent:
        agent.send(json.dumps(newer).encode())
        said = answered(desk, agent)

    reason = "this scheduler uses protocol 1, not 2: install the same version."
    assert said == say.No(reason)
    (record,) = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [record[name] for name in ("event", "node", "reason")] == ["node_refused", "n1", reason]


def test_nobody_connects_before_the_mode_is_set(
    folder: Path, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the umask is."""
    chmod, tried = Path.chmod, []

    def connect_first(path: Path, mode: int) -> None:
        with socket.socket(socket.AF_UNIX) as stranger:
            tried.append(stranger.connect_ex(os.fspath(path)))
        chmod(path, mode)

    monkeypatch.setattr(Path, "chmod", connect_first)
    with closing(AgentServer(folder, Log(lines))) as desk, agent_of(folder) as agent:
        agent.send(say.encode(ALIVE))
        assert heard(desk)[0].why_not("n1") == ""
        assert stat.S_IMODE((folder / "agents").stat().st_mode) == 0o600

    assert tried == [errno.ECONNREFUSED]


def test_who_never_introduces_itself_is_not_remembered(folder: Path, desk: AgentServer) -> None:
    """When it has spoken last is known only of who speaks for a node."""
    with agent_of(folder) as agent, agent_of(folder) as other:
        agent.send(say.encode(ALIVE))
        other.send(say.encode(ALIVE))
        one, two = (said.peer for said in heard(desk, 2))
        assert not desk._spoke
        desk.bind("n1", one)
        assert desk.has_speaker("n1", two, 3600.0)
        assert not desk.has_speaker("n1", two, 0.0)
        desk.bind("n1", two)

    assert list(desk._spoke) == [two]
