# SPDX-License-Identifier: Apache-2.0
"""The order of a queue in which users have equal shares, by their usage and their requests. Pure.

Usage counts for half after each half-life, as in Slurm's multifactor plugin (PriorityDecayHalfLife). All users have
equal shares, so that ordering by 2^(-usage/share) is ordering by usage.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from drom.scheduler.interface import Floats, Ints


class Usage:
    """The core-seconds that users have used, by uid; they count for half after each `half_life` seconds."""

    def __init__(self, half_life: float, at: float = 0.0, used: Mapping[int, float] | None = None) -> None:
        self._half_life = half_life
        self._at = at
        self._used = dict(used or {})

    def advance(self, now: float, running: Iterable[tuple[int, int]]) -> None:
        """Record the jobs that ran since the last call; `running` has the uid and the cores of each."""
        seconds = max(0.0, now - self._at) if self._at else 0.0
        left = 2.0 ** (-seconds / self._half_life)
        gain = self._half_life / math.log(2) * (1 - left)  # the integral of the decaying usage
        self._used = {uid: used * left for uid, used in self._used.items() if used * left >= 1}
        for uid, cores in running:
            self._used[uid] = self._used.get(uid, 0.0) + cores * gain
        self._at = max(self._at, now)

    def of(self, uid: int) -> float:
        """Return the core-seconds that count for a user."""
        return self._used.get(uid, 0.0)

    @property
    def total(self) -> float:
        """The core-seconds that count for all users."""
        return sum(self._used.values())

    def to_json(self) -> dict[str, object]:
        """Return the usage as JSON values, which `usage_of` reads."""
        return {"at": self._at, "used": {str(uid): used for uid, used in self._used.items()}}


def usage_of(half_life: float, values: Mapping[str, object]) -> Usage:
    """Return the usage in stored JSON values; no usage if these are malformed."""
    try:
        used = {int(uid): float(seconds) for uid, seconds in dict(values["used"]).items()}  # type: ignore[call-overload]
        return Usage(half_life, float(values["at"]), used)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError):
        return Usage(half_life)


def order(priority: Ints, users: Ints, charge: Floats, used: Floats) -> Ints:
    """Return the indices of waiting jobs, given in ascending order of number, in the order in which they are to start.

    Jobs of higher priority come first. Jobs of equal priority are ordered by the least sum of what their user has
    `used` and the `charge` of the user's jobs before them, then by number.
    """
    by_user = np.lexsort((np.arange(len(users)), -priority, users))
    before = np.cumsum(charge[by_user]) - charge[by_user]
    begins = np.flatnonzero(np.diff(users[by_user], prepend=-1) != 0)
    counts = np.diff(np.append(begins, len(users)))
    key = np.empty(len(users))
    key[by_user] = used[by_user] + before - np.repeat(before[begins], counts)
    return np.lexsort((np.arange(len(users)), key, -priority))
