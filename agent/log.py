# SPDX-License-Identifier: Apache-2.0
"""The agent's log: one line per event on stderr, as logfmt or as JSON, and in the history that `drom events` reads."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from agent.words import escaped, iso

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.history import History

Record = dict[str, object]
"""An event: "time" (ISO-8601, UTC) and "event" first, then its fields."""


def logfmt(record: Record) -> str:
    """Return a record as ``key=value`` pairs; values with blanks are quoted."""
    return " ".join(f"{key}={quoted(value)}" for key, value in record.items())


FORMATS: dict[str, Callable[[Record], str]] = {"logfmt": logfmt, "json": json.dumps}


class Log:
    """Write events in one of `FORMATS`, and to a history if there is one to keep them."""

    def __init__(self, stream: TextIO | None = None, *, form: str = "logfmt", quiet: bool = False) -> None:
        self.history: History | None = None
        self._stream = sys.stderr if stream is None else stream
        self._format = FORMATS[form]
        self._quiet = quiet

    def __call__(self, event: str, **fields: object) -> None:
        """Write one event."""
        record = _record(event, fields)
        self._write(record)
        if self.history and (trouble := self.history.append(json.dumps(record))):
            self._write(_record("warning", {"events": trouble}))

    def keep(self, history: History | None) -> None:
        """Open a history, which gets all events from now on. Raises `HistoryError`."""
        if history:
            history.open()
        self.history = history

    def close(self) -> None:
        """Close the history."""
        if self.history:
            self.history.close()
        self.history = None

    def _write(self, record: Record) -> None:
        if self._quiet:
            return
        with suppress(OSError):  # nobody reads any more, or the disk is full: the work goes on
            print(self._format(record), file=self._stream, flush=True)


def _record(event: str, fields: Record) -> Record:
    plain = {key: value if isinstance(value, (int, float)) else str(value) for key, value in fields.items()}
    return {"time": iso(time.time(), "milliseconds"), "event": event, **plain}


def quoted(value: object) -> str:
    """Return a value as logfmt has it: nothing in it looks like another field, breaks the line or moves a cursor."""
    text = str(value)
    if text and text.isprintable() and not any(c in text for c in ' "='):
        return text
    return '"' + escaped(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'
