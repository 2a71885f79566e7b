# SPDX-License-Identifier: Apache-2.0
"""What is to happen, as a function of a seed alone: the same seed gives the same acts in the same order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.storms import Act, draw

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

FAULTS = {
    "program killed": 30,
    "agent killed": 12,
    "agent killed in a change": 8,
    "agent stopped and started anew": 1,
    "program stopped for a while": 8,
    "agent stopped for a while": 4,
    "mask rewritten": 12,
    "mailbox forged": 8,
    "mailbox cut or stretched": 4,
    "file system full": 4,
    "wall clock moved": 5,
    "nonsense at the door": 4,
    "hostile user": 4,
}
"""Faults by how often each comes."""
DEADLY = ("agent killed", "agent killed in a change", "agent stopped and started anew", "file system full")
"""Faults that an agent does not outlive, or may not."""
LIFE = {"a program comes": 60, "a program is told to end": 10, "an order": 20}
"""What happens without any fault, likewise."""
PAUSE = 0.012
"""Mean seconds between two acts."""


def acts(seed: int, without: Collection[str] = ()) -> Iterator[Act]:
    """Return acts without end; none of the kinds named."""
    return draw(seed, {kind: weight for kind, weight in (FAULTS | LIFE).items() if kind not in without}, PAUSE)
