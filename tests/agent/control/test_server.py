# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zmq
from drom.agent.control import client, messages
from drom.agent.control.client import Connection, order, signals
from drom.agent.control.messages import endpoint
from drom.agent.control.server import Server
from drom.agent.control.zmtp import ZmtpServer, frame
from drom.agent.errors import ControlError, ElsewhereError, NotYetError, RefusedError
from drom.agent.model.caller import Caller
from drom.agent.system import paths
from drom.agent.system.connections import TURN_SECONDS

from dromlib.subscription import COMMAND, GREETING, READY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Answer = Callable[[dict[str, Any], Caller], Any]

SECONDS = 60
ASK = """
import os, sys
from pathlib import Path
from drom.agent.control.client import order
from drom.agent.errors import ControlError
os.setresuid(65533, 65533, 65533)
for path in sys.argv[1:]:
    try:
        order(Path(path), "ps")
    except ControlError as error:
        print(error)
"""
"""Asks the agents of directories as another user, who may not be able to read where drom is installed."""


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    """Return an agent's side."""
    made = Server(folder, 0o666, slots=64)
    yield made
    made.close()


def serve_until(server: Server, done: Callable[[], object], answer: Answer) -> None:
    """Answer orders as the agent's loop does, until `done` or for at most a minute."""
    deadline = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < deadline, "nothing came"
        select.select(server.fds, [], [], 0.01)
        server.serve(answer)


def ask(server: Server, ask_: Callable[[], Any], answer: Answer) -> Any:
    """Return what a caller in another thread gets."""
    with ThreadPoolExecutor(1) as pool:
        future: Future[Any] = pool.submit(ask_)
        serve_until(server, future.done, answer)
        return future.result()


