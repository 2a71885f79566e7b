# SPDX-License-Identifier: Apache-2.0
"""A lease in etcd, kept alive by a thread: etcd deletes the keys under it after its holder has died or was paused."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from drom.scheduler.live.server.etcd import StoreError, understood

if TYPE_CHECKING:
    from drom.scheduler.live.server.etcd import Etcd

SHORTEST = 2
"""Seconds of the shortest lease that etcd grants."""
PAUSE = 0.05
"""Seconds until a renewal that has failed is tried again."""


def now() -> float:
    """Return the time in seconds, which goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """A lease of `seconds`. Raises StoreError if it is not granted."""

    def __init__(self, etcd: Etcd, seconds: int) -> None:
        self.is_over = False
        """Whether it has ended in etcd, for good."""
        self.why = ""
        """Why the last renewal has failed; empty if it has not."""
        self._etcd, self._seconds = etcd, seconds
        began = now()
        answer = etcd.call("/v3/lease/grant", {"TTL": seconds}, seconds)
        with understood():
            self.number = str(answer["ID"])
            self._until = began + int(answer["TTL"])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    @property
    def holds(self) -> bool:
        """Whether it cannot have ended yet: it was renewed in time, counted from when that was asked for."""
        return not self.is_over and now() < self._until

    def _keep(self) -> None:
        pause = self._seconds / 3
        while not (self._stop.wait(pause) or self.is_over):
            asked, pause = now(), PAUSE
            try:
                answer = self._etcd.call("/v3/lease/keepalive", {"ID": self.number}, self._seconds / 3)
                with understood():
                    left = int(answer["result"].get("TTL", 0))
            except StoreError as error:
                self.why = str(error)
                continue
            pause, self.why = self._seconds / 3, ""
            self._until = asked + left
            self.is_over = left <= 0

    def close(self) -> None:
        """End the lease in etcd, if etcd answers, so that another scheduler need not wait for its end."""
        self._stop.set()
        self._thread.join()
        self.is_over = True
        try:
            self._etcd.call("/v3/lease/revoke", {"ID": self.number}, 1.0)
        except StoreError:
            return
