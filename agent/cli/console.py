# SPDX-License-Identifier: Apache-2.0
"""The output of a demonstration: a terminal, or nothing."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


class Console:
    """Writes lines to stdout, bold and coloured only on a terminal; nothing at all if the answer is JSON."""

    def __init__(self, *, silent: bool) -> None:
        terminal = sys.stdout.isatty()
        self.colour = terminal and not os.environ.get("NO_COLOR")
        self.width = max(60, min(shutil.get_terminal_size((80, 24)).columns, 120)) if terminal else 80
        self._silent = silent

    def write(self, text: str) -> None:
        """Write text unchanged."""
        if not self._silent:
            sys.stdout.write(text)
            sys.stdout.flush()

    def ink(self, text: str, code: str) -> str:
        """Return text in an ANSI style if the output shows it."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text

    def heading(self, text: str) -> None:
        """Write a heading after an empty line."""
        self.write(f"\n{self.ink(text, '1')}\n")
