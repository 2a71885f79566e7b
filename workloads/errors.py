# SPDX-License-Identifier: Apache-2.0
"""The error of this package, separate from modules that need numpy, so that a command line can import it cheaply."""

from __future__ import annotations

from dromlib.errors import DromError


class WorkloadError(DromError, ValueError):
    """Raised when a log, a rule, an expression or a model's parameter cannot be used; the text is one sentence."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 job``, ``11,188 jobs``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short(text: str, most: int = 40) -> str:
    """Return `text` quoted for use in a sentence, and cut if it is long."""
    return repr(text if len(text) <= most else text[: most - 3] + "...")
