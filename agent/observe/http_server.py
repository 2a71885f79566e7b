# SPDX-License-Identifier: Apache-2.0
"""An HTTP server with limits, for the metrics and pages of an agent and of a scheduler.

At most `MOST_AT_ONCE` requests are open at a time, each for at most `TIMEOUT` seconds: slow clients cannot use up the
descriptors and the memory of the process. Others wait in the kernel's queue until there is room. A site computes the
answers; the server only reads requests and writes answers. `prometheus_client.start_http_server` has no such limits,
and frameworks bring an event loop into a process whose memory has a goal.
"""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PLAIN = "text/plain; charset=utf-8"
MOST_AT_ONCE = 32
"""Requests that are handled at the same time, so that they take no descriptors from programs. While others wait, the
client that has been sending its request, or receiving its answer, for longest is disconnected after `HURRY` seconds."""
WAITING = 1024
"""Connections that wait in the kernel to be accepted; a client beyond these tries again after a second."""
HURRY = 0.5
PAUSE = 0.05
"""Seconds between two checks whether there is room for a waiting connection."""
TIMEOUT = 10.0
"""Seconds after the start of a connection by which a client must have sent its request and received its answer."""
QUIET = 60.0
"""Seconds after a report of a failed request in which no other is reported."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Answer(NamedTuple):
    """The answer to a client."""

    body: bytes
    kind: str
    status: HTTPStatus = HTTPStatus.OK


class Site(Protocol):
    """The content that is served."""

    def answer(self, target: str, accept: str) -> Answer:
        """Return the answer for a request's target; `accept` is its header of that name. Called by several threads."""

    def failed(self, sentence: str) -> None:
        """Log that a request could not be answered, and why."""

    def ready(self) -> bool:
        """Return whether the process serves its users at present."""


HEALTH = {"/-/healthy": "healthy", "/-/ready": "ready"}
"""Paths, named as in Prometheus, at which a supervisor checks whether a process runs and serves its users."""


def _answer(site: Site, target: str, accept: str) -> Answer:
    path = urlsplit(target).path
    if path not in HEALTH:
        return site.answer(target, accept)
    if path == "/-/ready" and not site.ready():
        return Answer(b"not ready\n", PLAIN, HTTPStatus.SERVICE_UNAVAILABLE)
    return Answer(f"{HEALTH[path]}\n".encode(), PLAIN)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "drom"
    sys_version = ""

    def do_GET(self) -> None:
        try:
            with self.server.answering(self.connection):
                answer = _answer(self.server.site, self.path, self.headers.get("Accept", ""))
        except ValueError:  # no URL, or too many fields in it
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        self.send_response(answer.status)
        for name, value in {"Content-Type": answer.kind, "Content-Length": str(len(answer.body)), **HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET  # noqa: N815 - as http.server calls it

    def log_message(self, *_: object) -> None:
        """Log nothing: the log is for what the agent does."""


@dataclass(slots=True)
class _Client:
    """A connected client. `waits`: its answer is being computed.

    `since` is when it connected, or when its answer was ready (seconds, CLOCK_MONOTONIC).
    """

    since: float
    waits: bool = False


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    request_queue_size = WAITING
    daemon_threads = True

    def __init__(self, site: Site, host: str, port: int) -> None:
        self.site = site
        self._clients: dict[socket.socket, _Client] = {}
        """The clients that are not disconnected, the oldest first."""
        self._places = 0
        """The number of threads, including those of disconnected clients that have not ended yet."""
        self._quiet_until = 0.0
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self.address_family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        super().__init__(address, _Handler)  # type: ignore[arg-type] # an address of IPv6 has four parts

    @contextmanager
    def answering(self, connection: socket.socket) -> Iterator[None]:
        """Protect this client from disconnection while its answer is computed. Raises OSError if it is disconnected."""
        with self._lock:
            client = self._clients.get(connection)
            if client is None:
                raise ConnectionAbortedError
            client.waits = True
        try:
            yield
        finally:
            client.since = time.monotonic()  # from now on it is the client that takes its time
            client.waits = False

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection. Raises OSError, after a pause, while there is no room for one."""
        with self._room:
            if not self._room.wait_for(self._make_room, PAUSE):
                raise BlockingIOError
        try:
            return super().get_request()
        except OSError:  # no descriptors: the connection would be reported again at once
            time.sleep(PAUSE)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as socketserver
        with self._lock:
            self._clients[request] = _Client(time.monotonic())
            self._places += 1
        try:
            super().process_request(request, client_address)
        except BaseException:
            with self._room:
                self._places -= 1
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as socketserver
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._room:
                self._places -= 1
                self._room.notify()

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - as socketserver
        with self._lock:  # from here on the kernel may reuse its descriptor
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Disconnect clients that have taken too long."""
        late = time.monotonic() - TIMEOUT
        with self._lock:
            for slow in [at for at, client in self._clients.items() if client.since < late and not client.waits]:
                self._send_away(slow)

    def _make_room(self) -> bool:
        """Return whether there is room for another client; disconnect one for it if necessary and possible."""
        if self._places >= 2 * MOST_AT_ONCE:  # threads of disconnected clients have not ended yet
            return False
        if len(self._clients) >= MOST_AT_ONCE:
            idle = [at for at, client in self._clients.items() if not client.waits]
            slow = min(idle, key=lambda at: self._clients[at].since, default=None)
            if slow is None or time.monotonic() - self._clients[slow].since < HURRY:
                return False
            self._send_away(slow)
        return True

    def _send_away(self, connection: socket.socket) -> None:
        """Shut down a client's connection: its thread, which waits for it, detects that and closes it."""
        del self._clients[connection]
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_: object) -> None:
        """Report a failed request, at most once in `QUIET` seconds; the disconnection of a client is no failure."""
        error, now = sys.exc_info()[1], time.monotonic()
        with self._lock:
            if isinstance(error, OSError) or now < self._quiet_until:
                return
            self._quiet_until = now + QUIET
        self.site.failed(f"a request could not be answered: {error!r}")


def serve(site: Site, host: str, port: int) -> tuple[int, Callable[[], None]]:
    """Serve `site` at `host`:`port` from threads; return the port and a function that stops it. Raises OSError.

    For port 0 the kernel chooses a free one.
    """
    server = _Server(site, host, port)
    thread = threading.Thread(target=server.serve_forever, name="web", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return int(server.server_address[1]), stop
