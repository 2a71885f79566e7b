# SPDX-License-Identifier: Apache-2.0
"""The messages of dromlib: warnings, and notes for programs that log."""

from __future__ import annotations

import sys
import warnings

asked = True
"""Whether the program has called dromlib: one that has not gets no warnings, which it may treat as errors."""


def warn(sentence: str) -> None:
    """Warn of a problem that is not fatal for the program, at the first line outside dromlib."""
    if not asked:
        note(sentence)
        return
    level = 2
    frame = sys._getframe(1)  # noqa: SLF001 - what the standard library does for the same purpose
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("dromlib."):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, RuntimeWarning, stacklevel=level)


def note(sentence: str) -> None:
    """Send a message to the logger `dromlib`, if the program has imported `logging`."""
    logging = sys.modules.get("logging")
    if logging:
        logging.getLogger("dromlib").info(sentence)
