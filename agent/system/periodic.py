# SPDX-License-Identifier: Apache-2.0
"""Work that a loop does again and again, when it is due. Times are seconds of CLOCK_MONOTONIC."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Periodic(Protocol):
    """Work that is due from time to time. The loop calls both methods in every turn, so they cost little otherwise."""

    def next_due(self) -> float | None:
        """Return when `run` has something to do; None if nothing is planned."""

    def run(self, now: float) -> None:
        """Do what is due at `now`, if anything is."""


def never() -> None:
    """Return None: nothing is planned, and the turns that the loop takes for other reasons suffice."""


class Step(NamedTuple):
    """Periodic work that consists of functions."""

    run: Callable[[float], None]
    next_due: Callable[[], float | None] = never
