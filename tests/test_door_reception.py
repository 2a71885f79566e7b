# SPDX-License-Identifier: Apache-2.0
"""Visitors at the door, with a loop that is turned by hand."""

from __future__ import annotations

import errno
import os
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from agent import reception
from agent.door import DEAF
from agent.quotas import Quotas
from agent.reception import Reception

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest


def test_without_descriptors_the_loop_does_not_spin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who knocks then stays in the queue, and nobody looks at the door again before a while has passed."""
    now = 100.0
    monkeypatch.setattr(reception, "time", SimpleNamespace(monotonic=lambda: now))
    handlers: dict[int, Callable[[], None]] = {}
    loop: Any = SimpleNamespace(watch=handlers.__setitem__, unwatch=lambda fd: handlers.pop(fd, None))
    hall = Reception(tmp_path / "door", 1024, loop, cast("Any", None), Quotas())
    door = hall._door

    def refuse() -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as visitor:
        visitor.connect(str(tmp_path / "door"))
        hall.open()
        hall._listener._socket = cast("socket.socket", SimpleNamespace(accept=refuse))
        handlers[door.fileno()]()
        hall.tend()
        assert not handlers
        now += DEAF
        hall.tend()
        assert handlers.keys() == {door.fileno()}
        hall._listener._socket = door
        handlers[door.fileno()]()

        assert len(handlers) == 2
        hall.close()
