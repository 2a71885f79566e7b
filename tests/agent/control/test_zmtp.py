# SPDX-License-Identifier: Apache-2.0
"""ZeroMQ's protocol as the agent speaks it, with peers that say what they like; `test_server` has ZeroMQ's own."""

from __future__ import annotations

import errno
import gc
import os
import select
import socket
import time
import weakref
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.control.zmtp import MORE, PATIENCE, PING, PONG, FrameReader, PublisherServer, ZmtpServer, frame
from drom.agent.system import connections
from drom.agent.system.connections import ACCEPT_PAUSE, LOOK, MOST_HELD
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dromlib.signals import topic
from dromlib.subscription import COMMAND, GREETING, LONG, READY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LONGEST = 1000
SERVED = 1 << 20
HELLO = GREETING + frame(READY, COMMAND)


@pytest.fixture
def exchange(folder: Path) -> Iterator[ZmtpServer]:
    """Return an exchange at which a user may have two connections."""
    made = ZmtpServer(folder / "control", 0o666, b"ROUTER", lambda _: 2, LONGEST)
    yield made
    made.end()


@pytest.fixture
def signals(folder: Path) -> Iterator[PublisherServer]:
    """Return the signals of a thousand slots."""
    made = PublisherServer(folder / "signals", 0o666, 1000, lambda _: 2)
    yield made
    made.end()


def connect(path: Path) -> socket.socket:
    """Return a connection that has said how it speaks."""
    made = socket.socket(socket.AF_UNIX)
    made.connect(str(path))
    made.setblocking(False)
    made.sendall(HELLO)
    return made


def is_over(fd: int) -> bool:
    """Say whether nothing is to be done at an exchange."""
    return not select.select([fd], [], [], 0)[0]


def line_of(exchange: ZmtpServer, peer: socket.socket) -> FrameReader:
    """Send a message from `peer`; return the exchange's end of that connection."""
    lines: list[FrameReader] = []
    peer.sendall(frame(b"hi"))
    while not lines:
        exchange.serve(lambda line, _: lines.append(line), 1.0)
    return lines[0]


def messages(exchange: ZmtpServer) -> list[bytes | None]:
    """Return what has come, once all is taken in."""
    found: list[bytes | None] = []
    while not is_over(exchange.fd):
        exchange.serve(lambda _, message: found.append(message), 1.0)
    return found


def has_ended(connection: socket.socket) -> bool:
    """Say whether the other side has closed the connection, after what it said."""
    try:
        while connection.recv(SERVED):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


