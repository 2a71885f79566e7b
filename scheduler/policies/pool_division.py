# SPDX-License-Identifier: Apache-2.0
"""Equal division of processors."""

from __future__ import annotations

from drom.scheduler.interface import Ints, compilable


@compilable
def divide(share: Ints, room: Ints, spare: int) -> None:
    """Add `spare` processors to the shares, equally as far as `room` allows; earlier shares get the remainder."""
    while spare > 0:
        takers = 0
        for more in room:
            takers += more > 0
        if takers == 0:
            return
        equal = max(1, spare // takers)
        for i in range(len(share)):
            more = min(equal, room[i], spare)
            share[i] += more
            room[i] -= more
            spare -= more
