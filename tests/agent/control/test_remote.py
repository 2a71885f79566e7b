# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import socket
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import zmq
from drom.agent.control import client, keys, messages
from drom.agent.control import gate as remote
from drom.agent.control import server as control
from drom.agent.control.client import order
from drom.agent.control.gate import RemoteEndpoint, origin_of
from drom.agent.control.messages import MAX_MESSAGE
from drom.agent.control.remote import RemoteAddress
from drom.agent.control.server import Server
from drom.agent.control.zmq_monitor import next_message
from drom.agent.errors import ControlError
from drom.scheduler.live.cluster.spec import SERVICE as SCHEDULER

from tests.agent.control.test_server import SECONDS, ask, serve_until
from tests.support.agents import wait_until
from tests.support.child_processes import open_descriptors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from drom.agent.control.keys import Keys
    from drom.agent.model.caller import Caller


@pytest.fixture
def own(tmp_path: Path) -> Keys:
    """Return the keys of the agent."""
    return keys.make(tmp_path / "agent")


@pytest.fixture
def gate(own: Keys) -> RemoteEndpoint:
    """Return the agent's gate."""
    return RemoteEndpoint("127.0.0.1:0", own)


@pytest.fixture
def server(folder: Path, gate: RemoteEndpoint) -> Iterator[Server]:
    """Return an agent's side with a gate."""
    made = Server(folder, 0o666, gate)
    yield made
    made.close()


def remote_with(gate: RemoteEndpoint, own: Keys) -> RemoteAddress:
    """Return the agent as who has these keys sees it."""
    return RemoteAddress(f"127.0.0.1:{gate.port}", own.folder)


def ask_as(server: Server, gate: RemoteEndpoint, own: Keys) -> Any:
    """Return what an order of who has these keys is answered: who the agent says he is."""
    return ask(server, lambda: order(remote_with(gate, own), "ps"), lambda _, caller: [caller.key, caller.uid])


def acquainted(own: Keys, other: Path, name: str = "ben") -> Keys:
    """Return new keys in the folder `other`, trusted by the agent under a name and knowing the agent's."""
    made = keys.make(other)
    keys.trust(own, other / keys.PUBLIC, name)
    keys.trust(made, own.folder / keys.PUBLIC, "127.0.0.1")
    return made


