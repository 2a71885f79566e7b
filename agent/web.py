# SPDX-License-Identifier: Apache-2.0
"""What an agent serves over HTTP: metrics for Prometheus, and a page for people.

Requests are answered by threads of their own, a few at a time, from snapshots that are taken under the daemon's lock at
most twice a second however many look. Nothing that comes in can change anything.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import socketserver
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from agent import history, node_map, page
from agent.exposition import Exposition
from agent.history import HistoryError
from agent.hour import COLUMNS, OTHERS, replayed
from agent.jobs import Refused
from agent.metrics import NodeCollector
from agent.users import user_name
from agent.words import iso

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.daemon import Daemon
    from agent.hour import Column, History

STATIC = Path(__file__).with_name("static")
TEXT = "charset=utf-8"
TYPES = {".html": f"text/html; {TEXT}", ".css": f"text/css; {TEXT}", ".js": f"text/javascript; {TEXT}"}
JSON = "application/json"
MOST_AT_ONCE = 32
"""Requests that are dealt with at the same time, so that they take no descriptors from programs. For another one, that
client is sent away who has been asking, or taking his answer, for longest."""
TIMEOUT = 10.0
"""Seconds from the begin of a connection in which a client must have asked and taken its answer."""
FRESH = 0.5
FRESH_HOUR = 2.0
"""Seconds for which an answer is given again."""
FORMATS = 4
"""Formats of the metrics, and ways to ask for them, whose last text is kept."""
SHARE = 0.05
"""Part of the time that may go into making an answer anew, on nodes where that takes long."""
QUIET = 60.0
"""Seconds after a request that could not be answered for which no other is logged."""
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
    """What a client gets."""

    body: bytes
    kind: str
    status: HTTPStatus = HTTPStatus.OK


def _json(value: object, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return Answer(json.dumps(value, separators=(",", ":")).encode(), JSON, status)


class Kept:
    """An answer that is made when somebody asks, and kept for `seconds`, or for as long as `SHARE` wants it."""

    def __init__(self, make: Callable[[], Answer], seconds: float) -> None:
        self._make = make
        self._seconds = seconds
        self._lock = threading.Lock()
        self._until = 0.0
        self._answer: Answer | None = None

    def get(self) -> Answer:
        """Return the answer."""
        with self._lock:
            start = time.monotonic()
            if self._answer is None or start >= self._until:
                self._answer = self._make()
                self._until = start + max(self._seconds, (time.monotonic() - start) / SHARE)
            return self._answer


class Site:
    """All that can be asked for."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._collector = NodeCollector(daemon)
        self._exposition = functools.lru_cache(FORMATS)(Exposition)
        self._user = functools.cache(user_name)
        self._turn = threading.Lock()
        """Only who has it asks for the daemon's lock: the loop has one rival there, however many requests there are."""
        self._quiet_until = 0.0
        self._before: list[Column] | None = None
        self._numbers: dict[str, int] = {}
        files = [file for file in STATIC.iterdir() if file.suffix in TYPES]
        self._files = {f"/{file.name}": Answer(file.read_bytes(), TYPES[file.suffix]) for file in files}
        self._files["/"] = self._files["/page.html"]
        self._kept = {"/state.json": Kept(self._state, FRESH), "/hour.json": Kept(self._hour, FRESH_HOUR)}

    def answer(self, target: str, accept: str) -> Answer:
        """Return what there is at a request's target; `accept` is its header of that name."""
        parts = urlsplit(target)
        if parts.path in self._files:
            return self._files[parts.path]
        if parts.path in self._kept:
            return self._kept[parts.path].get()
        if parts.path == "/metrics":
            return self._metrics(accept)
        if parts.path == "/explain.json":
            return self._explain(parse_qs(parts.query).get("job", [""])[0])
        there = b"There is nothing here: ask for / or /metrics.\n"
        return Answer(there, f"text/plain; {TEXT}", HTTPStatus.NOT_FOUND)

    def failed(self, error: BaseException | None) -> None:
        """Log that a request could not be answered, once in a while: whoever asks must not fill the log."""
        now = time.monotonic()
        if now < self._quiet_until:
            return
        self._quiet_until = now + QUIET
        with self._daemon.lock:
            self._daemon.log("warning", web=f"a request could not be answered: {error!r}")

    def _metrics(self, accept: str) -> Answer:
        with self._turn:
            exposition = self._exposition(accept)
            return Answer(exposition.text(self._collector.collect()), exposition.kind)

    def _explain(self, job: str) -> Answer:
        try:
            with self._turn, self._daemon.lock:
                return _json(self._daemon.obeying.explained(job))
        except Refused as refusal:
            return _json({"error": str(refusal)}, HTTPStatus.NOT_FOUND)

    def _state(self) -> Answer:
        now, _, changes = self._look()
        about = {
            "node": os.uname().nodename,
            "version": metadata.version("drom"),
            "time": iso(time.time()),
            "changes": changes,
        }
        return _json(about | page.state(now, self._user))

    def _hour(self) -> Answer:
        now, past, _ = self._look()
        cpus = sum(mask.bit_count() for *_, mask in self._daemon.rows)
        return _json({"time": iso(time.time())} | page.hour(past, now.numbers, cpus))

    def _look(self) -> tuple[page.Now, History, int]:
        """Return what there is now, what there has been, and how many changes there have been."""
        daemon = self._daemon
        with self._turn:
            with daemon.lock:
                snapshot = daemon.snapshot()
                machine = daemon.rereading.machine
                since = daemon.report.hour.look(time.monotonic())
                changes = daemon.report.counters.changes.total()
            past = since.after(self._earlier(since))
            answer: dict[str, Any] = snapshot.to_json()
            jobs = dict.fromkeys(task["job"] for task in answer["tasks"])
            gone = dict.fromkeys(name for column in past.columns for name in column if name != OTHERS)
            self._numbers = node_map.number(jobs | gone, self._numbers)
            return page.Now(machine.to_json(), answer, self._numbers), past, changes

    def _earlier(self, since: History) -> list[Column]:
        """Return what there was before this agent, as far as events are kept; that is looked up once."""
        if self._before is None:
            kept = self._daemon.log.history
            self._before = []
            if kept and len(since.columns) < COLUMNS:
                with suppress(HistoryError, OSError):
                    self._before = replayed(history.read(kept.path), time.time() - since.lasted)
        return self._before


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "drom"
    sys_version = ""

    def do_GET(self) -> None:
        try:
            with self.server.answering(self.connection):
                answer = self.server.site.answer(self.path, self.headers.get("Accept", ""))
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
        """Say nothing: the log is for what the agent does."""


