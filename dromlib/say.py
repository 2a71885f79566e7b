# SPDX-License-Identifier: Apache-2.0
"""The sentences of dromlib for people: warnings, and notes for those who asked for a log."""

from __future__ import annotations

import sys
import warnings

asked = True
"""Whether the program has called dromlib: one that has not hears no warnings, which may be errors to it."""


def warn(sentence: str) -> None:
    """Warn about something the program can live with, at the first line outside dromlib."""
    if not asked:
        note(sentence)
        return
    level = 2
    frame = sys._getframe(1)  # noqa: SLF001 - what the standard library does for the same purpose
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("dromlib."):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, RuntimeWarning, stacklevel=level)


def note(sentence: str) -> None:
    """Tell the logger `dromlib`, in a program that logs."""
    logging = sys.modules.get("logging")
    if logging:
        logging.getLogger("dromlib").info(sentence)