@contextmanager
def peer_at(gate: RemoteEndpoint, own: Keys) -> Iterator[zmq.Socket[bytes]]:
    """Connect who has these keys to a gate, to say what he likes."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.setsockopt(zmq.LINGER, 0)
        peer.setsockopt(zmq.SNDHWM, 1)
        peer.setsockopt(zmq.RCVHWM, 1)
        keys.guard_client(peer, own, "127.0.0.1")
        peer.connect(f"tcp://127.0.0.1:{gate.port}")
        yield peer


def sent_unread(peer: zmq.Socket[bytes], message: bytes) -> int:
    """Say something again until it is taken no more, at most 64 times; return how often."""
    many = 0
    while many < 64 and peer.poll(500, zmq.POLLOUT):
        peer.send(message, zmq.NOBLOCK)
        many += 1
    return many


class TestKeys:
    """Who gets in."""

    def test_who_shares_our_keys_is_one_of_us(self, server: Server, gate: RemoteEndpoint, own: Keys) -> None:
        """One folder on all nodes is enough."""
        assert ask_as(server, gate, own) == ["ourselves", os.geteuid()]

    def test_a_peer_is_known_by_name_until_it_is_trusted_no_longer(
        self, server: Server, gate: RemoteEndpoint, own: Keys, tmp_path: Path
    ) -> None:
        """The agent need not be restarted for either."""
        ben = acquainted(own, tmp_path / "ben")
        assert ask_as(server, gate, ben) == ["ben", os.geteuid()]
        (own.folder / "peers/ben.key").unlink()
        with pytest.raises(
            ControlError, match=r"^the agent at 127\.0\.0\.1:\d+ does not trust this key: let its admin"
        ):
            ask_as(server, gate, ben)

    def test_a_stranger_is_told_what_to_do(
        self, server: Server, gate: RemoteEndpoint, own: Keys, tmp_path: Path
    ) -> None:
        """He knows the agent's key, which is public; the agent does not know his."""
        stranger = keys.make(tmp_path / "stranger")
        keys.trust(stranger, own.folder / keys.PUBLIC, "127.0.0.1")
        with pytest.raises(ControlError) as caught:
            ask_as(server, gate, stranger)

        assert str(caught.value) == (
            f"the agent at 127.0.0.1:{gate.port} does not trust this key: let its administrator run "
            f"`drom keys trust FILE NAME` with {stranger.folder}/identity.key."
        )

    def test_what_cannot_be_read_is_told_and_keeps_nobody_out_for_good(
        self,
        server: Server,
        gate: RemoteEndpoint,
        own: Keys,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        """Whatever is wrong with the folder of keys, who comes once it is mended is let in."""
        with monkeypatch.context() as patch:
            patch.setattr(keys.Keys, "peers", lambda _: 1 / 0)
            for _ in range(2):
                with pytest.raises(ControlError, match="does not trust this key"):
                    ask_as(server, gate, own)
        assert (
            capfd.readouterr().err
            == f"drom: all connections are rejected while {own.folder} cannot be read: division by zero\n"
        )
        assert ask_as(server, gate, own) == ["ourselves", os.geteuid()]

    def test_an_agent_with_another_key_is_not_believed(
        self, server: Server, gate: RemoteEndpoint, tmp_path: Path
    ) -> None:
        """Nothing is sent to who cannot show that it is the agent meant."""
        stranger = keys.make(tmp_path / "stranger")
        with pytest.raises(ControlError, match=r" rejected the connection, .*: try again .*; if ") as unknown:
            ask_as(server, gate, stranger)
        assert str(unknown.value).endswith(
            f"ask its administrator for its identity.key, as there is none for 127.0.0.1 in {stranger.folder}/peers."
        )
        keys.trust(stranger, keys.make(tmp_path / "other").folder / keys.PUBLIC, "127.0.0.1")
        with pytest.raises(ControlError) as wrong:
            ask_as(server, gate, stranger)
        kept = stranger.folder / "peers/127.0.0.1.key"
        assert str(wrong.value).endswith(f"ask its administrator whether the key in {kept} is still its identity.key.")
        assert "trust" not in f"{unknown.value} {wrong.value}"

    def test_without_a_guard_nobody_gets_in(self, own: Keys) -> None:
        """A server whose guard was forgotten is closed, not open."""
        with zmq.Context() as context, context.socket(zmq.ROUTER) as sock:
            keys.guard_server(sock, own)
            port = sock.bind_to_random_port("tcp://127.0.0.1")
            with pytest.raises(ControlError):
                order(RemoteAddress(f"127.0.0.1:{port}", own.folder), "ps")

    def test_plain_connections_get_nothing(self, server: Server, gate: RemoteEndpoint, own: Keys) -> None:
        """Neither ZeroMQ without keys nor any other bytes reach an order, and others are served."""
        heard: list[Caller] = []
        with (
            zmq.Context() as context,
            context.socket(zmq.DEALER) as plain,
            socket.create_connection(("127.0.0.1", gate.port)) as raw,
        ):
            plain.setsockopt(zmq.LINGER, 0)
            plain.connect(f"tcp://127.0.0.1:{gate.port}")
            plain.send(b'{"order": "ps", "protocol": 1}')
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
            ask(server, lambda: order(remote_with(gate, own), "ps"), lambda _, caller: heard.append(caller))

        assert [caller.key for caller in heard] == ["ourselves"]


class TestMessages:
    """What those who are let in may say."""

    ORDER = b'{"order": "ps", "protocol": 1}'

    def test_the_longest_order_is_answered(self, server: Server, gate: RemoteEndpoint, own: Keys) -> None:
        """Who sends a longer one is hung up on, and others are served."""
        with peer_at(gate, own) as peer:
            peer.send(self.ORDER.ljust(MAX_MESSAGE))
            serve_until(server, lambda: peer.poll(0), lambda *_: "heard")
            assert peer.recv() == b'{"ok": true, "value": "heard"}'
            with peer.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor:
                peer.send(self.ORDER.ljust(MAX_MESSAGE + 1))
                serve_until(server, lambda: monitor.poll(0), lambda *_: pytest.fail("it was heard"))
                peer.disable_monitor()
            assert ask_as(server, gate, own) == ["ourselves", os.geteuid()]

    @pytest.mark.parametrize("frames", [[ORDER, ORDER], [b"", ORDER], [b"x"] * 10_000])
    def test_an_order_is_one_frame(self, server: Server, gate: RemoteEndpoint, own: Keys, frames: list[bytes]) -> None:
        """Of a message of several nothing is read."""
        with peer_at(gate, own) as peer:
            peer.send_multipart(frames)
            serve_until(server, lambda: peer.poll(0), lambda *_: pytest.fail("it was heard"))
            assert peer.recv().startswith(b'{"ok": false, "error": "an order is one JSON object with a field `order`: ')

    def test_few_orders_wait(self, own: Keys) -> None:
        """Who says more than is read has to keep it; nothing of it is lost."""
        longer = RemoteEndpoint("127.0.0.1:0", own, longest=1 << 20)
        with closing(longer), peer_at(longer, own) as peer:
            many = sent_unread(peer, bytes(1 << 20))
            heard = [next_message(longer.sock) for _ in range(many) if longer.sock.poll(SECONDS * 1000)]

        assert many < 64
        assert len(heard) == many

    def test_a_message_without_end_is_hung_up_on(self, own: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
        """However small its frames are; who says as much in messages is heard."""
        monkeypatch.setattr(remote, "ROOM", 0)
        monkeypatch.setattr(remote, "COUNT_EVERY", 0.0)
        gate = RemoteEndpoint("127.0.0.1:0", own, longest=1000)
        with closing(gate), peer_at(gate, own) as peer, peer.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor:
            for _ in range(50):
                peer.send(bytes(1000))
                wait_until(lambda: gate.run() or gate.read(), lambda: gate._inside)
            gate.run()
            assert not monitor.poll(0)
            peer.send_multipart([bytes(1000)] * 50)
            wait_until(lambda: gate.run() or monitor.poll(1), lambda: gate._inside)
            peer.disable_monitor()

    def test_few_answers_wait(self, server: Server, gate: RemoteEndpoint, own: Keys) -> None:
        """Who does not read misses what comes after them, and the agent keeps none of it."""
        many = 64
        answered: list[int] = []

        def answer(_order: dict[str, Any], _caller: Caller) -> str:
            answered.append(0)
            return "x" * (1 << 20)

        with peer_at(gate, own) as peer:
            for _ in range(many):
                peer.send(self.ORDER)
                serve_until(server, lambda: peer.poll(0, zmq.POLLOUT), answer)
            serve_until(server, lambda: len(answered) == many, answer)
            got = 0
            while peer.poll(500 if got else SECONDS * 1000):
                peer.recv()
                got += 1

        assert 0 < got < many

    def test_who_has_no_name_any_more_is_nobody(
        self, server: Server, gate: RemoteEndpoint, own: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A key may be removed while its owner comes in."""
        ben = acquainted(own, tmp_path / "ben")
        looks = iter([{ben.public: "ben"}])
        monkeypatch.setattr(keys.Keys, "peers", lambda _: next(looks, {}))
        with pytest.raises(ControlError) as caught:
            ask_as(server, gate, ben)

        assert str(caught.value) == (
            "your key is no longer trusted: have it trusted again (drom keys trust), then reconnect."
        )

    def test_an_address_is_no_user(self) -> None:
        """Of one such as this the last parts read like a user and a process of this node."""

        class Frame:
            def get(self, name: str) -> str:
                if name == "Peer-Address":
                    return "fd00::5:0:7:9"
                raise zmq.ZMQError

        with pytest.raises(ControlError, match=r"^your key is no longer trusted: "):
            control.remote_caller(Frame())  # type: ignore[arg-type]


def test_silent_connections_keep_nobody_out(folder: Path, own: Keys) -> None:
    """Of those that say nothing the oldest make room, of one address before all, and a trusted key gets in at once."""
    gate = RemoteEndpoint("127.0.0.1:0", own, 16)
    with closing(Server(folder, 0o666, gate)) as server, ExitStack() as stack:

        def call(source: str, many: int) -> list[socket.socket]:
            where = ("127.0.0.1", gate.port)
            made = [socket.create_connection(where, source_address=(source, 0)) for _ in range(many)]
            for one in made:
                stack.callback(one.close)
            return made

        def left(made: list[socket.socket]) -> list[socket.socket]:
            return [one for one in made if not _has_ended(one)]

        crowd = call("127.0.0.2", 300)
        serve_until(server, lambda: len(left(crowd)) == 4, lambda *_: None)
        assert left(crowd) == crowd[-4:]
        assert ask_as(server, gate, own) == ["ourselves", os.geteuid()]
        for last in range(3, 40):
            crowd += call(f"127.0.0.{last}", 1)
        serve_until(server, lambda: len(left(crowd)) == 8, lambda *_: None)
        assert left(crowd) == crowd[-8:]
        assert ask_as(server, gate, own) == ["ourselves", os.geteuid()]
        for one in crowd:
            one.close()
        serve_until(server, lambda: not gate._inside, lambda *_: None)


def test_peers_that_speak_are_not_closed_for_others(folder: Path, own: Keys) -> None:
    """Where all places are taken by them, the next connection is not let in, and told to try again."""
    gate = RemoteEndpoint("127.0.0.1:0", own, 1)
    with closing(Server(folder, 0o666, gate)) as server, peer_at(gate, own) as peer:
        peer.send(messages.request("ps"))
        serve_until(server, lambda: peer.poll(0), lambda *_: "first")
        with pytest.raises(
            ControlError, match=r"^127.0.0.1:\d+ rejected the connection, perhaps because it has too many connections"
        ):
            ask_as(server, gate, own)
        assert b"first" in peer.recv()
        peer.send(messages.request("ps"))
        serve_until(server, lambda: peer.poll(0), lambda *_: "again")
        assert b"again" in peer.recv()


def test_a_connection_that_ends_without_an_answer_is_reported_at_once(
    server: Server, gate: RemoteEndpoint, own: Keys
) -> None:
    """An agent that has no room for a connection may close it after both sides have proved their keys."""

    def closes(*_: object) -> None:
        for fd in list(gate._inside):
            gate._reject(fd)

    with pytest.raises(ControlError, match=r"^127.0.0.1:\d+ rejected the connection, .*: try again in a moment;"):
        ask(server, lambda: order(remote_with(gate, own), "ps"), closes)


def _has_ended(connection: socket.socket) -> bool:
    """Say whether the other side has closed a connection; ZeroMQ may have said something before."""
    try:
        while connection.recv(100, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def test_where_a_connection_comes_from(tmp_path: Path) -> None:
    """IPv4 also as one of IPv6; nowhere, if its number is that of another socket or file by now, or of none."""
    ends = socket.socketpair()
    with ends[0], ends[1], (tmp_path / "x").open("w") as file:
        assert [origin_of(fd) for fd in (ends[0].fileno(), file.fileno(), 1 << 20)] == [b""] * 3
    both = socket.has_dualstack_ipv6()
    for dual in (False, True)[: 1 + both]:
        family = socket.AF_INET6 if dual else socket.AF_INET
        server = socket.create_server(("", 0), family=family, dualstack_ipv6=dual)
        with server, socket.create_connection(("127.0.0.1", server.getsockname()[1])):
            accepted, _ = server.accept()
            with accepted:
                assert origin_of(accepted.fileno()) == bytes([127, 0, 0, 1])


def test_a_number_that_is_another_files_by_now_is_left_alone(gate: RemoteEndpoint) -> None:
    """Neither a pipe nor a connection of somebody else's is closed, and no copy of one stays open."""
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    with closing(gate), ours, theirs:
        before = open_descriptors()
        for fd in (read, ours.fileno(), 1 << 20):
            gate._reject(fd)
        assert open_descriptors() == before
        ours.sendall(b"x")
        assert theirs.recv(1) == b"x"
    os.close(read)
    os.close(write)


def test_the_kernel_ends_connections_to_machines_that_are_gone(gate: RemoteEndpoint, own: Keys) -> None:
    """ZeroMQ sends no heartbeats: one of these could end the process, once its peer has gone."""
    with closing(gate), peer_at(gate, own) as peer:
        peer.send(b"x")
        found = wait_until(gate.read, lambda: "no message")
        with socket.socket(fileno=os.dup(found.frame.get(zmq.SRCFD))) as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == remote.DEAD_MS
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert not gate.sock.getsockopt(zmq.HEARTBEAT_IVL)


class TestAddresses:
    """Where agents are."""

    def test_where_nobody_listens(self, own: Keys) -> None:
        """Port 1 is nobody's."""
        with pytest.raises(ControlError, match=r"^no agent listens at 127.0.0.1:1: check the address and its option "):
            order(RemoteAddress("127.0.0.1:1", own.folder), "ps")

    def test_who_says_nothing_is_not_waited_for(self, own: Keys) -> None:
        """A server of something else that waits for its client to speak."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            where = RemoteAddress(f"127.0.0.1:{silent.getsockname()[1]}", own.folder, patience_ms=1)
            with pytest.raises(ControlError, match=r"^no agent listens at "):
                order(where, "ps")

    def test_a_scheduler_is_called_so(self, own: Keys, gate: RemoteEndpoint, tmp_path: Path) -> None:
        """And its option is named."""
        with pytest.raises(ControlError) as nobody:
            order(RemoteAddress("127.0.0.1:1", own.folder), "queue", server=SCHEDULER)
        stranger = keys.make(tmp_path / "stranger")
        keys.trust(stranger, own.folder / keys.PUBLIC, "127.0.0.1")
        with (
            closing(gate),
            pytest.raises(ControlError, match=r"^the scheduler at .* does not trust this key: let its "),
        ):
            order(remote_with(gate, stranger), "queue", server=SCHEDULER)

        assert str(nobody.value) == "no scheduler listens at 127.0.0.1:1: check the address and its option --users."

    @pytest.mark.parametrize("port", [65536, 99999, 10**30])
    def test_a_port_beyond_the_last_is_refused(self, own: Keys, port: int) -> None:
        """ZeroMQ would listen at another one, or ask who listens there."""
        with pytest.raises(ControlError) as refused:
            RemoteEndpoint(f"127.0.0.1:{port}", own, option="--users")
        with pytest.raises(
            ControlError, match=rf"^127\.0\.0\.1:{port} is not an address: write HOST:PORT, .* up to 65535\.$"
        ):
            order(RemoteAddress(f"127.0.0.1:{port}", own.folder), "ps")

        why = "a port is at most 65535: choose another --users."
        assert str(refused.value) == f"cannot take orders at 127.0.0.1:{port}: {why}"

    @pytest.mark.parametrize("address", ["node1", ":9465", "node1:port", "a b:1"])
    def test_what_is_no_address(self, own: Keys, address: str) -> None:
        """Neither a host alone nor a port that is none."""
        with pytest.raises(
            ControlError, match=r"(is not an address: write HOST:PORT, such as node1:9465|no agent listens at)"
        ):
            order(RemoteAddress(address, own.folder), "ps")

    def test_an_address_that_is_taken(self, gate: RemoteEndpoint, own: Keys) -> None:
        """Two agents cannot listen at one port."""
        with pytest.raises(ControlError, match=r"^cannot take orders at .*: Address already in use: choose another "):
            RemoteEndpoint(f"127.0.0.1:{gate.port}", own)
        gate.close()


def test_silence_is_told_as_on_a_node(
    server: Server, gate: RemoteEndpoint, own: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that lets us in and then does not answer is given up."""
    monkeypatch.setattr(client, "TIMEOUT_MS", 1)
    with pytest.raises(ControlError, match=rf"^the agent at 127.0.0.1:{gate.port} has not answered for 0.001 s: "):
        order(remote_with(gate, own), "ps")
    assert SECONDS
    del server
