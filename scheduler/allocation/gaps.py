# SPDX-License-Identifier: Apache-2.0
"""When fillers run. Pure, and without numpy, which the command line does not load."""

from __future__ import annotations

from typing import NamedTuple


class Gaps(NamedTuple):
    """How gaps are filled: the length of a `slot` in seconds (0: policy B), and the `lead` of saves.

    Fillers are saved `lead` seconds before a slot ends, or a reservation begins.
    """

    slot: int = 0
    lead: int = 10
