# SPDX-License-Identifier: Apache-2.0
"""Waits for the agent in an asyncio loop: for its signals, and for registration with the next agent."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING

from dromlib.subscription import Subscription

if TYPE_CHECKING:
    from collections.abc import Callable

    from dromlib.grant import Grant

FIRST_LOOK = 0.002
LAST_LOOK = 1.0
"""Seconds without a signal after which the slot is read again: short while the agent may not have received the
subscription yet, then twice as long each time."""


class Listener:
    """Receives the signals of one slot; `place` is the agent's runtime directory and the slot's index."""

    def __init__(self, place: tuple[str, int]) -> None:
        self.place = place
        self._subscription: Subscription | None = None
        self._look = FIRST_LOOK
        self._ready: asyncio.Future[None] | None = None

    async def hint(self) -> None:
        """Return when it is time to read the slot: after a signal, `close`, or long enough without one.

        Raises RuntimeError if another task waits already.
        """
        if self._ready and not self._ready.get_loop().is_closed():
            raise RuntimeError("Another task waits in this session: attach one session for each.")
        if self._drain():
            return
        loop = asyncio.get_running_loop()
        self._ready = ready = loop.create_future()
        timer = loop.call_later(self._look, self._wake)
        self._look = min(2 * self._look, LAST_LOOK)
        if self._subscription:
            loop.add_reader(self._subscription, self._wake)
        try:
            await ready
        finally:
            if self._ready is ready:  # else its loop was closed, and a task in another one waits now
                self._ready = None
            timer.cancel()
            if self._subscription and not loop.is_closed():
                loop.remove_reader(self._subscription)  # the signals are read later: the program should continue first

    def _wake(self) -> None:
        if self._ready and not self._ready.done():
            self._ready.set_result(None)

    def _drain(self) -> bool:
        """Read the received signals; return whether there were any. Without an agent connect again the next time."""
        found = False
        try:
            self._subscription = self._subscription or Subscription(*self.place)
            while self._subscription.receive() is not None:
                found = True
        except (OSError, ValueError):  # no agent listens; or its path, as this process knows it, is too long
            self._unsubscribe()
        return found

    def close(self) -> None:
        """Unsubscribe; a task in `hint` continues, unless its loop has been closed before."""
        loop = self._ready.get_loop() if self._ready else None
        if loop and not loop.is_closed():
            if self._subscription:
                loop.remove_reader(self._subscription)
            self._wake()
        self._unsubscribe()

    def _unsubscribe(self) -> None:
        if self._subscription:
            self._subscription.close()
            self._subscription = None


class Registration:
    """A registration with the next agent: `take`, called in a thread that delays the end of no loop or program."""

    def __init__(self, take: Callable[[], Grant | None]) -> None:
        self._taken: Future[Grant | None] = Future()
        Thread(target=self._run, args=(take,), name="drom-register", daemon=True).start()

    def _run(self, take: Callable[[], Grant | None]) -> None:
        try:
            self._taken.set_result(take())
        except BaseException as error:  # noqa: BLE001 - `grant` raises it
            self._taken.set_exception(error)

    async def done(self) -> None:
        """Wait until `take` has returned; the cancellation of a waiting task cancels nothing else."""
        loop = asyncio.get_running_loop()
        answered = loop.create_future()

        def wake() -> None:
            if not answered.done():
                answered.set_result(None)

        def tell(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: a task in another loop waits
                loop.call_soon_threadsafe(wake)

        self._taken.add_done_callback(tell)
        await answered

    def grant(self) -> Grant | None:
        """Return the result of `take`; blocks until it has returned, and raises its exception."""
        return self._taken.result()