class TestMessages:
    """What somebody says to an exchange."""

    def test_messages_come_whole_however_they_are_cut(self, exchange: ZmtpServer, folder: Path) -> None:
        """A byte at a time, beside commands that are none of ours; of several frames only that there were several."""
        said = frame(b"a") + frame(b"PING", COMMAND) + frame(b"b" * 300) + frame(b"c", MORE) + frame(b"") + frame(b"")
        with connect(folder / "control") as line:
            found = []
            for byte in said:
                line.sendall(bytes([byte]))
                found += messages(exchange)

        assert found == [b"a", b"b" * 300, None, b""]

    def test_heartbeats_are_answered(self, exchange: ZmtpServer, folder: Path) -> None:
        """Each PING has its PONG with what it wants repeated, and other commands are nobody's."""
        with connect(folder / "control") as connection:
            messages(exchange)
            connection.recv(SERVED)
            for context in (b"", b"again", bytes(40)):
                ping = frame(PING + b"\0\1" + context, COMMAND)
                connection.sendall(ping + frame(b"\x05OTHER", COMMAND) + frame(b"hi"))
                assert messages(exchange) == [b"hi"]
                assert connection.recv(SERVED) == frame(PONG + context[:16], COMMAND)

    def test_heartbeats_without_end_are_not_kept(self, exchange: ZmtpServer, folder: Path) -> None:
        """Who reads no answers has one that waits."""
        with connect(folder / "control") as connection:
            line = line_of(exchange, connection)
            for _ in range(20_000):
                with suppress(BlockingIOError):
                    connection.send(frame(PING + b"\0\1" + bytes(16), COMMAND))
                exchange.serve(lambda *_: None, 1.0)

            assert 0 < len(line.unsent) <= len(frame(PONG + bytes(16), COMMAND))

    @pytest.mark.parametrize("said", [b"\x02" + (LONGEST + 1).to_bytes(8, "big"), b"\x02" + b"\xff" * 8])
    def test_who_announces_too_long_a_frame_is_hung_up_on(
        self, exchange: ZmtpServer, folder: Path, said: bytes
    ) -> None:
        """Nothing of it is read."""
        with connect(folder / "control") as line:
            line.sendall(said)
            assert messages(exchange) == []
            assert has_ended(line)

    @pytest.mark.parametrize("greeting", [b"GET / HTTP/1.0\r\n" * 4, GREETING.replace(b"NULL", b"CURV"), bytes(64)])
    def test_who_speaks_otherwise_is_hung_up_on(self, exchange: ZmtpServer, folder: Path, greeting: bytes) -> None:
        """Other protocols, and other mechanisms."""
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(folder / "control"))
            line.sendall(greeting)
            assert messages(exchange) == []
            line.setblocking(False)
            assert has_ended(line)

    def test_frames_without_end_are_not_kept(self, exchange: ZmtpServer, folder: Path) -> None:
        """A message of which only more comes takes up one frame; others are heard in between."""
        with connect(folder / "control") as flood, connect(folder / "control") as other:
            for _ in range(1000):
                flood.sendall(frame(bytes(LONGEST), MORE) * 10)
                assert messages(exchange) == []
            (first, _) = exchange.lines
            assert len(first._have) + len(first.unsent) < LONGEST
            other.sendall(frame(b"heard"))
            assert messages(exchange) == [b"heard"]

    def test_connections_beyond_a_share_are_closed(self, exchange: ZmtpServer, folder: Path) -> None:
        """At once; those before stay, and one that ends makes room."""
        with connect(folder / "control") as first, connect(folder / "control"), connect(folder / "control") as third:
            messages(exchange)
            assert has_ended(third)
            assert not has_ended(first)
            first.close()
            with connect(folder / "control") as fourth:
                messages(exchange)
                assert not has_ended(fourth)

    def test_nobody_waits_for_who_says_much(self, exchange: ZmtpServer, folder: Path) -> None:
        """Connections have their turns one after the other, also where a turn is over after the first message."""
        heard: list[bytes | None] = []

        def heed(_: FrameReader, message: bytes | None) -> None:
            heard.append(message)

        with connect(folder / "control") as much, connect(folder / "control") as little:
            messages(exchange)
            much.sendall(frame(b"much") * 100)
            little.sendall(frame(b"little"))
            for _ in range(4):
                exchange.serve(heed, 0.0)

        assert b"little" in heard

    @given(said=st.binary(max_size=200))
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_any_bytes_are_messages_or_an_end(self, exchange: ZmtpServer, folder: Path, said: bytes) -> None:
        """Nothing else comes of what somebody says."""
        with connect(folder / "control") as line:
            line.sendall(said)
            assert all(message is None or len(message) <= LONGEST for message in messages(exchange))
        messages(exchange)
        assert not list(exchange.lines)
        assert not exchange.lines._users


