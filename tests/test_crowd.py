# SPDX-License-Identifier: Apache-2.0
"""Who is connected to a socket of the agent's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import zmq

from agent.crowd import Crowd

if TYPE_CHECKING:
    from pathlib import Path


def open_files() -> set[str]:
    """Return the numbers of our descriptors."""
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_a_number_that_is_another_file_by_now_is_left_alone(tmp_path: Path) -> None:
    """Who connects and closes at once may be told of when a pidfd or a pipe has the number: nothing is left open."""
    pidfd, (read, write) = os.pidfd_open(os.getpid()), os.pipe()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as sock:
        crowd = Crowd(context, sock, tmp_path / "control", lambda _: 1)
        sock.bind(f"ipc://{tmp_path / 'control'}")
        before = open_files()
        for fd in (pidfd, read, write):
            crowd._take_in(fd)
            crowd._close(fd, os.getpid())
        after = open_files()
        crowd.close()
    for fd in (pidfd, read, write):
        os.close(fd)

    assert after == before
