"""A registration server without an agent: answers attaches and launches from one registry, as the test says."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

from dromlib import layout
from dromlib.testing import Registry, start_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Answer = Callable[["Request"], None]

MASK_BITS = 128


class Request:
    """One registration request, which may be answered any number of times."""

    def __init__(self, connection: socket.socket, raw: bytes) -> None:
        self.connection = connection
        self.raw = raw
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.pid = int.from_bytes(credentials[:4], "little")

    def field(self, name: str) -> int:
        """Return an integer field of the request."""
        return layout.REQUEST.read(self.raw, name)

    def text(self, name: str) -> str:
        """Return a text field of the request."""
        return layout.REQUEST.read_text(self.raw, name)

    def reply(self, status: str, fds: tuple[int, ...] = (), mask: int = 0, **fields: Any) -> None:
        """Send a reply."""
        raw = layout.pack_reply(status, mask=mask, mask_bits=MASK_BITS, **fields)
        socket.send_fds(self.connection, [raw], list(fds))

    def attach(self, registry: Registry, slot: int = 0, *, follower: bool = False) -> None:
        """Answer an attach: the sender gets `slot`, or follows the task in it."""
        if not follower:
            registry.assign(slot, self.pid, start_time(self.pid))
        identity = layout.SLOT.unpack(registry.view, registry.base(slot))
        pid, start = identity["pid"], identity["start_time"]
        assert isinstance(pid, int)
        assert isinstance(start, int)
        with contextlib.ExitStack() as stack:
            paths = [(registry.path, os.O_RDONLY)]
            if not follower:
                paths.append((registry.mailbox(slot), os.O_RDWR))
            fds = []
            for path, mode in paths:
                fd = os.open(path, mode)
                stack.callback(os.close, fd)
                fds.append(fd)
            self.reply("follower" if follower else "granted", tuple(fds), slot=slot, task=(pid, start))

    def grant(self, mask: int, **fields: int | str) -> None:
        """Answer a launch with CPUs of a synthetic machine unless `flags` says otherwise."""
        said = {"flags": layout.HEADER_EMULATED, "max_cpus": mask.bit_count(), **fields}
        self.reply("granted", (), mask, task=(self.pid, start_time(self.pid)), **said)

    def hang_up(self) -> None:
        """Close the connection."""
        self.connection.close()


class RegistrationServer:
    """A thread that passes each request to the next of the answers; the last one gets all further requests."""

    def __init__(self, folder: Path, *answers: Answer) -> None:
        self.folder = folder
        self.requests: list[Request] = []
        self.errors: list[BaseException] = []
        self._answers = answers
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(str(folder / "door"))
        self._socket.listen(64)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            raw = peer.recv(4096)
            if not raw:
                peer.close()
                continue
            request = Request(peer, raw)
            self.requests.append(request)
            try:
                self._answers[min(len(self.requests), len(self._answers)) - 1](request)
            except BaseException as error:  # noqa: BLE001 - the test's thread reports it
                self.errors.append(error)
                request.hang_up()

    def close(self) -> None:
        """Stop listening and hang up every connection; the name stays, as after a kill."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        for request in self.requests:
            request.hang_up()


@contextlib.contextmanager
def serve_registrations(folder: Path, *answers: Answer) -> Iterator[RegistrationServer]:
    """Serve registrations in `folder` within a block; raise what an answer raised."""
    server = RegistrationServer(folder, *answers)
    try:
        yield server
    finally:
        server.close()
    for error in server.errors:
        raise error
