# SPDX-License-Identifier: Apache-2.0
"""When fillers run. Pure, and without numpy, which the command line does not load."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

STAY = 2
"""A filler starts only where no regular job is expected for so many times its lead."""
REMEMBERED = 8
"""The last saves of a filler whose times are kept."""
MARGINS = (4, 3, 2)
"""The lead is so many times as long as the longest remembered save took: after one save, two, and more.

On a busy machine saves of the same image took 0.5 s to 3.1 s. With times drawn from that range, evenly or evenly in
their logarithms, at most one save in 26 takes longer than its lead, and one in 600 after eight saves; with a fixed lead
of 3 s one in 26 (evenly).
"""
SHORTEST = 500
"""The shortest lead in ms, for messages and turns of the scheduler."""


class Gaps(NamedTuple):
    """How gaps are filled: the length of a `slot` in seconds (0: policy B), and the usual `lead` of saves.

    Fillers are saved so long before a slot ends, or a reservation begins. Those that were saved before have a lead of
    their own.
    """

    slot: int = 0
    lead: int = 10

    def lead_ms(self, save_times: Sequence[int]) -> int:
        """Return the lead of a filler in ms, from the times of its last saves in ms; without any, the usual one.

        It is under half a slot, so that the filler can start in slots at all. It is rounded up to one of four values
        for each doubling, so that there are few different ones.
        """
        lead = 1000 * self.lead
        if save_times:
            lead = max(SHORTEST, MARGINS[min(len(save_times), len(MARGINS)) - 1] * max(save_times))
        step = 1 << max(0, lead.bit_length() - 3)
        rounded = -(-lead // step) * step if save_times else lead
        return min(rounded, 1000 * (self.slot - 1) // STAY - 1) if self.slot else rounded
