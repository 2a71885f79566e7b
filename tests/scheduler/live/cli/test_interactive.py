# SPDX-License-Identifier: Apache-2.0
"""The user's side of a terminal, without a cluster; tests/system/test_interactive.py has real ones."""

from __future__ import annotations

import contextlib
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zmq
from drom.agent.control import keys
from drom.agent.control.remote import RemoteAddress
from drom.agent.execution import terminal
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cli import interactive
from drom.scheduler.live.cli.interactive import Listener
from drom.scheduler.live.cluster.spec import Spec

from tests.support.agents import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path("/somewhere")


@pytest.fixture
def listener() -> Iterator[Listener]:
    """Return a terminal that waits for its program."""
    with contextlib.closing(Listener(FOLDER)) as listening:
        yield listening


@contextlib.contextmanager
def program(listener: Listener) -> Iterator[zmq.Socket[bytes]]:
    """Connect as a program does, and say so."""
    address, secret = listener.text.split(" ")
    port = address.rpartition(":")[2]
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.setsockopt(zmq.LINGER, 0)
        keys.guard_client(sock, keys.one_time(secret.encode()), "")
        sock.connect(f"tcp://127.0.0.1:{port}")
        sock.send(terminal.HELLO)
        yield sock


def told(**fields: Any) -> dict[str, Any]:
    """Return the description of a job that is over."""
    return {"state": "failed", "status": 1, "reason": "it returned 1", **fields}


def test_the_first_program_is_the_one(listener: Listener) -> None:
    """Another one that has the key too is ignored, and gets nothing."""
    with program(listener) as first:
        while not listener.hears():
            pass
        with program(listener) as second:
            second.send(terminal.EXIT + b"\0")
            for _ in range(2):
                while (heard := listener.receive()) is None:
                    listener.wait(1)
                assert heard == b""
            listener.send(terminal.INPUT + b"x")
            assert first.recv() == terminal.INPUT + b"x"
            assert not second.poll(0)


def test_a_message_to_a_program_that_is_gone_fails(listener: Listener) -> None:
    """Soon after the connection has ended."""
    with program(listener):
        while not listener.hears():
            pass

    def fails() -> bool:
        try:
            listener.send(b"")
        except zmq.ZMQError:
            return True
        return False

    wait_until(fails, lambda: "sent")


def test_a_node_that_cannot_connect_is_named(listener: Listener) -> None:
    """With the address that it has tried."""
    sentence = f"the node of job 7 could not connect to this terminal at {listener.address}: let nodes connect"
    with pytest.raises(SchedulerError, match=re.escape(sentence)):
        interactive._attach(7, listener, lambda _: told(status=terminal.NO_TERMINAL))


def test_a_job_that_is_over_before_it_began_says_why(listener: Listener, capsys: pytest.CaptureFixture[str]) -> None:
    """The status is the one that `drom submit --wait` would have."""
    cancelled = told(state="cancelled", status=None, reason="cancelled by root")

    assert interactive._attach(7, listener, lambda _: cancelled) == 1

    assert capsys.readouterr().err == "drom: job 7: cancelled by root\n"


@pytest.mark.parametrize("fd", [interactive.INPUT, interactive.OUTPUT])
def test_nothing_is_submitted_without_a_terminal(monkeypatch: pytest.MonkeyPatch, fd: int) -> None:
    """Neither with input from a file nor with output to one."""
    monkeypatch.setattr("os.isatty", lambda one: one != fd)
    with pytest.raises(SchedulerError, match=r"^--pty needs a terminal for input and output"):
        interactive.run(Spec(), FOLDER, pytest.fail)


@pytest.mark.parametrize(("host", "found"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_the_address_is_the_one_towards_a_scheduler_elsewhere(host: str, found: str) -> None:
    """Nodes are where the scheduler is."""
    assert interactive._our_address(RemoteAddress(f"{host}:9467", FOLDER)) == found


@pytest.mark.parametrize("where", [FOLDER, RemoteAddress("no.such.host.invalid:9467", FOLDER)])
def test_the_address_is_the_name_of_the_host(monkeypatch: pytest.MonkeyPatch, where: Path | RemoteAddress) -> None:
    """Nodes find it as they find other hosts; one that nobody finds has only nodes of its own."""
    assert interactive._our_address(where) in (socket.gethostname(), "127.0.0.1")
    monkeypatch.setattr(socket, "gethostname", lambda: "no.such.host.invalid")
    assert interactive._our_address(where) == "127.0.0.1"
