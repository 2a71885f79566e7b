# SPDX-License-Identifier: Apache-2.0
"""The page of an agent in headless Chromium, and the server behind it, with a real agent and real programs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import socket
import threading
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.observe.http_server import MOST_AT_ONCE

from tests.support.agents import SECONDS, SERVES_METRICS, Agent, Programs, launch_agent, start_agent, wait_until
from tests.support.browsers import Browser, browser

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.system
MACHINE = ("--emulate", "pack:2 core:4 pu:2")
NASTY = "<img src=x onerror=document.title='owned'>"


def port_of(agent: Agent) -> int:
    """Return the port that an agent serves on."""
    return int(agent.await_log(r"event=metrics .*port=(\d+)")[1])


def get(agent: Agent, target: str) -> tuple[int, bytes]:
    """Return status and body."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port_of(agent)}{target}", timeout=SECONDS) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests."""
    with browser(tmp_path_factory.mktemp("browser") / "profile") as started:
        yield started


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """An agent of eight emulated cores that serves its page."""
    with start_agent(tmp_path, *MACHINE, *SERVES_METRICS) as agent:
        yield agent


def cells(sign: str) -> str:
    """Return an expression for how many cells of the map have a sign."""
    return f"[...document.querySelectorAll('.cell')].filter((cell) => cell.textContent === {sign!r}).length"


def test_a_node_is_watched(agent: Agent, chromium: Browser, start: Programs) -> None:
    """Jobs come, are explained, share and go before one's eyes; the chart has them; nothing is said on the console."""
    chromium.open(f"http://127.0.0.1:{port_of(agent)}/")
    chromium.await_true("document.getElementById('nobody').hidden === false")
    a = start.start(*agent.run("--job", "alpha", "--", "sleep", "1000"))
    chromium.await_true(f"{cells('A')} === 8")
    start.start(*agent.run("--job", NASTY, "--", "sleep", "1000"))
    chromium.await_true(f"{cells('A')} === 4 && {cells('B')} === 4")
    assert "2 jobs, 2 tasks, 8 of 8 cores in use" in chromium.text()
    chromium.await_true("document.querySelectorAll('#chart .area').length === 2")
    chromium.await_true("document.querySelectorAll('#legend li').length === 2")
    middle = "document.getElementById('chart').getBoundingClientRect()"
    at = f"{{clientX: {middle}.right - 7, clientY: {middle}.top + 50, bubbles: true}}"
    chromium.run(f"document.querySelector('#chart svg').dispatchEvent(new PointerEvent('pointermove', {at}))")
    assert "alpha" in chromium.run("document.querySelector('.tip').textContent")

    chromium.click("#jobs tr[data-job=alpha] button")
    chromium.await_true("document.getElementById('sentences').textContent.includes('It has 8 CPUs')")
    chromium.run("[...document.querySelectorAll('.cell')].find((cell) => cell.textContent === 'B').click()")
    chromium.await_true(f"document.getElementById('whose').textContent === {json.dumps(NASTY)}")
    assert chromium.run("document.querySelectorAll('img').length") == 0
    chromium.click("#close")
    chromium.await_true("document.getElementById('why').hidden")

    a.kill()
    chromium.await_true(f"{cells('B')} === 8 && document.querySelectorAll('#jobs tr').length === 1")
    assert chromium.run("document.title") != "owned"
    assert chromium.said == []


@pytest.mark.parametrize(("width", "dark"), [(390, True), (390, False), (1100, True)])
def test_the_page_fits(agent: Agent, chromium: Browser, start: Programs, width: int, *, dark: bool) -> None:
    """On a phone and on a screen, light and dark, no line is wider than the window, whatever a job is called."""
    start.start(*agent.run("--job", "x" * 60, "--", "sleep", "1000"))
    chromium.open(f"http://127.0.0.1:{port_of(agent)}/", width, 800, dark=dark, phone=width < 500)
    chromium.await_true(f"{cells('A')} === 8 && document.querySelectorAll('#chart .area').length === 1")

    assert chromium.run("document.documentElement.scrollWidth") == width
    light = chromium.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] > 127")
    assert light is not dark


def test_a_large_machine_is_shown(tmp_path: Path, chromium: Browser, start: Programs) -> None:
    """1024 CPUs, thirty jobs: a cell for each core, more jobs than the chart tells apart."""
    with start_agent(tmp_path, "--emulate", "pack:8 core:64 pu:2", *SERVES_METRICS) as agent:
        for number in range(30):
            start.start(*agent.run("--job", f"j{number}", "--cpus", "32", "--", "sleep", "1000"))
        wait_until(lambda: len(agent.tasks()) == 30, agent.tasks)
        chromium.open(f"http://127.0.0.1:{port_of(agent)}/")
        chromium.await_true("document.querySelectorAll('.cell.job').length === 480")
        chromium.await_true("document.querySelectorAll('#jobs tr').length === 30")
        assert chromium.run("document.querySelectorAll('.cell').length") == 512
        assert chromium.run("document.documentElement.scrollWidth") == 1100


