# SPDX-License-Identifier: Apache-2.0
"""How long a client of the agent's page and metrics may take, and who goes where there are many."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from drom.agent.observe import http_server
from drom.scheduler.live.server import metrics
from drom.scheduler.live.server.metrics import ClusterCollector, Counts

from tests.support.agents import SECONDS
from tests.support.child_processes import open_descriptors

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = "127.0.0.1"


@pytest.fixture
def site() -> Any:
    """Return what can be asked for: one text, once nobody bars it."""
    open_ = threading.Event()
    open_.set()
    entered = threading.Semaphore(0)

    def answer(*_: str) -> http_server.Answer:
        entered.release()
        assert open_.wait(SECONDS)
        return http_server.Answer(b"text", "text/plain")

    return SimpleNamespace(answer=answer, open=open_, entered=entered)


@pytest.fixture
def port(site: Any) -> Iterator[int]:
    """Return where it is served."""
    server = http_server._Server(site, HERE, 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield int(server.server_address[1])
    site.open.set()
    server.shutdown()
    server.server_close()
    thread.join()


def begun(port: int) -> socket.socket:
    """Return the connection of a client who has not asked to the end."""
    client = socket.create_connection((HERE, port), timeout=SECONDS)
    client.sendall(b"GET /")
    return client


def get(port: int) -> bytes:
    """Return what a client gets who asks at once."""
    with urllib.request.urlopen(f"http://{HERE}:{port}/", timeout=SECONDS) as answer:
        return bytes(answer.read())


def test_slow_clients_keep_nobody_out(port: int) -> None:
    """For who comes, the one goes that has not finished for longest; the others stay."""
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(begun(port)) for _ in range(http_server.MOST_AT_ONCE)]
        assert get(port) == b"text"
        assert slow[0].recv(1) == b""
        slow[-1].sendall(b" HTTP/1.0\r\n\r\n")
        assert slow[-1].recv(100).startswith(b"HTTP/1.0 200 ")


def test_who_waits_for_the_agent_stays(port: int, site: Any) -> None:
    """Where all have asked and are about to be answered, the next one waits until there is room."""
    site.open.clear()
    with contextlib.ExitStack() as stack:
        asked = [stack.enter_context(begun(port)) for _ in range(http_server.MOST_AT_ONCE)]
        for client in asked:
            client.sendall(b" HTTP/1.0\r\n\r\n")
            assert site.entered.acquire(timeout=SECONDS)
        late = stack.enter_context(begun(port))
        late.sendall(b" HTTP/1.0\r\n\r\n")
        time.sleep(http_server.HURRY + 2 * http_server.PAUSE)  # for which no client has gone
        assert not site.entered.acquire(blocking=False)
        site.open.set()
        for client in [*asked, late]:
            assert client.recv(100).startswith(b"HTTP/1.0 200 ")


def test_the_time_that_an_answer_takes_is_not_its_clients(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose answer was long in coming is not the one that is disconnected for the next."""
    now = [0.0]
    monkeypatch.setattr("drom.agent.observe.http_server.time.monotonic", lambda: now[0])
    monkeypatch.setattr(http_server, "MOST_AT_ONCE", 2)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(http_server._Server(site, HERE, 0))
        asked, idle = (_connected(server, stack) for _ in range(2))
        with server.answering(asked):
            now[0] = 10.0
        server._clients[idle].since = 1.0
        assert server._make_room()

        assert list(server._clients) == [asked]
        server._clients[idle] = http_server._Client(10.0)
        assert not server._make_room()


def _connected(server: http_server._Server, stack: contextlib.ExitStack) -> socket.socket:
    """Return the server's end of a connection that it has accepted now."""
    ours, _ = (stack.enter_context(end) for end in socket.socketpair())
    server._clients[ours] = http_server._Client(time.monotonic())
    return ours


def test_clients_that_come_at_once_are_all_served(port: int) -> None:
    """However many more than there is room for."""
    together = threading.Barrier(50)

    def scrape() -> bytes:
        together.wait()
        return get(port)

    with ThreadPoolExecutor(50) as pool:
        assert [one.result() for one in [pool.submit(scrape) for _ in range(50)]] == [b"text"] * 50


def test_the_whole_request_has_a_deadline(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends a byte now and then has no more time than others."""
    monkeypatch.setattr(http_server, "TIMEOUT", 0.1)
    with begun(port) as client:
        client.settimeout(0.01)
        deadline = time.monotonic() + SECONDS
        while _is_open(client):
            assert time.monotonic() < deadline


def _is_open(client: socket.socket) -> bool:
    """Send one more byte; say whether the server still wants one."""
    try:
        client.sendall(b"a")
        return client.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


@pytest.mark.parametrize(
    ("path", "ready", "status"), [("healthy", False, 200), ("ready", True, 200), ("ready", False, 503)]
)
def test_health_is_told_at_prometheus_paths(port: int, site: Any, path: str, ready: bool, status: int) -> None:
    """A process that runs is healthy, and ready where it does what it is for."""
    site.ready = lambda: ready
    connection = HTTPConnection(HERE, port, timeout=SECONDS)
    connection.request("GET", f"/-/{path}")

    assert connection.getresponse().status == status
    connection.close()


def test_requests_that_cannot_be_answered_do_not_fill_the_log(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is reported, and then one a minute; a client that has gone is not."""
    now = [1000.0]
    failures: list[str] = []
    site.failed = failures.append
    monkeypatch.setattr("drom.agent.observe.http_server.time.monotonic", lambda: now[0])
    server = http_server._Server(site, HERE, 0)
    for seconds, error in (
        (0.0, ValueError("1")),
        (0.1, ValueError("2")),
        (http_server.QUIET, ValueError("3")),
        (99.0, OSError()),
    ):
        now[0] += seconds
        try:
            raise error
        except (ValueError, OSError):
            server.handle_error()
    server.server_close()

    assert failures == [f"a request could not be answered: ValueError('{n}')" for n in (1, 3)]


def test_slow_clients_take_no_descriptors_from_a_scheduler() -> None:
    """However many send half a request, as many are kept as there is room for, and Prometheus is answered."""
    executions = SimpleNamespace(survivors=SimpleNamespace(jobs={}))
    empty = SimpleNamespace(jobs={}, nodes={}, state=SimpleNamespace(own=[]), executions=executions)
    collector = ClusterCollector(lambda: [empty], Counts(), threading.Lock())  # type: ignore[list-item]
    port, stop = metrics.serve(collector, HERE, 0, lambda _: None)
    before = open_descriptors()
    try:
        slow = [begun(port) for _ in range(4 * http_server.MOST_AT_ONCE)]
        body = urllib.request.urlopen(f"http://{HERE}:{port}/metrics", timeout=SECONDS).read()
        held = psutil.Process().num_fds() - before - len(slow)
        for client in slow:
            client.close()
    finally:
        stop()

    assert b"drom_scheduler_stuck 0.0" in body
    assert held <= 2 * http_server.MOST_AT_ONCE
