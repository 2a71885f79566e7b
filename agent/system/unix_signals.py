# SPDX-License-Identifier: Apache-2.0
"""Handle Unix signals: in a daemon, through a pipe that its loop reads, and in a command."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "TERM")
"""Prefix of a command line that makes it get SIGTERM when the thread that starts it has ended, also if killed."""


class SignalPipe:
    """Receives signals until `close`; `fd` is readable if there is one for `dispatch`."""

    def __init__(self, meanings: Mapping[signal.Signals, Callable[[], None]]) -> None:
        self._meanings = meanings
        self._outlives_terminal = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN or not _has_terminal()
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = signal.set_wakeup_fd(self._write)
        for number in meanings:
            signal.signal(number, lambda *_: None)

    def dispatch(self) -> None:
        """Call the handler of each received signal; SIGHUP counts as SIGTERM if the agent's terminal is gone."""
        for number in sorted(set(os.read(self.fd, 4096))):
            gone = number == signal.SIGHUP and not self._outlives_terminal and not _has_terminal()
            meaning = self._meanings.get(signal.SIGTERM if gone else signal.Signals(number))
            if meaning:
                meaning()

    def close(self) -> None:
        """Stop receiving signals."""
        signal.set_wakeup_fd(self._before)
        os.close(self.fd)
        os.close(self._write)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Return a context manager in which SIGTERM raises KeyboardInterrupt, as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _has_terminal() -> bool:
    try:
        os.close(os.open(os.ctermid(), os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