def test_the_agent_dies(tmp_path: Path, chromium: Browser) -> None:
    """What was there stays, and the page says that it is old."""
    agent = launch_agent(tmp_path / "run", *MACHINE, *SERVES_METRICS)
    try:
        chromium.open(f"http://127.0.0.1:{port_of(agent)}/")
        chromium.await_true(f"{cells('')} === 8")
        agent.kill()
        chromium.await_true("document.getElementById('trouble').textContent.startsWith('This is how it was at ')")
        assert chromium.run(f"{cells('')} === 8")
    finally:
        agent.discard()


def test_the_hour_has_what_was_before_this_agent(tmp_path: Path, start: Programs) -> None:
    """An agent that starts again knows from the events that are kept who had what."""
    with start_agent(tmp_path, *MACHINE) as agent:
        job = start.start(*agent.run("--job", "before", "--", "sleep", "1000"))
        agent.await_tasks(before="0-15")
        job.kill()
        agent.await_tasks()
    with start_agent(tmp_path, *MACHINE, *SERVES_METRICS) as agent:
        assert [job["name"] for job in json.loads(get(agent, "/hour.json")[1])["jobs"]] == ["before"]


def test_what_is_served(agent: Agent, start: Programs) -> None:
    """Page, metrics, and JSON; what is not there is 404 with a sentence; the page may load nothing from elsewhere."""
    start.start(*agent.run("--job", "a b", "--", "sleep", "1000"))
    agent.await_tasks(**{"a b": "0-15"})
    paths = ("/", "/page.js", "/page.css", "/state.json", "/hour.json", "/metrics")
    served: dict[str, Any] = {path: get(agent, path) for path in paths}

    assert {status for status, _ in served.values()} == {200}
    assert json.loads(served["/state.json"][1])["jobs"][0]["name"] == "a b"
    assert b'drom_job_cpus{job_name="a b",socket="0"} 8.0' in served["/metrics"][1]
    assert not any(b"//" in body for path, (_, body) in served.items() if path in {"/", "/page.css"})
    with urllib.request.urlopen(f"http://127.0.0.1:{port_of(agent)}/", timeout=SECONDS) as answer:
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'; ")
    assert json.loads(get(agent, "/explain.json?job=a%20b")[1])["sentences"][0]["text"].startswith("a b is a malleable")
    assert get(agent, "/explain.json?job=nobody") == (404, b'{"error":"there is no job nobody: see `drom ps`."}')
    head = urllib.request.Request(f"http://127.0.0.1:{port_of(agent)}/page.css", method="HEAD")
    with urllib.request.urlopen(head, timeout=SECONDS) as answer:
        assert (answer.status, answer.headers["Content-Length"]) == (200, str(len(served["/page.css"][1])))
        assert answer.read() == b""
    for path in ("/nothing", "/../agent/observe/site.py", "/static/page.js", "/explain.json?" + "&" * 2000):
        assert get(agent, path)[0] == 404, path


def test_who_asks_for_nothing_takes_little(agent: Agent, start: Programs) -> None:
    """Clients that connect and say nothing hold few descriptors and no turn of the agent, and in the end are let go."""
    with contextlib.ExitStack() as idle:
        for _ in range(3 * MOST_AT_ONCE):
            idle.enter_context(socket.create_connection(("127.0.0.1", port_of(agent))))
        start.start(*agent.run("--job", "a", "--", "sleep", "1000"))
        agent.await_tasks(a="0-15")
        with contextlib.suppress(OSError):
            get(agent, "/metrics")
    wait_until(lambda: b"drom_frozen" in get(agent, "/metrics")[1], lambda: agent.log)


def test_who_asks_all_the_time_does_not_stop_the_agent(agent: Agent, start: Programs) -> None:
    """While many ask for all there is, orders are obeyed and what is answered is whole."""
    start.start(*agent.run("--job", "a", "--", "sleep", "1000"))
    agent.await_tasks(a="0-15")
    over = threading.Event()

    def ask(path: str) -> None:
        while True:
            status, body = get(agent, path)
            assert (status, body[-1:]) in {(200, b"}"), (200, b"\n")}
            if over.is_set():
                return

    with concurrent.futures.ThreadPoolExecutor() as pool:
        paths = ("/metrics", "/state.json", "/hour.json", "/explain.json?job=a")
        asking = [pool.submit(ask, path) for path in paths * 2]
        try:
            for cpus in (2, 16, 4, 8):
                agent.order("resize", job="a", cpus=cpus)
                agent.await_tasks(a=f"0-{cpus - 1}")
        finally:
            over.set()
        for one in asking:
            one.result()
