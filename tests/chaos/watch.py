# SPDX-License-Identifier: Apache-2.0
"""The checker as a process of its own: `python -m tests.chaos.watch DIR` until its stdin ends, then a JSON answer."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import history
from tests.support import checker

LOOK_AT_PROC = 25
"""Readings of the registry for each look at all of /proc."""


@dataclass
class StormWatcher(checker.Watcher):
    """Replays the epochs as well. How much of its grant a task uses is judged when the storm is over."""

    _before: checker.Reading | None = None

    def look(self) -> None:
        """Look once."""
        self._look()

    def _look(self) -> None:
        reading = checker.read(self.runtime_dir)
        if reading is None:
            return
        self.readings += 1
        found = checker.registry_violations(reading)
        if self._before:
            found += history.violations(self._before, reading)
        for text in found:
            self._report(text)
        self._before = reading
        if self.proc and self.readings % LOOK_AT_PROC == 0:
            self._look_at_processes(reading)

    def _report(self, text: str) -> None:
        if "its threads use" not in text:
            super()._report(text)


def main() -> None:
    """Watch until stdin ends; say what was seen."""
    watcher = StormWatcher(Path(sys.argv[1]), proc=sys.argv[2] == "proc")
    watcher.look()
    try:
        with watcher:
            sys.stdin.read()
    except AssertionError:
        pass  # it is all in the answer
    print(json.dumps({"readings": watcher.readings, "violations": watcher.violations}))


if __name__ == "__main__":
    main()
