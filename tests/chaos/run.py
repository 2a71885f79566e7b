# SPDX-License-Identifier: Apache-2.0
"""Storms on nodes of each kind."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING

from tests.chaos import plan
from tests.chaos.stage import EMULATED, REAL, Clock, stage
from tests.chaos.storm import Outcome, Storm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHARES = ((REAL, 0.75), (EMULATED, 0.25))
"""Which part of the faults each kind of node gets."""


def chaos(
    folder: Path, seed: int, faults: int, tell: Callable[[str], None] = lambda _: None, seconds: float = math.inf
) -> Outcome:
    """Return what came of so many faults, or so many seconds; the first storm with a violation is the last one."""
    outcome = Outcome()
    clock = Clock(folder)
    for number, (node, share) in enumerate(SHARES):
        with clock.in_force(), stage(folder / str(number), node) as made:
            tell(f"{node.name}, seed {seed + number}")
            enough = partial(_are_enough, round(faults * share), time.monotonic() + seconds * share)
            outcome += Storm(made, clock, tell).run(plan.acts(seed + number), enough)
        if outcome.violations:
            break
    return outcome


def _are_enough(faults: int, until: float, outcome: Outcome) -> bool:
    return outcome.faults.total() >= faults or time.monotonic() > until
