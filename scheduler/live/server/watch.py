# SPDX-License-Identifier: Apache-2.0
"""A watch of keys in etcd, read by a thread: it begins again at another member where it was interrupted."""

from __future__ import annotations

import contextlib
import threading
from queue import Empty, Full, Queue
from typing import TYPE_CHECKING

from drom.scheduler.live.server.etcd import CompactedError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import urllib3
    from drom.scheduler.live.server.etcd import Etcd, Record

    Changes = list[tuple[Record, bool]]

UNREAD = 64
"""Messages that may wait; while so many do, no more are read."""
PAUSE = 0.1
"""Seconds after a failure."""
LAST = 1.0
"""Most seconds to wait for the end of the thread."""


class Watch:
    """The changes below a prefix from a revision on; `wake` is called when there are some.

    A member that sends nothing for `silence` seconds is left for another one.
    """

    def __init__(self, etcd: Etcd, prefix: str, revision: int, silence: float, wake: Callable[[], object]) -> None:
        self._etcd, self._prefix, self._revision = etcd, prefix, revision
        self._silence, self._wake = silence, wake
        self._found: Queue[Changes | CompactedError] = Queue(UNREAD)
        self._is_over = threading.Event()
        self._answer: urllib3.BaseHTTPResponse | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self) -> Iterator[Changes]:
        """Yield the changes that were read, in order. Raises CompactedError if some cannot be had any more."""
        with contextlib.suppress(Empty):
            while True:
                found = self._found.get_nowait()
                if isinstance(found, CompactedError):
                    raise found
                yield found

    def close(self) -> None:
        """End the thread; one that still waits for a member ends when that answers, or is given up."""
        self._is_over.set()
        if self._answer:
            with contextlib.suppress(OSError, RuntimeError, ValueError):  # it has ended already
                self._answer.shutdown()
        self._thread.join(LAST)

    def _opened(self, answer: urllib3.BaseHTTPResponse) -> None:
        self._answer = answer
        if self._is_over.is_set():
            answer.shutdown()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                for changes in self._etcd.watch(self._prefix, self._revision, self._silence, self._opened):
                    if changes:
                        self._pass_on(changes)
                        self._revision = changes[-1][0].modified + 1
            except CompactedError as error:  # noqa: PERF203 - the watch begins again
                self._pass_on(error)
                return
            except StoreError:
                self._is_over.wait(PAUSE)

    def _pass_on(self, found: Changes | CompactedError) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(Full):
                self._found.put(found, timeout=1.0)
                self._wake()
                return
