# SPDX-License-Identifier: Apache-2.0
"""Programs on a terminal of their own, whose screen is read as a person sees it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from typing import TYPE_CHECKING

import pyte

from tests.support.agents import SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Terminal:
    """A terminal of 24 lines, and the process on it."""

    def __init__(self, controller: int, process: subprocess.Popen[bytes], columns: int) -> None:
        self._controller = controller
        self._open = True
        self.process = process
        self._screen = pyte.Screen(columns, 24)
        self._stream = pyte.ByteStream(self._screen)

    @property
    def lines(self) -> list[str]:
        """The text of the screen now."""
        with contextlib.suppress(OSError):  # the process has gone
            while select.select([self._controller], [], [], 0.01)[0]:
                self._stream.feed(os.read(self._controller, 65_536))
        return [line.rstrip() for line in self._screen.display]

    @property
    def colours(self) -> set[str]:
        """The colours behind the letters on the screen."""
        return {self._screen.buffer[y][x].bg for y in range(24) for x in range(self._screen.columns)}

    def await_screen(self, what: Callable[[list[str]], bool]) -> list[str]:
        """Wait until the screen is so, and return it."""
        seen: list[str] = []

        def there() -> bool:
            seen[:] = self.lines
            return what(seen)

        wait_until(there, lambda: "\n".join(seen))
        return seen

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._controller, keys.encode())

    @property
    def modes(self) -> list[object]:
        """The modes of the terminal, as those of termios."""
        return termios.tcgetattr(self._controller)

    def hang_up(self) -> None:
        """Close the terminal, as its window."""
        if self._open:
            self._open = False
            os.close(self._controller)

    def resize(self, columns: int, lines: int) -> None:
        """Make the window larger or smaller."""
        self._screen.resize(lines, columns)
        fcntl.ioctl(self._controller, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


def has(*patterns: str) -> Callable[[list[str]], bool]:
    """Return what says whether lines have all of these."""
    return lambda lines: all(re.search(pattern, "\n".join(lines), re.MULTILINE) for pattern in patterns)


@contextlib.contextmanager
def terminal(command: Sequence[str], env: dict[str, str], columns: int = 80) -> Iterator[Terminal]:
    """Start a command on a terminal of the kind that pyte is; it is gone after the block."""
    controller, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")} | {"TERM": "linux"}
    process = subprocess.Popen(
        command,
        stdin=side,
        stdout=side,
        stderr=side,
        env=kept,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(side, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - it runs nothing but this
    )
    os.close(side)
    there = Terminal(controller, process, columns)
    try:
        yield there
    finally:
        process.kill()
        process.wait(SECONDS)
        there.hang_up()
