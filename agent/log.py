# SPDX-License-Identifier: Apache-2.0
"""The agent's log: one logfmt line per event on stderr."""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import datetime, timezone
from typing import TextIO


class Log:
    """Write events as ``time=... event=... key=value`` lines; values with blanks are quoted."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet

    def __call__(self, event: str, **fields: object) -> None:
        """Write one event."""
        if self._quiet:
            return
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        pairs = {"time": now, "event": event, **fields}
        line = " ".join(f"{key}={_quoted(value)}" for key, value in pairs.items())
        with suppress(OSError):  # nobody reads any more, or the disk is full: the work goes on
            print(line, file=self._stream, flush=True)


def _quoted(value: object) -> str:
    text = str(value)
    if text and not any(c in ' "=' or not c.isprintable() for c in text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in escaped) + '"'
