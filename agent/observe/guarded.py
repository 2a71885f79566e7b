# SPDX-License-Identifier: Apache-2.0
"""Runs the parts of a loop: the failure of a part is logged with its source line, counted and survived."""

from __future__ import annotations

import os
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import dromlib
from dromlib.errors import DromError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from drom.agent.observe.log import Log

T = TypeVar("T")

MOST, LASTING = 10, 30.0
"""A loop ends once a part has failed at least `MOST` times in a row, for at least `LASTING` seconds."""
EXIT_STATUS = 70
"""Exit status of a process whose loop has ended because of failures (EX_SOFTWARE of sysexits.h)."""
LINE_EVERY = 10.0
"""Minimum seconds between two log lines about the same part."""
SHORTEST, LONGEST = 0.001, 0.25
"""Seconds to wait after the first failure of a row, and the maximum: each failure of the row doubles the wait."""
_FORGOTTEN = 4 * LASTING
"""Seconds after which a failure of a part that has not run since is no longer part of a row."""
_SOURCE = Path(dromlib.__file__).parents[1]
_HERE = Path(__file__).name
_CALLS = 6
"""Maximum number of calls that a log line names."""
_PACKAGES = ("agent", "drom", "dromlib", "scheduler")


class LoopError(DromError):
    """Raised when a part has failed too often in a row; the message is a sentence."""


@dataclass(slots=True)
class _Row:
    """Failures of a part without a success in between: number, time of the first and the last (CLOCK_MONOTONIC)."""

    since: float
    last: float
    failures: int = 0


class Guard:
    """Runs the named `parts` of a loop and counts their failures in `faults`; `notice` is called with each error."""

    def __init__(self, log: Log, parts: Iterable[str], notice: Callable[[Exception], None] = lambda _: None) -> None:
        self.faults: Counter[str] = Counter(dict.fromkeys(parts, 0))
        self._log = log
        self._notice = notice
        self._rows: dict[tuple[str, Hashable], _Row] = {}
        self._quiet: dict[str, tuple[float, int]] = {}
        """By part: the time until which nothing is logged about it, and the number of failures not logged."""
        self._longest = 0
        """Failures of the longest row that has grown since the last `settle`."""

    def run(self, part: str, step: Callable[[], T], key: Hashable = None) -> T | None:
        """Return what `step` returns, None if it fails. Failures of a part are counted in a row per `key`."""
        try:
            value = step()
        except Exception as error:  # noqa: BLE001 - what survives is the point
            self.failed(part, error)
            now = time.monotonic()
            row = self._rows.setdefault((part, key), _Row(now, now))
            row.failures, row.last = row.failures + 1, now
            self._longest = max(self._longest, row.failures)
            return None
        if self._rows:
            self._rows.pop((part, key), None)
        return value

    def failed(self, part: str, error: Exception, **about: object) -> None:
        """Count and log a failure. If only this method is called, it was that of a single request, and ends no loop."""
        self.faults[part] += 1
        self._notice(error)
        if os.environ.get("DROM_DEBUG"):
            traceback.print_exception(type(error), error, error.__traceback__)
        now, (until, unsaid) = time.monotonic(), self._quiet.get(part, (0.0, 0))
        if now < until:
            self._quiet[part] = until, unsaid + 1
            return
        self._quiet[part] = now + LINE_EVERY, 0
        more = about | ({"unsaid": unsaid} if unsaid else {})
        self._log("fault", part=part, error=f"{type(error).__name__}: {error}"[:500], at=place(error), **more)

    def settle(self) -> None:
        """Wait for a moment if parts have failed, so that a failing loop does not use a whole CPU.

        Raises `LoopError` for a part that fails for too long.
        """
        if not self._rows:
            return
        now = time.monotonic()
        self._rows = {key: row for key, row in self._rows.items() if now - row.last < _FORGOTTEN}
        for (part, _), row in self._rows.items():
            if row.failures >= MOST and row.last - row.since >= LASTING:
                seconds = round(row.last - row.since)
                msg = f"{part} has failed {row.failures} times in {seconds} seconds: see event=fault in the log."
                raise LoopError(msg)
        if self._longest:
            time.sleep(min(LONGEST, SHORTEST * 2 ** min(self._longest - 1, 16)))
            self._longest = 0


def place(error: BaseException) -> str:
    """Return the calls in drom's code that led to an exception, outermost first, as ``file:line``."""
    calls = [(Path(frame.f_code.co_filename), line) for frame, line in traceback.walk_tb(error.__traceback__)]
    inside = [(file.relative_to(_SOURCE), line) for file, line in calls if file.is_relative_to(_SOURCE)]
    ours = [(file, line) for file, line in inside if file.parts[0] in _PACKAGES and file.name != _HERE] or calls[-1:]
    return " ".join(f"{file}:{line}" for file, line in ours[-_CALLS:])
