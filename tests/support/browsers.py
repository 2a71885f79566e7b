"""Headless Chromium, driven over its DevTools protocol through a pair of pipes: no port, no library."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.agents import SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES = ("chromium-headless-shell", "chromium", "google-chrome")


class Browser:
    """One page of a browser."""

    def __init__(self, to_it: int, from_it: int) -> None:
        self._to, self._from = to_it, from_it
        self._numbers = itertools.count(1)
        self._left = b""
        self.said: list[str] = []
        """Errors and warnings on the page's console."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    _session: str | None = None

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._left:
            assert select.select([self._from], [], [], deadline - time.monotonic())[0], "the browser does not answer"
            data = os.read(self._from, 1 << 20)
            assert data, "the browser has gone"
            self._left += data
        message, _, self._left = self._left.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        if found.get("method") in {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}:
            self.said.append(json.dumps(found["params"])[:2000])
        return found

    def open(self, url: str, width: int = 1100, height: int = 900, *, dark: bool = False, phone: bool = False) -> None:
        """Go to a page in a window of that size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url="about:blank")  # what the last page still says is not of this one
        self.run("1")
        self.said.clear()
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self._evaluate(script)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def await_true(self, script: str) -> None:
        """Wait until an expression is true in the page, which may not have all that it names before."""
        wait_until(
            lambda: self._evaluate(script)["result"].get("value") is True,
            lambda: f"{script} in:\n{self.text()}\n{self.said}",
        )

    def _evaluate(self, script: str) -> dict[str, Any]:
        return self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)

    def text(self) -> str:
        """Return what there is to read."""
        return str(self.run("document.body ? document.body.innerText : ''"))

    def click(self, selector: str) -> None:
        """Click on the first element."""
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        """Save a picture."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        file.write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Run a browser for a block, with what it keeps in a folder; skip the test where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("needs chromium (Debian's chromium-headless-shell)")
    reads, to_it = os.pipe()
    from_it, writes = os.pipe()
    theirs = [fcntl.fcntl(pipe, fcntl.F_DUPFD, 10) for pipe in (reads, writes)]
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--disable-dev-shm-usage"]
    # The protocol is on descriptors 3 and 4.
    shell = f'exec "$0" "$@" 3<&{theirs[0]} 4>&{theirs[1]} {theirs[0]}<&- {theirs[1]}>&-'
    command = ["bash", "-c", shell, program, *options, f"--user-data-dir={folder}", "--hide-scrollbars"]
    with (folder.parent / "browser.log").open("wb") as log:
        process = subprocess.Popen(command, pass_fds=theirs, stdout=log, stderr=log, start_new_session=True)
    for pipe in (reads, writes, *theirs):
        os.close(pipe)
    try:
        yield Browser(to_it, from_it)
    finally:
        os.close(to_it)
        os.close(from_it)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it ends when its pipes do
            process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
