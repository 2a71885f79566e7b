# SPDX-License-Identifier: Apache-2.0
"""One question and one answer, with servers that answer as they like; `test_server` has agents."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from drom.agent.control import local_client
from drom.agent.control.zmtp import MORE, frame

from dromlib.subscription import COMMAND, GREETING, READY

if TYPE_CHECKING:
    from pathlib import Path

HELLO = GREETING + frame(READY, COMMAND)


@pytest.mark.parametrize(
    ("says", "answer"),
    [
        (HELLO + frame(b"yes"), b"yes"),
        (HELLO + frame(b"\x04PING", COMMAND) + frame(bytes(300)), bytes(300)),
        (b"HTTP/1.0 200 OK\r\n" * 4, "does not use ZMTP 3"),
        (HELLO + frame(b"a", MORE) + frame(b"b"), "sends no answers"),
        (HELLO + b"\x02" + b"\xff" * 8, "sends no answers"),
        (HELLO + b"\x00\x09half", "closed the connection"),
        (GREETING[:40], "closed the connection"),
        (b"", "closed the connection"),
    ],
)
def test_an_answer_is_whole_or_an_error(folder: Path, says: bytes, answer: bytes | str) -> None:
    """Commands are passed over; a server that hangs up or says something else is not waited for."""
    with socket.socket(socket.AF_UNIX) as listening, ThreadPoolExecutor(1) as pool:
        listening.bind(str(folder / "control"))
        listening.listen()
        with local_client.connect(folder / "control", 30) as connection:
            accepted, _ = listening.accept()
            asked = pool.submit(local_client.ask, connection, b"question")
            accepted.sendall(says)
            accepted.shutdown(socket.SHUT_WR)
            if isinstance(answer, bytes):
                assert asked.result(30) == answer
            else:
                with pytest.raises(ConnectionError, match=answer):
                    asked.result(30)
            accepted.close()


def test_a_full_queue_is_waited_for(folder: Path) -> None:
    """A server that has not accepted for a while is tried again, until the time is up."""
    path = folder / "control"
    with socket.socket(socket.AF_UNIX) as listening, ThreadPoolExecutor(1) as pool:
        listening.bind(str(path))
        listening.listen(0)
        with local_client.connect(path, 30):
            with pytest.raises(TimeoutError):
                local_client.connect(path, 0.05)
            waiting = pool.submit(local_client.connect, path, 30)
            listening.accept()[0].close()
            waiting.result(30).close()
