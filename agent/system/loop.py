# SPDX-License-Identifier: Apache-2.0
"""What the loop of a process offers to its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Loop(Protocol):
    """Who tells that a descriptor is readable."""

    def watch(self, fd: int, handler: Callable[[], None]) -> None:
        """Call `handler` whenever `fd` is readable."""

    def unwatch(self, fd: int) -> None:
        """Stop looking at `fd`."""
