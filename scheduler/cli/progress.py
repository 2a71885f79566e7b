# SPDX-License-Identifier: Apache-2.0
"""The progress, on a terminal, of work that takes more than two seconds: a line on stderr, cleared at the end.

typer's progress bar shows at once, leaves its line, and prints its label where there is no terminal.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, Any, TextIO

from drom.agent.system.unix_signals import ended_by_sigterm
from drom.agent.text import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

PATIENCE_S = 2.0
_EVERY_S = 0.2
_WIDTH = 30
_CLEAR = "\r\033[K"


class Bar:
    """A bar with the expected time to the end; it is not drawn if the stream is not a terminal."""

    def __init__(self, stream: TextIO, words: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._words, self._clock = stream, words, clock
        self._begun = clock()
        self._next = self._begun + PATIENCE_S if stream.isatty() else float("inf")
        self._shown = False

    def show(self, done: float) -> None:
        """Draw the bar if an update is due; `done` is a fraction."""
        now = self._clock()
        if now < self._next or done <= 0:
            return
        self._next, self._shown = now + _EVERY_S, True
        left = (now - self._begun) * (1 - done) / done
        full = "#" * round(_WIDTH * done)
        self._stream.write(f"{_CLEAR}{self._words} [{full:.<{_WIDTH}}] {done:4.0%}, about {duration(left)} left")
        self._stream.flush()

    def clear(self) -> None:
        """Remove the bar."""
        if self._shown:
            self._stream.write(_CLEAR)
            self._stream.flush()


class NotebookLine(StringIO):
    """A line of output in a notebook, which each text that is written to it replaces."""

    _display: Any = None

    def isatty(self) -> bool:
        """Return True: the line can be changed, as on a terminal."""
        return True

    def write(self, text: str) -> int:
        """Show a text, without what clears a line of a terminal."""
        line = {"text/plain": text.removeprefix(_CLEAR)}
        if self._display is None:
            show = importlib.import_module("IPython.display").display
            self._display = show(line, raw=True, display_id=True)
        else:
            self._display.update(line, raw=True)
        return len(text)


def notebook() -> Any:  # noqa: ANN401 - IPython is untyped
    """Return the shell of the notebook in which this process runs cells; None elsewhere."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell if hasattr(shell, "kernel") else None


def progress_stream() -> TextIO:
    """Return the stream for a bar: a line of output in a notebook, else stderr."""
    return NotebookLine() if notebook() else sys.stderr


@contextmanager
def interruptible(words: str, left: str) -> Iterator[Bar]:
    """Show a bar on stderr during a block. On Ctrl-C or SIGTERM print `left` (what was written); exit with 130."""
    bar = Bar(sys.stderr, words)
    try:
        with ended_by_sigterm():
            yield bar
    except KeyboardInterrupt:
        bar.clear()
        sys.stderr.write(f"drom: interrupted: {left}.\n")
        sys.exit(130)
    bar.clear()


def all_or_nothing(words: str) -> AbstractContextManager[Bar]:
    """Show a bar on stderr during a block. On Ctrl-C or SIGTERM print that nothing is written, and exit with 130."""
    return interruptible(words, "nothing is written")


@contextmanager
def saying(words: str) -> Iterator[None]:
    """Show `words` during a block, if stderr is a terminal and the block takes more than two seconds."""
    if not sys.stderr.isatty():
        yield
        return
    said = False

    def say() -> None:
        nonlocal said
        said = True
        sys.stderr.write(f"{_CLEAR}{words} ...")
        sys.stderr.flush()

    timer = threading.Timer(PATIENCE_S, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if said:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
