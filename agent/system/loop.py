# SPDX-License-Identifier: Apache-2.0
"""The interface of a process's loop to its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Loop(Protocol):
    """A loop that calls handlers of readable descriptors."""

    def watch(self, fd: int, handler: Callable[[], None]) -> None:
        """Call `handler` whenever `fd` is readable."""

    def unwatch(self, fd: int) -> None:
        """Stop watching `fd`."""
