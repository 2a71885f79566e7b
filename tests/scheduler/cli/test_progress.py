# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import signal
import sys
import threading

import pytest
from drom.scheduler.cli import progress
from drom.scheduler.cli.progress import Bar, interruptible, saying


class Terminal(io.StringIO):
    """A stream that is one, or says so; `written` is set at each write."""

    def __init__(self, *, terminal: bool = True) -> None:
        super().__init__()
        self.terminal = terminal
        self.written = threading.Event()

    def isatty(self) -> bool:
        """Return whether it says so."""
        return self.terminal

    def write(self, text: str) -> int:
        """Keep a text."""
        self.written.set()
        return super().write(text)


def test_a_bar() -> None:
    """After two seconds, five times a second at the most, with the time that is left at this pace."""
    stream, times = Terminal(), iter([0.0, 1.9, 2.5, 2.6, 100.0, 101.0])
    bar = Bar(stream, "simulating", lambda: next(times))
    for done in (0.1, 0.5, 0.51, 0.25, 0.0):
        bar.show(done)
    bar.clear()

    assert stream.getvalue().split("\r\033[K") == [
        "",
        "simulating [###############...............]  50%, about 2.5 s left",
        "simulating [########......................]  25%, about 5 min left",
        "",
    ]


def test_no_terminal_no_bar() -> None:
    """Nothing goes into files and pipes."""
    stream, times = Terminal(terminal=False), iter([0.0, 50.0])
    bar = Bar(stream, "simulating", lambda: next(times))
    bar.show(0.5)
    bar.clear()

    assert stream.getvalue() == ""


def test_what_is_done_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where it takes long, and on a terminal; the line does not stay."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    with saying("reading"):
        assert stream.written.wait(60)
    monkeypatch.setattr(progress, "PATIENCE_S", 1000.0)
    with saying("writing"):
        pass
    file = Terminal(terminal=False)
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    with saying("drawing"):
        pass

    assert stream.getvalue() == "\r\033[Kreading ...\r\033[K"
    assert file.getvalue() == ""


def test_sigterm_is_an_interruption(capsys: pytest.CaptureFixture[str]) -> None:
    """Work that somebody ends says what is left of it, as on Ctrl-C; afterwards the signal means what it did."""
    before = signal.getsignal(signal.SIGTERM)

    with pytest.raises(SystemExit) as end, interruptible("working", "half of it is written"):
        signal.raise_signal(signal.SIGTERM)

    assert end.value.code == 130
    assert capsys.readouterr().err == "drom: interrupted: half of it is written.\n"
    assert signal.getsignal(signal.SIGTERM) == before