def send(server: Server, folder: Path, *frames: bytes) -> Any:
    """Return the answer to frames as they are."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.setsockopt(zmq.LINGER, 0)
        sock.connect(endpoint(folder, "control"))
        sock.send_multipart(frames)
        serve_until(server, lambda: sock.poll(0), lambda _order, _caller: "served")
        return json.loads(sock.recv())


HELLO = GREETING + frame(READY, COMMAND)


class TestOrders:
    """Orders and answers."""

    def test_an_order_reaches_the_agent(self, server: Server, folder: Path) -> None:
        """Its name and fields arrive, and the value comes back."""
        value = ask(server, lambda: order(folder, "resize", job="a", cpus=4), lambda asked, _: asked)

        assert value == {"protocol": 1, "order": "resize", "job": "a", "cpus": 4}

    def test_the_kernel_says_who_asks(self, server: Server, folder: Path) -> None:
        """Pid and user are those of the process at the other end, not what it claims."""
        callers: list[Caller] = []
        ask(server, lambda: order(folder, "ps", uid=4711, pid=1), lambda _, caller: callers.append(caller))

        assert callers == [Caller(os.getpid(), os.geteuid())]

    def test_a_refusal_is_a_sentence(self, server: Server, folder: Path) -> None:
        """What the agent refuses raises the same sentence at the other end, and it goes on serving."""

        def refuse(_order: dict[str, Any], _caller: Caller) -> None:
            raise ControlError("there is no job x: see `drom ps`.")

        with pytest.raises(ControlError, match=r"^there is no job x: see `drom ps`\.$"):
            ask(server, lambda: order(folder, "resize"), refuse)
        assert ask(server, lambda: order(folder, "ps"), lambda *_: 1) == 1

    @pytest.mark.parametrize("kind", [RefusedError, NotYetError, ElsewhereError])
    def test_the_kind_of_a_refusal_arrives(self, server: Server, folder: Path, kind: type[ControlError]) -> None:
        """The caller can tell whether to send the order again, and whether to another scheduler."""

        def refuse(_order: dict[str, Any], _caller: Caller) -> None:
            raise kind("not now.")

        with pytest.raises(ControlError) as caught:
            ask(server, lambda: order(folder, "resize"), refuse)
        assert type(caught.value) is kind

    @pytest.mark.parametrize(
        "frames",
        [
            [b""],
            [b"{"],
            [b"\xff\xfe"],
            [b"[]"],
            [b"null"],
            [b"{}"],
            [b'{"order": 1, "protocol": 1}'],
            [b'{"order": "ps", "protocol": 1}', b"more"],
            [b"", b'{"order": "ps", "protocol": 1}'],
            [b"[" * 30_000],
        ],
    )
    def test_malformed_orders_are_refused(self, server: Server, folder: Path, frames: list[bytes]) -> None:
        """Whatever arrives, the answer is one sentence."""
        answer = send(server, folder, *frames)

        assert not answer["ok"]
        assert answer["error"].startswith("an order is one JSON object with a field `order`: use the drom command")

    @pytest.mark.parametrize("protocol", [None, 0, 2, "1"])
    def test_another_protocol_is_refused(self, server: Server, folder: Path, protocol: object) -> None:
        """A command of another version is told so."""
        answer = send(server, folder, json.dumps({"order": "ps", "protocol": protocol}).encode())

        assert answer == {
            "ok": False,
            "error": "orders here are of protocol 1: use the drom command of this version.",
        }

    @pytest.mark.parametrize("answer", [b"", b"{", b"[1]", b'{"ok": true}', b'{"fine": 1}', b"\xff", b"[" * 9999])
    def test_an_agent_that_nobody_understands_is_of_another_version(self, folder: Path, answer: bytes) -> None:
        """What answers but not as this version does is told in one sentence."""
        other = ZmtpServer(folder / "control", 0o666, b"ROUTER", lambda _: 1, messages.MAX_MESSAGE)
        with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
            stack.callback(other.end)
            asked = pool.submit(order, folder, "ps")
            while not asked.done():
                if select.select([other.fd], [], [], 0.1)[0]:
                    other.serve(lambda line, _: other.send(line, answer), 1.0)
            with pytest.raises(ControlError, match=rf"^the agent in {folder} is of another version: restart it\.$"):
                asked.result()

    def test_a_message_too_long_is_dropped(self, server: Server, folder: Path) -> None:
        """Who sends it gets no answer, and others are served."""
        with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
            sock.setsockopt(zmq.LINGER, 0)
            sock.connect(endpoint(folder, "control"))
            sock.send(bytes(messages.MAX_MESSAGE + 1))
            assert ask(server, lambda: order(folder, "ps"), lambda *_: "others") == "others"
            assert sock.poll(0) == 0

    def test_who_hangs_up_is_no_hindrance(self, server: Server, folder: Path) -> None:
        """The order of a command that has gone, to which no answer would come, is not carried out; others are."""
        with socket.socket(socket.AF_UNIX) as gone:
            gone.connect(str(folder / "control"))
            gone.sendall(HELLO + frame(b'{"order": "gone", "protocol": 1}'))
        orders: list[str] = []

        assert ask(server, lambda: order(folder, "here"), lambda asked, _: orders.append(asked["order"])) is None
        assert orders == ["here"]

    @staticmethod
    def asker(context: zmq.Context[zmq.Socket[bytes]], folder: Path, orders: int) -> zmq.Socket[bytes]:
        """Return the socket of who has sent so many orders at once, and takes few answers that he does not read."""
        sock: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        sock.setsockopt(zmq.LINGER, 0)
        sock.setsockopt(zmq.RCVHWM, 1)
        sock.connect(endpoint(folder, "control"))
        for _ in range(orders):
            sock.send(b'{"order": "ps", "protocol": 1}')
        return sock

    def test_a_turn_is_over_after_a_few_milliseconds(self, server: Server, folder: Path) -> None:
        """However dear the orders are that wait, the agent looks at something else in between, and comes back."""
        answered: list[int] = []

        def answer(_order: dict[str, Any], _caller: Caller) -> None:
            answered[-1] += 1
            time.sleep(TURN_SECONDS)

        with zmq.Context() as context, self.asker(context, folder, 4):
            while sum(answered) < 4:
                answered.append(0)
                select.select(server.fds, [], [], SECONDS)
                while server.serve(answer):
                    answered.append(0)

        assert max(answered) == 1

    def test_who_does_not_read_is_not_heard(self, server: Server, folder: Path) -> None:
        """Of long answers only those wait that are on their way; once they are read, the other orders are answered."""
        answered: list[int] = []

        def answer(_order: dict[str, Any], _caller: Caller) -> str:
            answered.append(0)
            return "x" * (1 << 20)

        with zmq.Context() as context, self.asker(context, folder, 16) as sock:
            serve_until(server, lambda: answered, answer)
            for _ in range(2):
                assert ask(server, lambda: order(folder, "ps"), answer).startswith("x")
            assert len(answered) < 10
            for _ in range(16):
                serve_until(server, lambda: sock.poll(0), answer)
                sock.recv()

        assert len(answered) == 18

    def test_without_an_agent_the_sentence_says_how_to_start_one(self, folder: Path) -> None:
        """Nobody is waited for where no socket is."""
        with pytest.raises(
            ControlError, match=rf"^no agent answers in {folder}: start one with: drom agent .*{folder}$"
        ):
            order(folder, "ps")
        spaced = folder / "a b" / "c"
        with pytest.raises(ControlError, match=rf"start one with: drom agent --runtime-dir '{spaced}'$"):
            order(spaced, "ps")

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root: other users")
    def test_a_user_who_cannot_start_one_is_told_to_ask(self) -> None:
        """A directory in which only root may write, or that others may not enter, is not advised to a user."""
        with tempfile.TemporaryDirectory() as name:
            roots = Path(name)
            roots.chmod(0o755)
            closed = roots / "closed"
            closed.mkdir(mode=0o700)
            done = subprocess.run(
                [sys.executable, "-c", ASK, *(str(path) for path in (roots, roots / "new", closed))],
                capture_output=True,
                text=True,
                check=True,
            )

        ask = "you cannot start one there: ask an administrator to, or name the directory of your own"
        assert done.stdout.splitlines() == [
            *(f"no agent answers in {path}: {ask} agent with DROM_RUNTIME_DIR" for path in (roots, roots / "new")),
            f"you may not enter {closed}: name the directory of one that you may use with DROM_RUNTIME_DIR.",
        ]

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a directory of another user")
    def test_who_makes_our_directory_is_not_believed(self, server: Server, folder: Path) -> None:
        """Where nobody says where the agent is, anybody may have made the directory in which it would be, or a link."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(paths, "fallback_dir", lambda _: folder)
            assert ask(server, lambda: order(folder, "ps"), lambda *_: 1) == 1

            def refused() -> list[str]:
                said = []
                for attempt in (lambda: order(folder, "ps"), lambda: next(signals(folder))):
                    with pytest.raises(ControlError) as caught:
                        attempt()
                    said.append(str(caught.value))
                return said

            elsewhere = "name the directory of your agent with DROM_RUNTIME_DIR."
            os.chown(folder, 4711, -1)
            assert refused() == [f"{folder} belongs to another user: {elsewhere}"] * 2
            os.chown(folder, 0, -1)
            folder.chmod(0o777)
            assert refused() == [f"{folder} may be changed by other users: {elsewhere}"] * 2
            folder.chmod(0o755)
            link = folder.with_name(f"{folder.name}-link")
            link.symlink_to(folder)
            patch.setattr(paths, "fallback_dir", lambda _: link)
            with pytest.raises(ControlError, match=f"^{link} is no directory: {elsewhere}$"):
                order(link, "ps")
            link.unlink()
        assert ask(server, lambda: order(folder, "ps"), lambda *_: 2) == 2

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a socket of another user")
    def test_a_strangers_socket_gets_no_order(self, folder: Path) -> None:
        """Who listens is asked of the kernel: the name of a socket says nothing."""
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(folder / "control"))
            os.seteuid(4711)
            try:
                listening.listen()
            finally:
                os.seteuid(0)
            listening.setblocking(False)
            for attempt in (lambda: order(folder, "ps"), lambda: next(signals(folder))):
                with pytest.raises(
                    ControlError, match=rf"^the agent in {folder} is user 4711's, not root's or yours: "
                ):
                    attempt()
                with listening.accept()[0] as accepted:
                    assert accepted.recv(100) == b""

    def test_an_agent_that_hangs_up_is_not_waited_for(self, folder: Path) -> None:
        """The command ends at once, with a sentence."""
        with socket.socket(socket.AF_UNIX) as listening, ThreadPoolExecutor(1) as pool:
            listening.bind(str(folder / "control"))
            listening.listen()
            asked = pool.submit(order, folder, "ps")
            listening.accept()[0].close()
            with pytest.raises(ControlError, match=rf"^the agent in {folder} closed the connection: it has ended, or "):
                asked.result(SECONDS)

    def test_one_command_too_many_reads_why(self, folder: Path) -> None:
        """The agent answers it without reading the order."""
        with closing(Server(folder, 0o666, share=lambda _: 0)) as server:
            uid = os.geteuid()
            with pytest.raises(ControlError, match=rf"^user {uid} has 0 commands connected to the agent"):
                ask(server, lambda: order(folder, "ps"), lambda *_: 1)

    def test_what_an_agent_says_moves_no_cursor(self, server: Server, folder: Path) -> None:
        """Control characters are escaped in refusals and answers; refusals alone keep their line breaks."""

        def refuse(_order: dict[str, Any], _caller: Caller) -> None:
            raise ControlError("\x1b]0;a\x07b\nc")

        with pytest.raises(ControlError) as caught:
            ask(server, lambda: order(folder, "ps"), refuse)
        assert str(caught.value) == "\\x1b]0;a\\x07b\nc"
        assert ask(server, lambda: order(folder, "ps"), lambda *_: {"a": ["\x1b[2J\n", 1]}) == {"a": ["\\x1b[2J\\n", 1]}

    def test_an_agent_that_does_not_answer_is_given_up(
        self, server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A socket behind which nobody serves is not waited for without end."""
        monkeypatch.setattr(client, "TIMEOUT_MS", 1)

        with pytest.raises(ControlError, match=rf"^the agent in {folder} has not answered for 0.001 s: "):
            order(folder, "ps")
        del server

    def test_a_connection_carries_many_orders(self, server: Server, folder: Path) -> None:
        """Orders share a connection; after one that was not answered in time there is a new one."""
        with contextlib.closing(Connection(folder, seconds=0.01)) as connection:
            with pytest.raises(ControlError, match=rf"^the agent in {folder} has not answered for 0.01 s: "):
                connection.order("ps")
            connection._seconds = SECONDS
            sockets = []
            for name in ("ps", "topology", "ps"):
                assert ask(server, partial(connection.order, name), lambda order, _: order["order"]) == name
                sockets.append(connection._socket)

        assert sockets[0] is sockets[1] is sockets[2]


class TestSignals:
    """Events for whoever listens."""

    def test_events_of_one_slot(self, server: Server, folder: Path) -> None:
        """Slot 1 is not slot 12, and an event arrives as it was published."""
        with ThreadPoolExecutor(1) as pool:
            stream = signals(folder, 1)
            future = pool.submit(next, stream)
            deadline = time.monotonic() + SECONDS
            while not future.done() and time.monotonic() < deadline:
                server.signal(12, {"event": "other"})
                server.signal(1, {"event": "granted", "epoch": 7})
                select.select(server.fds, [], [], 0.01)  # a subscriber that is still connecting misses some
                server.serve(lambda *_: None)
            assert future.result(SECONDS) == {"event": "granted", "epoch": 7}
            pool.submit(stream.close).result(SECONDS)  # type: ignore[attr-defined]

    def test_nobody_has_to_listen(self, server: Server) -> None:
        """Publishing to nobody neither waits nor fails."""
        for number in range(5000):
            server.signal(0, {"event": "granted", "epoch": number})


class TestEndpoints:
    """Where the sockets are."""

    def test_the_mode_is_the_one_asked_for(self, server: Server, folder: Path) -> None:
        """ZeroMQ's own idea of a mode does not count."""
        assert [stat.S_IMODE((folder / name).stat().st_mode) for name in ("control", "signals")] == [0o666, 0o666]
        assert all(fd > 0 for fd in server.fds)

    def test_a_path_too_long_is_a_sentence(self) -> None:
        """The limit is that of AF_UNIX."""
        with pytest.raises(ControlError, match=r"is longer than the 107 bytes a socket's path may have: .*\.$"):
            endpoint(Path("/" + "x" * 100), "control")
