# SPDX-License-Identifier: Apache-2.0
"""The node's side of a terminal, with a real user's side that behaves well or badly."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import struct
import subprocess
import time
from functools import partial
from typing import TYPE_CHECKING

import psutil
import pytest
import zmq
from drom.agent.control import keys
from drom.agent.control.gate import RemoteEndpoint
from drom.agent.execution import terminal
from drom.agent.system import python_command

from tests.support.agents import SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from drom.agent.control.keys import Keys

SIZE = terminal.WINDOW + struct.pack("!4H", 24, 80, 0, 0)


class User:
    """A user's side that listens with the keys `own`, and a program on the node's side with those in a file."""

    def __init__(self, file: Path, own: Keys, theirs: Keys, command: tuple[str, ...], **constants: float) -> None:
        self._endpoint = RemoteEndpoint("127.0.0.1:0", own, longest=4 * terminal.LONGEST)
        self._endpoint.sock.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._close: Callable[[], None] = self._endpoint.close
        self._line = b""
        self.output = b""
        file.write_text(f"127.0.0.1:{self._endpoint.port} {theirs.secret.decode()}", encoding="ascii")
        changed = "".join(f"terminal.{name} = {value}; " for name, value in constants.items())
        code = f"from drom.agent.execution import terminal; {changed}sys.exit(terminal.main())"
        self.process = subprocess.Popen(python_command.python(code, str(file), *command))

    def receive(self) -> bytes:
        """Return the next message of the program."""
        deadline = time.monotonic() + SECONDS
        while not (heard := self._endpoint.read()):
            while self._endpoint.run():
                pass
            poller = zmq.Poller()
            poller.register(self._endpoint.sock, zmq.POLLIN)
            poller.register(self._endpoint.fd, zmq.POLLIN)
            poller.poll(1000)
            assert time.monotonic() < deadline
        self._line = heard.line
        return heard.message or b""

    def connections(self) -> list[int]:
        """Return the connections that have proved their keys."""
        while self._endpoint.run():
            pass
        return list(self._endpoint._inside)

    def send(self, message: bytes) -> bool:
        """Send a message to the program; return whether it takes one now."""
        try:
            self._endpoint.sock.send_multipart([self._line, message], zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def begin(self) -> None:
        """Let the program start."""
        assert self.receive() == terminal.HELLO
        self.send(SIZE)

    def read_until(self, text: bytes) -> None:
        """Read output until it has this text."""
        while text not in self.output:
            message = self.receive()
            assert message[:1] == terminal.OUTPUT, message
            self.output += message[1:]

    def read_status(self) -> int:
        """Read the rest of the output; return the status that follows it."""
        while (message := self.receive())[:1] == terminal.OUTPUT:
            self.output += message[1:]
        assert message[:1] == terminal.EXIT
        assert self.process.wait(SECONDS) == message[1]
        return message[1]

    def close(self) -> None:
        """Hang up, once."""
        close, self._close = self._close, lambda: None
        close()


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Callable[..., User]]:
    """Return what starts both sides; nothing is left of them."""
    with contextlib.ExitStack() as stack:

        def start(*command: str, theirs: Keys | None = None, **constants: float) -> User:
            own = keys.one_time()
            there = User(tmp_path / "terminal", own, theirs or own, command, **{"PATIENCE": SECONDS, **constants})
            stack.callback(there.process.wait, SECONDS)
            stack.callback(there.process.kill)
            stack.callback(there.close)
            return there

        yield start


def test_bytes_and_the_status_arrive(user: Callable[..., User]) -> None:
    """The program has the size of the window and what is typed, and its last output comes before its status."""
    there = user("/bin/sh", "-c", "stty -echo; stty size; read x; echo got $x; head -c 30000 /dev/zero; exit 9")
    there.begin()
    there.read_until(b"24 80\r\n")

    there.send(terminal.INPUT + b"word\n")

    assert there.read_status() == 9
    assert there.output == b"24 80\r\ngot word\r\n" + bytes(30_000)


@pytest.mark.parametrize(("command", "status"), [("kill -KILL $$", 137), ("exec /nowhere/at/all", 127)])
def test_an_end_is_reported_as_by_a_shell(user: Callable[..., User], command: str, status: int) -> None:
    """That of a program that a signal has ended, and of one that does not exist."""
    there = user("/bin/sh", "-c", command)
    there.begin()

    assert there.read_status() == status


def test_a_program_that_what_it_has_started_outlives(user: Callable[..., User]) -> None:
    """Its status comes though another process goes on printing to the terminal."""
    there = user("/bin/sh", "-c", "trap '' HUP; yes & exit 4")
    there.begin()

    assert there.read_status() == 4


def test_a_program_gets_sighup_when_its_user_is_gone(user: Callable[..., User], tmp_path: Path) -> None:
    """It may still do something; a program that goes on is left to drom-step after a while."""
    there = user(
        "/bin/sh", "-c", f"trap 'echo bye > {tmp_path}/bye; exit 3' HUP; echo ready; while :; do sleep 0.1; done"
    )
    there.begin()
    there.read_until(b"ready")

    there.close()

    assert there.process.wait(SECONDS) == terminal.HUNG_UP
    assert (tmp_path / "bye").read_text(encoding="ascii") == "bye\n"


@pytest.mark.parametrize("knows", [True, False])
def test_a_program_never_starts_without_its_user(user: Callable[..., User], tmp_path: Path, *, knows: bool) -> None:
    """One who has another key is not the user, and one who says nothing does not wait for it."""
    there = user("/bin/touch", f"{tmp_path}/made", PATIENCE=1, theirs=None if knows else keys.one_time())

    assert there.process.wait(SECONDS) == terminal.NO_TERMINAL
    assert not (tmp_path / "made").exists()


def test_a_signal_for_the_job_is_for_its_program(user: Callable[..., User]) -> None:
    """The process that has the terminal goes on, also before the program begins."""
    there = user("/bin/sh", "-c", "echo ready; read x; echo got $x")
    assert there.receive() == terminal.HELLO
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGTSTP):
        there.process.send_signal(number)
    there.send(SIZE)
    there.read_until(b"ready")
    there.send(terminal.INPUT + b"word\n")

    assert there.read_status() == 0


def test_a_program_that_was_killed_before_its_user_came_is_over(user: Callable[..., User]) -> None:
    """The process that has the terminal waits no longer."""
    there = user("/bin/true")
    assert there.receive() == terminal.HELLO
    (child,) = psutil.Process(there.process.pid).children()

    child.kill()

    assert there.process.wait(SECONDS) == terminal.NO_TERMINAL


def test_a_program_that_prints_without_end_waits(user: Callable[..., User]) -> None:
    """It is stopped while its user reads nothing, and less than a MiB of its output is anywhere."""
    there = user("/usr/bin/yes")
    there.begin()
    (child,) = psutil.Process(there.process.pid).children()
    read = sum(len(there.receive()) - 1 for _ in range(1000))
    written: list[int] = []

    def waits() -> bool:
        written.append(child.io_counters().write_chars)
        return len(written) > 50 and len(set(written[-50:])) == 1

    wait_until(waits, lambda: written[-1])
    printed = written[-1] // len("y\n") * len("y\r\n")
    assert printed < read + (1 << 20)

    for _ in range(200):  # it goes on
        there.receive()
    wait_until(lambda: child.io_counters().write_chars > written[-1], lambda: written[-1])
    there.send(terminal.INPUT + b"\x03")
    assert there.read_status() == 128 + signal.SIGINT


def test_a_program_that_reads_nothing_slows_its_user_down(user: Callable[..., User]) -> None:
    """A few messages wait for it, and the connection is closed all the same when the user goes."""
    there = user("/bin/sh", "-c", "stty raw -echo; echo ready; exec sleep 1000", ALIVE_MS=2000)
    there.begin()
    there.read_until(b"ready")
    block = terminal.INPUT + b"x" * terminal.CHUNK
    sent = refused = 0

    def full() -> bool:
        nonlocal sent, refused
        while there.send(block):
            sent, refused = sent + 1, 0
        refused += 1
        return refused > 50

    wait_until(full, lambda: sent)
    assert psutil.Process(there.process.pid).memory_info().rss < 100 << 20
    assert (sent > terminal.WAITING, there.process.poll()) == (True, None)

    there.close()

    assert there.process.wait(SECONDS) == terminal.HUNG_UP


def test_much_that_is_typed_arrives_whole(user: Callable[..., User]) -> None:
    """As when a file is pasted: what the program has not taken yet waits with its user."""
    there = user("/bin/sh", "-c", "stty raw -echo; echo ready; head -c 400000 | md5sum")
    there.begin()
    there.read_until(b"ready")
    text = random.Random(1).randbytes(400_000)

    for at in range(0, len(text), terminal.CHUNK):
        wait_until(partial(there.send, terminal.INPUT + text[at : at + terminal.CHUNK]), lambda: there.output)

    assert there.read_status() == 0
    assert hashlib.md5(text, usedforsecurity=False).hexdigest().encode() in there.output


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"?",
        b"what is this",
        terminal.WINDOW,
        terminal.WINDOW + b"1234567",
        terminal.WINDOW + b"123456789",
        terminal.INPUT,
    ],
)
def test_a_message_that_means_nothing_changes_nothing(user: Callable[..., User], message: bytes) -> None:
    """It is ignored, whatever is in it."""
    there = user("/bin/sh", "-c", "read x; stty size")
    there.begin()

    there.send(message)

    there.send(terminal.INPUT + b"\n")
    assert there.read_status() == 0
    assert b"24 80" in there.output


def test_a_message_that_is_too_long_ends_the_connection(user: Callable[..., User]) -> None:
    """The program ends as if its user had hung up."""
    there = user("/bin/sh", "-c", "echo ready; exec sleep 1000")
    there.begin()
    there.read_until(b"ready")

    there.send(terminal.INPUT + b"x" * (2 * terminal.CHUNK))

    assert there.process.wait(SECONDS) == terminal.HUNG_UP


def test_a_connection_that_breaks_before_the_program_begins_is_made_again(user: Callable[..., User]) -> None:
    """As when strangers fill the places of the user's side."""
    there = user("/bin/echo", "hello")
    assert there.receive() == terminal.HELLO
    (fd,) = wait_until(there.connections, lambda: "no connection")
    there._endpoint._reject(fd)

    there.begin()

    assert there.read_status() == 0


@pytest.mark.parametrize("text", ["", "127.0.0.1:1", "127.0.0.1:1 key", f"nowhere {'k' * 40}", f"a b {'k' * 40}"])
def test_a_file_that_names_no_terminal_starts_nothing(tmp_path: Path, text: str) -> None:
    """It fails, and so does the job."""
    (tmp_path / "terminal").write_text(text, encoding="ascii")
    command = python_command.module(
        "drom.agent.execution.terminal", f"{tmp_path}/terminal", "/bin/touch", f"{tmp_path}/made"
    )

    done = subprocess.run(command, capture_output=True, check=False, timeout=SECONDS)

    assert done.returncode not in (0, os.EX_UNAVAILABLE)
    assert not (tmp_path / "made").exists()
