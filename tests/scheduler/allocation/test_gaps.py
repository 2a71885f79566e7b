# SPDX-License-Identifier: Apache-2.0
"""How long before its place is needed a filler is saved."""

from __future__ import annotations

import pytest
from drom.scheduler.allocation.gaps import STAY, Gaps


@pytest.mark.parametrize(
    ("gaps", "save_times", "lead"),
    [
        (Gaps(0, 10), (), 10_000),
        (Gaps(0, 10), (450,), 2_048),
        (Gaps(0, 10), (440, 450), 1_536),
        (Gaps(0, 10), (440, 450, 430), 1_024),
        (Gaps(0, 10), (440, 450, 430, 10), 1_024),
        (Gaps(0, 10), (450, 3_100, 400), 7_168),
        (Gaps(0, 10), (30_000,), 131_072),
        (Gaps(0, 10), (4,), 512),
        (Gaps(60, 3), (450,), 2_048),
        (Gaps(60, 3), (30_000,), 29_499),
    ],
)
def test_the_lead_follows_from_the_longest_of_the_last_saves(
    gaps: Gaps, save_times: tuple[int, ...], lead: int
) -> None:
    """Four times that after one save, then less: rounded up, at least half a second, and under half a slot.

    Before the first save it is the usual one.
    """
    assert gaps.lead_ms(save_times) == lead


def test_a_lead_is_never_shorter_than_twice_the_longest_save() -> None:
    """There are few different leads, whatever times are measured: each costs the scheduler a look at all nodes."""
    leads = [Gaps().lead_ms((took,) * 3) for took in range(0, 300_000, 7)]
    assert all(2 * took <= lead <= max(512, 2.5 * took) for took, lead in zip(range(0, 300_000, 7), leads, strict=True))
    assert len(set(leads)) <= 45


@pytest.mark.parametrize("slot", [3, 10, 61, 3600])
def test_a_filler_finds_time_in_each_slot(slot: int) -> None:
    """Even if its saves are longer than that: the scheduler counts a second more than it has to stay."""
    lead = Gaps(slot, 1).lead_ms((10**9,))
    assert 0 < 1000 + STAY * lead < 1000 * slot
