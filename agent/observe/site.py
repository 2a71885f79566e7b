# SPDX-License-Identifier: Apache-2.0
"""The HTTP interface of an agent: metrics for Prometheus, and a web page.

Requests are answered by threads of their own, a few at a time, from snapshots that are taken under the daemon's lock at
most twice a second, however many clients there are. No request can change anything.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from drom.agent.errors import Refused
from drom.agent.observe import dashboard, event_log, http_server, node_map
from drom.agent.observe.cpu_history import COLUMNS, OTHERS, history_from_events
from drom.agent.observe.event_log import EventLogError
from drom.agent.observe.exposition import Exposition
from drom.agent.observe.http_server import Answer
from drom.agent.observe.metrics import NodeCollector
from drom.agent.system.users import DIRECTORY
from drom.agent.text import iso

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.agent.observe.cpu_history import Column, CpuHistory
    from drom.agent.observe.view import AgentView

STATIC = Path(__file__).with_name("static")
TEXT = "charset=utf-8"
TYPES = {".html": f"text/html; {TEXT}", ".css": f"text/css; {TEXT}", ".js": f"text/javascript; {TEXT}"}
JSON = "application/json"
FRESH = 0.5
FRESH_HOUR = 2.0
"""Seconds for which an answer is reused."""
FORMATS = 4
"""Number of requested metrics formats whose last text is stored."""
SHARE = 0.05
"""Part of the time that may be spent on computing an answer again, if that takes long."""


def _json(value: object, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return Answer(json.dumps(value, separators=(",", ":")).encode(), JSON, status)


class CachedAnswer:
    """An answer that is computed on request, and reused for `seconds`, or for as long as `SHARE` requires."""

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
    """The pages and data of an agent."""

    def __init__(self, agent: AgentView) -> None:
        self._agent = agent
        self._collector = NodeCollector(agent)
        self._exposition = functools.lru_cache(FORMATS)(Exposition)
        self._user = DIRECTORY.user_name
        self._turn = threading.Lock()
        """Taken before the daemon's lock, so that the loop competes with one thread only, however many requests run."""
        self._before: list[Column] | None = None
        self._numbers: dict[str, int] = {}
        files = [file for file in STATIC.iterdir() if file.suffix in TYPES]
        self._files = {f"/{file.name}": Answer(file.read_bytes(), TYPES[file.suffix]) for file in files}
        self._files["/"] = self._files["/page.html"]
        self._kept = {
            "/state.json": CachedAnswer(self._state, FRESH),
            "/hour.json": CachedAnswer(self._hour, FRESH_HOUR),
        }

    def answer(self, target: str, accept: str) -> Answer:
        """Return the answer for a request's target; `accept` is its header of that name."""
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

    def failed(self, sentence: str) -> None:
        """Log that a request could not be answered."""
        with self._agent.lock:
            self._agent.log("request_failed", reason=sentence)

    def ready(self) -> bool:
        """Return whether programs can be granted CPUs: an agent serves only once they can register."""
        return True

    def _metrics(self, accept: str) -> Answer:
        with self._turn:
            exposition = self._exposition(accept)
            return Answer(exposition.text(self._collector.collect()), exposition.kind)

    def _explain(self, job: str) -> Answer:
        try:
            with self._turn, self._agent.lock:
                return _json(self._agent.control_handler.explained(job))
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
        return _json(about | dashboard.state(now, self._user))

    def _hour(self) -> Answer:
        now, past, _ = self._look()
        cpus = sum(mask.bit_count() for *_, mask in self._agent.rows)
        return _json({"time": iso(time.time())} | dashboard.hour(past, now.numbers, cpus))

    def _look(self) -> tuple[dashboard.DashboardState, CpuHistory, int]:
        """Return the present state, the history, and the number of changes so far."""
        agent = self._agent
        with self._turn:
            with agent.lock:
                snapshot = agent.snapshot()
                machine = agent.usable.availability.machine
                since = agent.report.hour.look(time.monotonic())
                changes = agent.report.counters.changes.total()
            past = since.after(self._earlier(since))
            answer: dict[str, Any] = snapshot.to_json()
            jobs = dict.fromkeys(task["job"] for task in answer["tasks"])
            gone = dict.fromkeys(name for column in past.columns for name in column if name != OTHERS)
            self._numbers = node_map.number(jobs | gone, self._numbers)
            return dashboard.DashboardState(machine.to_json(), answer, self._numbers), past, changes

    def _earlier(self, since: CpuHistory) -> list[Column]:
        """Return the history before this agent, as far as events are stored; it is read once."""
        if self._before is None:
            kept = self._agent.log.history
            self._before = []
            if kept and len(since.columns) < COLUMNS:
                with suppress(EventLogError, OSError):
                    self._before = history_from_events(event_log.read(kept.path), time.time() - since.lasted)
        return self._before


def serve(agent: AgentView, host: str, port: int) -> tuple[int, Callable[[], None]]:
    """Serve page and metrics at `host`:`port` from threads; return the port and a function to stop it. Raises OSError.

    For port 0 the kernel chooses a free one.
    """
    return http_server.serve(Site(agent), host, port)