class TestHeld:
    """What is kept of messages that do not end and of answers that are not read."""

    ANSWER = bytes(1 << 20)

    @pytest.fixture
    def roomy(self, folder: Path) -> Iterator[ZmtpServer]:
        """Return an exchange at which a user may have twenty connections."""
        made = ZmtpServer(folder / "control", 0o666, b"ROUTER", lambda _: 20, 1 << 16, backlog=20)
        yield made
        made.end()

    def test_unread_answers_have_a_bound(self, roomy: ZmtpServer, folder: Path) -> None:
        """Beyond it the connections are closed that have not read for longest; the last answer comes whole."""
        with ExitStack() as stack:
            deaf = [stack.enter_context(connect(folder / "control")) for _ in range(12)]
            for one in deaf:
                roomy.send(line_of(roomy, one), self.ANSWER)
            held = [line.held for line in roomy.lines]
            assert sum(held) == roomy.lines._held <= MOST_HELD
            assert [line.socket.getpeername() for line in roomy.lines] == [""] * len(held)
            assert len(held) == MOST_HELD // max(held)
            got = read_all(deaf[-1], lambda: roomy.serve(lambda *_: None, 1.0))
            assert got.endswith(frame(self.ANSWER))
            assert sum(line.held for line in roomy.lines) == roomy.lines._held < sum(held)
        messages(roomy)
        assert roomy.lines._held == 0

    def test_one_answer_may_be_longer(self, roomy: ZmtpServer, folder: Path) -> None:
        """An answer beyond the bound is sent to a connection that reads."""
        answer = bytes(2 * MOST_HELD)
        with connect(folder / "control") as one:
            roomy.send(line_of(roomy, one), answer)
            assert read_all(one, lambda: roomy.serve(lambda *_: None, 1.0)).endswith(frame(answer))

    def test_half_messages_and_unread_answers_have_a_deadline(self, roomy: ZmtpServer, folder: Path) -> None:
        """A connection between two messages may stay as long as it likes."""
        with ExitStack() as stack:
            silent, half, deaf, idle = (stack.enter_context(connect(folder / "control")) for _ in range(4))
            half.sendall(frame(b"half")[:-1])
            roomy.send(line_of(roomy, deaf), self.ANSWER)
            roomy.send(line_of(roomy, idle), b"answer")
            messages(roomy)
            roomy.lines.tend(time.monotonic() + PATIENCE - LOOK)
            assert not any(map(has_ended, (silent, half, idle)))
            roomy.lines.tend(time.monotonic() + PATIENCE + LOOK)
            assert [has_ended(one) for one in (silent, half, deaf, idle)] == [False, True, True, False]

    def test_what_a_closed_connection_has_said_is_freed_at_once(self, exchange: ZmtpServer, folder: Path) -> None:
        """Not when garbage is collected: who connects again and again would fill the memory until then."""
        with connect(folder / "control") as peer:
            line = line_of(exchange, peer)
            peer.sendall(frame(bytes(LONGEST))[:-1])
            messages(exchange)
            assert len(line._have) == LONGEST - 1
            alive = weakref.ref(line)
            gc.disable()
            try:
                del line
                peer.close()
                exchange.serve(lambda *_: None, 1.0)
                assert alive() is None
            finally:
                gc.enable()

    def test_users_have_their_turns(self, roomy: ZmtpServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """However many connections of one are waiting, another one's message is next but one."""
        users = [1] * 10 + [2]
        monkeypatch.setattr(connections, "peer_credentials", lambda _: (1, users.pop(0), 1))
        heard: list[int] = []
        with ExitStack() as stack:
            made = [stack.enter_context(connect(folder / "control")) for _ in range(11)]
            assert messages(roomy) == []
            for one in made:
                one.sendall(frame(b"a") * 5)
            while len(heard) < 55:
                roomy.serve(lambda line, _: heard.append(line.uid), 0.0)
        assert heard[:4] in ([1, 2, 1, 2], [2, 1, 2, 1])
        assert heard.index(2) < 2
        assert heard[:10].count(2) == 5


class TestSignals:
    """Who subscribes to what."""

    @staticmethod
    def take_in(signals: PublisherServer) -> None:
        """Take in all that has been said."""
        while not is_over(signals.fd):
            signals.serve(1.0)

    @pytest.mark.parametrize(
        "said",
        [
            frame(b"\x01" + topic(1000)),
            frame(b"\x01slot.1"),
            frame(b"\x02"),
            frame(b""),
            frame(b"\x01", MORE) + frame(b""),
            b"".join(frame(b"\x01" + topic(slot)) for slot in range(PublisherServer.TOPICS + 1)),
        ],
        ids=["no slot", "no topic", "neither", "nothing", "frames", "many"],
    )
    def test_who_wants_what_there_is_none_of_is_sent_away(
        self, signals: PublisherServer, folder: Path, said: bytes
    ) -> None:
        """Or more than anybody needs; nothing of it is kept."""
        with connect(folder / "signals") as line:
            line.sendall(said)
            self.take_in(signals)
            assert has_ended(line)
        assert not signals._wanted
        assert not signals._listeners

    def test_a_signal_goes_once_to_who_wants_it(self, signals: PublisherServer, folder: Path) -> None:
        """Also to who wants all and this one, until he says that he does not."""
        with connect(folder / "signals") as both, connect(folder / "signals") as other:
            both.sendall(frame(b"\x01") + frame(b"\x01" + topic(7)) + frame(b"\x01" + topic(7)))
            other.sendall(frame(b"\x01" + topic(8)))
            self.take_in(signals)
            both.recv(SERVED), other.recv(SERVED)
            signals.publish(7, b"first")
            both.sendall(frame(b"\x00") + frame(b"\x00" + topic(7)) + frame(b"\x00" + topic(9)))
            self.take_in(signals)
            signals.publish(7, b"second")
            assert both.recv(SERVED) == frame(b"first")
            with pytest.raises(BlockingIOError):
                other.recv(SERVED)

    def test_who_does_not_read_misses_signals(self, signals: PublisherServer, folder: Path) -> None:
        """What waits for him is bounded; what he gets is whole, and then he hears the next ones again."""
        with connect(folder / "signals") as line:
            line.sendall(frame(b"\x01"))
            self.take_in(signals)
            line.recv(SERVED)
            for _ in range(1000):
                signals.publish(0, bytes(10_000))
            (kept,) = signals._wanted
            assert len(kept.unsent) <= PublisherServer.UNREAD + len(frame(bytes(10_000)))
            got = read_all(line, lambda: self.take_in(signals))
            assert set(got.split(frame(bytes(10_000)))) == {b""}
            signals.publish(0, b"again")
            assert line.recv(SERVED) == frame(b"again")


def read_all(line: socket.socket, serve: Callable[[], None]) -> bytes:
    """Return all that is sent until nothing comes any more."""
    got = b""
    while True:
        try:
            got += line.recv(SERVED)
        except BlockingIOError:
            return got
        serve()


def test_where_a_socket_is_left_the_next_one_is(folder: Path) -> None:
    """A dead agent's socket is replaced, and no descriptor stays open after the end."""
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(2):
        made = ZmtpServer(folder / "control", 0o600, b"ROUTER", lambda _: 1, LONGEST)
        with connect(folder / "control"):
            messages(made)
            made.end()

    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert (folder / "control").stat().st_mode & 0o777 == 0o600


PINGED = frame(PING + b"\0\1again", COMMAND)
EIGHT = frame(b"\x01" + topic(8))
FLOOD = 1000
"""Messages that are more than the answers for which a socket has room."""
LEGAL = {
    "greeting": (b"", GREETING, 0, 0),
    "READY": (GREETING, frame(READY, COMMAND), 0, 0),
    "PING": (HELLO, PINGED, 0, 0),
    "SUBSCRIBE": (HELLO, EIGHT, 0, 1),
    "SUBSCRIBE to all": (HELLO, frame(b"\x01"), 0, 1),
    "SUBSCRIBE in a long frame": (HELLO, bytes([LONG]) + (len(EIGHT) - 2).to_bytes(8, "big") + EIGHT[2:], 0, 1),
    "SUBSCRIBE as a command": (HELLO, frame(b"\x09SUBSCRIBE" + topic(8), COMMAND), 0, 0),
    "CANCEL": (HELLO + EIGHT, frame(b"\x00" + topic(8)), 1, 0),
    "CANCEL of nothing": (HELLO, frame(b"\x00" + topic(8)), 0, 0),
    "CANCEL as a command": (HELLO + EIGHT, frame(b"\x06CANCEL" + topic(8), COMMAND), 1, 1),
    "ERROR": (HELLO, frame(b"\x05ERROR\x03bad", COMMAND), 0, 0),
    "unknown command": (HELLO, frame(b"\x05OTHER", COMMAND), 0, 0),
    "PING and SUBSCRIBE": (HELLO, PINGED + EIGHT, 0, 1),
    "PING after SUBSCRIBE": (HELLO + EIGHT, PINGED, 1, 1),
}
"""What is said before a legal message, the message, and the subscriptions there are before and after it.

Commands of ZMTP 3.1 for subscriptions are nobody's: what is spoken here is 3.0, where they are messages.
"""


def plain(path: Path) -> socket.socket:
    """Return a connection that has said nothing."""
    made = socket.socket(socket.AF_UNIX)
    made.connect(str(path))
    made.setblocking(False)
    return made


def take_in(signals: PublisherServer) -> None:
    """Take in all that has been said."""
    while not is_over(signals.fd):
        signals.serve(1.0)


def descriptors() -> set[str]:
    """Return which descriptors are open."""
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208


def counts(signals: PublisherServer) -> tuple[int, int, int]:
    """Return how many connections there are, subscriptions of them, and subscriptions by slot."""
    lines = list(signals._exchange.lines)
    assert sum(len(user.connections) for user in signals._exchange.lines._users.values()) == len(lines)
    assert set(signals._wanted) <= set(lines)
    return len(lines), sum(map(len, signals._wanted.values())), sum(map(len, signals._listeners.values()))


def flood(peer: socket.socket, message: bytes, serve: Callable[[], None]) -> None:
    """Say a message again and again, and read nothing."""
    for _ in range(FLOOD):
        with suppress(BlockingIOError, ConnectionError):
            peer.send(message)
        serve()


def behave(peer: socket.socket, ending: str, before: bytes, message: bytes, serve: Callable[[], None]) -> None:
    """Say a message after others, in one write, and do what the ending says."""
    if ending != "hangs up unheard":
        serve()
    if ending != "reset":
        with suppress(BlockingIOError):
            peer.recv(SERVED)
    peer.sendall(before + (message[:-1] if ending.startswith("half") else message))
    if ending == "floods":
        flood(peer, message, serve)
    if ending == "hangs up later":
        serve()
    if ending not in {"stays", "half a message", "floods"}:
        peer.close()
    serve()


class TestEndings:
    """What comes after a legal message."""

    @pytest.mark.parametrize(
        "ending",
        [
            "stays",
            "hangs up",
            "hangs up later",
            "hangs up unheard",
            "half a message",
            "half a message and hangs up",
            "reset",
            "floods",
        ],
    )
    @pytest.mark.parametrize("name", LEGAL)
    def test_a_legal_message_costs_nobody_else(
        self, signals: PublisherServer, folder: Path, name: str, ending: str
    ) -> None:
        """Whatever its sender does next, others are heard and served, and nothing is kept of who has gone."""
        before, message, fewer, subscribed = LEGAL[name]
        open_before = descriptors()
        stays = ending in {"stays", "half a message"} or (ending == "floods" and name != "greeting")
        wanted = 1 + stays * (fewer if ending.startswith("half") else subscribed)
        with connect(folder / "signals") as other, plain(folder / "signals") as peer:
            other.sendall(frame(b"\x01" + topic(7)))
            behave(peer, ending, before, message, lambda: take_in(signals))
            assert counts(signals) == (1 + stays, wanted, wanted)
            other.recv(SERVED)
            for slot in (8, 7):
                signals.publish(slot, b"still")
            assert other.recv(SERVED) == frame(b"still")
            if not stays:
                peer.close()
                with connect(folder / "signals") as third:
                    third.sendall(frame(b"\x01" + topic(8)))
                    take_in(signals)
                    third.recv(SERVED)
                    signals.publish(8, b"heard")
                    assert third.recv(SERVED) == frame(b"heard")
        take_in(signals)
        assert counts(signals) == (0, 0, 0)
        assert descriptors() == open_before

    def test_nobody_is_heard_whose_answer_found_him_gone(self, exchange: ZmtpServer, folder: Path) -> None:
        """Where the answer to a PING closes the connection, the message after it is not passed on."""
        with plain(folder / "control") as peer:
            assert messages(exchange) == []
            peer.recv(SERVED)
            peer.sendall(HELLO + PINGED + frame(b"hi"))
        assert messages(exchange) == []
        assert not list(exchange.lines)

    def test_a_number_that_is_used_again_is_another_connection(self, exchange: ZmtpServer, folder: Path) -> None:
        """What is done to a closed connection does nothing to the one that has its descriptor's number now."""
        with connect(folder / "control") as first:
            line = line_of(exchange, first)
            with connect(folder / "control") as second:  # before the number is free, which this end would have then
                exchange.close(line)
                messages(exchange)
                second.recv(SERVED)
                (now,) = exchange.lines
                assert now.fd == line.fd
                exchange.send(line, b"late")
                exchange.close(line)
                assert not line.unsent
                second.sendall(frame(b"heard"))
                assert messages(exchange) == [b"heard"]
                exchange.send(now, b"answer")
                assert second.recv(SERVED) == frame(b"answer")

    def test_who_has_the_number_of_one_who_went_keeps_his_subscription(
        self, signals: PublisherServer, folder: Path
    ) -> None:
        """Signals that one who went with PING and subscription asked for do not cost the next one his connection."""
        with plain(folder / "signals") as peer, socket.socket(socket.AF_UNIX) as other:
            take_in(signals)
            (gone,) = signals._exchange.lines
            peer.recv(SERVED)
            peer.sendall(HELLO + PINGED + EIGHT)
            peer.close()
            placeholder = os.open(os.devnull, os.O_RDONLY)  # has the number of this end, so that the other's is next
            take_in(signals)
            other.connect(str(folder / "signals"))
            other.sendall(HELLO + EIGHT)
            take_in(signals)
            (now,) = signals._exchange.lines
            os.close(placeholder)
            assert now.fd == gone.fd
            other.setblocking(False)
            other.recv(SERVED)
            for _ in range(2):
                signals.publish(8, b"still")
                assert other.recv(SERVED) == frame(b"still")
            assert counts(signals) == (1, 1, 1)
            assert b"still" not in gone.unsent


class Refusing:
    """An epoll of which one call fails while `refuses` names it."""

    def __init__(self, real: select.epoll) -> None:
        self._real = real
        self.refuses = ""

    def __getattr__(self, name: str) -> Any:
        if name == self.refuses:
            return self._refuse
        return getattr(self._real, name)

    @staticmethod
    def _refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room for another watch")


class TestNoRoomForWatches:
    """What the kernel refuses an epoll."""

    @pytest.mark.parametrize("call", ["register", "modify", "unregister"])
    def test_a_refused_call_costs_one_connection(
        self, signals: PublisherServer, folder: Path, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        """The connection is closed, and others are served."""
        epoll = Refusing(signals._exchange.lines._epoll)
        monkeypatch.setattr(signals._exchange.lines, "_epoll", epoll)
        with connect(folder / "signals") as other:
            other.sendall(frame(b"\x01" + topic(7)))
            take_in(signals)
            other.recv(SERVED)
            epoll.refuses = call
            with connect(folder / "signals") as peer:
                peer.sendall(EIGHT)
                take_in(signals)
                for _ in range(100):
                    signals.publish(8, bytes(10_000))
            take_in(signals)
            assert counts(signals) == (1, 1, 1)
            signals.publish(7, b"still")
            assert other.recv(SERVED) == frame(b"still")

    def test_callers_are_let_in_once_there_is_room(
        self, exchange: ZmtpServer, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where the door could not be watched again, that is tried in each turn."""
        epoll = Refusing(exchange.lines._epoll)
        monkeypatch.setattr(exchange.lines, "_epoll", epoll)
        lines = exchange.lines
        lines._unwatch(lines._listening.fileno())
        lines._paused_until = time.monotonic()
        epoll.refuses = "register"
        with connect(folder / "control") as line:
            line.sendall(frame(b"heard"))
            assert messages(exchange) == []
            epoll.refuses = ""
            lines.tend(time.monotonic() + ACCEPT_PAUSE)
            assert messages(exchange) == [b"heard"]

    def test_an_exchange_that_cannot_be_leaves_no_descriptor(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where there is no epoll to be had, its socket is closed."""
        before = descriptors()
        monkeypatch.setattr(select, "epoll", Refusing._refuse)
        with pytest.raises(OSError, match="no room"):
            ZmtpServer(folder / "control", 0o600, b"ROUTER", lambda _: 1, LONGEST)
        assert descriptors() == before