@dataclass(slots=True)
class _Client:
    """Whose connection began at `since` (CLOCK_MONOTONIC), and who perhaps `waits` for an answer to be made."""

    since: float
    waits: bool = False


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    request_queue_size = 4 * MOST_AT_ONCE  # who finds no place there comes again only after a second
    daemon_threads = True

    def __init__(self, site: Site, host: str, port: int) -> None:
        self.site = site
        self._clients: dict[socket.socket, _Client] = {}
        """Those that may go on, the longest there first."""
        self._places = 0
        """Threads there are, also of those that were sent away and have not gone yet."""
        self._lock = threading.Lock()
        self.address_family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        super().__init__(address, _Handler)  # type: ignore[arg-type] # an address of IPv6 has four parts

    @contextmanager
    def answering(self, connection: socket.socket) -> Iterator[None]:
        """Send this client away for nobody while it waits for us. Raises OSError if it has been sent away already."""
        with self._lock:
            client = self._clients.get(connection)
            if client is None:
                raise ConnectionAbortedError
            client.waits = True
        try:
            yield
        finally:
            client.waits = False

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as socketserver
        with self._lock:
            room = self._make_room()
            if room:
                self._clients[request] = _Client(time.monotonic())
                self._places += 1
        if not room:
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            with self._lock:
                self._places -= 1
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as socketserver
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._places -= 1

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - as socketserver
        with self._lock:  # from here on its number may be another's
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Send away who has taken too long."""
        late = time.monotonic() - TIMEOUT
        with self._lock:
            for slow in [at for at, client in self._clients.items() if client.since < late and not client.waits]:
                self._send_away(slow)

    def _make_room(self) -> bool:
        """Return whether there is room for another client, if need be because another one has been sent away."""
        if self._places >= 2 * MOST_AT_ONCE:  # those sent away have not been able to go yet
            return False
        if len(self._clients) >= MOST_AT_ONCE:
            slow = next((at for at, client in self._clients.items() if not client.waits), None)
            if slow is None:
                return False
            self._send_away(slow)
        return True

    def _send_away(self, connection: socket.socket) -> None:
        """End a client's connection: its thread, which waits for it, sees that and closes it."""
        del self._clients[connection]
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_: object) -> None:
        """Do nothing about a client that has gone."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            self.site.failed(error)


def serve(daemon: Daemon, host: str, port: int) -> tuple[int, Callable[[], None]]:
    """Serve page and metrics at `host`:`port` from threads; return the port and what stops it. Raises OSError.

    For port 0 the kernel chooses one that is free.
    """
    server = _Server(Site(daemon), host, port)
    thread = threading.Thread(target=server.serve_forever, name="web", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return int(server.server_address[1]), stop
