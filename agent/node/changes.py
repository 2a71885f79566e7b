# SPDX-License-Identifier: Apache-2.0
"""Which jobs or tasks have changed, for parts that keep something about them; and those that satisfy a condition.

A search over all jobs and tasks of a node at each event would cost more than the event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

K = TypeVar("K")


class Changes(Generic[K]):
    """Records, for each of its readers, the keys that have changed."""

    def __init__(self) -> None:
        self._readers: list[set[K]] = []

    def reader(self) -> set[K]:
        """Return a set to which every key that changes is added; the reader removes what it has dealt with."""
        self._readers.append(set())
        return self._readers[-1]

    def mark(self, key: K) -> None:
        """Record that what `key` stands for has changed."""
        for reader in self._readers:
            reader.add(key)


class Index(Generic[K]):
    """The keys of `changes` for which `holds` is true. A key for which it becomes true must be marked as changed.

    `holds` is a bound method, so that a deep copy of its object has an index of its own.
    """

    def __init__(self, changes: Changes[K], holds: Callable[[K], bool]) -> None:
        self._changed = changes.reader()
        self._holds = holds
        self._members: set[K] = set()

    def members(self) -> set[K]:
        """Return the keys for which the condition is true now."""
        self._members = set(filter(self._holds, self._members | self._changed))
        self._changed.clear()
        return self._members
