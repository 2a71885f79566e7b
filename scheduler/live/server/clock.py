# SPDX-License-Identifier: Apache-2.0
"""The scheduler's time: unix seconds that never decrease, whatever happens to the machine's clock."""

from __future__ import annotations

import time


class Clock:
    """Counts on from the wall clock at its start, or from `latest` if that is later."""

    def __init__(self, latest: float = 0.0) -> None:
        now = time.time()
        self.ahead = max(0.0, latest - now)
        """The seconds by which it was ahead of the wall clock at its start."""
        self._offset = now + self.ahead - time.monotonic()

    def __call__(self) -> float:
        """Return the time."""
        return time.monotonic() + self._offset
