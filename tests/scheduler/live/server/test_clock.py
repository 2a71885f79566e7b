# SPDX-License-Identifier: Apache-2.0
"""The scheduler's time never falls."""

from __future__ import annotations

import time

import pytest
from drom.scheduler.live.server.stored_cluster import Clock


def test_the_time_is_that_of_the_wall_clock() -> None:
    """Where nothing has happened later."""
    before = time.time()
    clock = Clock(before - 100.0)

    assert clock.ahead == 0.0
    assert before - 0.001 <= clock() <= time.time() + 0.001


def test_the_time_goes_on_from_what_has_happened() -> None:
    """And is as far ahead as the wall clock was then."""
    latest = time.time() + 1000.0
    clock = Clock(latest)

    assert clock.ahead == pytest.approx(1000.0, abs=60.0)
    assert latest - 0.001 <= clock() <= clock()
