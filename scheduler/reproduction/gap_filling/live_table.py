# SPDX-License-Identifier: Apache-2.0
"""The results of gap filling on a real cluster, as text and JSON, beside the bound of the paper."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from drom.agent.text import table
from drom.scheduler.analysis.estimates import estimate
from drom.scheduler.reproduction.gap_filling.live import DELAYED, LEAD, NODES, SLOT, SLOTTED, LiveResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drom.scheduler.analysis.estimates import Estimate

_NAMES = {
    "none": "starts at any time, no fillers",
    "B": "B: the same with fillers",
    "slots": f"starts every {SLOT} s, no fillers",
    "A": "A: the same with fillers",
}


def lines(found: LiveResult, seconds: int) -> Iterator[str]:
    """Yield the table of runs, and the paper's bound with the measured t and c."""
    yield f"{NODES} nodes of one core, {seconds} s of regular jobs, fillers saved by {found.saving}"
    delays = (f"over {DELAYED:g} s", "longest, s")
    heads = ("regular", "load", "of idle slots", "gain", "response, s", *delays, "saves", "moves")
    rows = [
        [
            _NAMES[row.name],
            f"{row.regular:.3f}",
            f"{row.load:.3f}",
            f"{row.filled:.3f}" if row.name in SLOTTED else "-",
            f"{row.gain:.3f}",
            f"{fmean(row.responses):.1f}",
            str(row.delayed),
            f"{row.delay:.2f}",
            str(row.saves),
            str(row.moves),
        ]
        for row in found.rows
    ]
    yield from table(["run", *heads], rows, " " + ">" * len(heads))
    yield "of idle slots: the time that fillers had of slots of a node without a regular job"
    yield f"over {DELAYED:g} s, longest: regular jobs that began so long after it was decided to start them"
    yield ""
    for name, change in _changes(found).items():
        yield f"longer responses under {name}, job by job: {change.mean:+.2f} s ± {change.half:.2f} s"
    for name, value in _bounds(found).items():
        yield f"{name}: {value:.3f}"


def _changes(found: LiveResult) -> dict[str, Estimate]:
    """Return by how much regular jobs took longer with fillers than without, from submission to end."""
    responses = {row.name: np.array(row.responses) for row in found.rows}
    return {
        policy: estimate(responses[policy] - responses[alone])
        for policy, alone in (("B", "none"), ("A", "slots"))
        if len(responses[alone]) > 1
    }


def _bounds(found: LiveResult) -> dict[str, float]:
    """Return t, c, and the bound of the paper for what regular jobs leave idle under policy A."""
    rows = {row.name: row for row in found.rows}
    save, restore = rows["A"].save_s, rows["A"].restore_s
    pause = (save + restore) / SLOT
    idle = 1 - rows["slots"].regular
    return {
        f"t, the median times to save ({save:.2f} s) and to restore ({restore:.2f} s) in slots": pause,
        "c, the work of a filler per second, where a regular job does 1": found.efficiency,
        "idle without fillers, instead of the paper's 0.1": idle,
        "the paper's bound, idle (1 - t) c": idle * (1 - pause) * found.efficiency,
        "the gain that was measured": rows["A"].gain,
    }


def to_json(found: LiveResult, seed: int, seconds: int) -> dict[str, Any]:
    """Return all results as JSON values."""
    about = {"seed": seed, "seconds": seconds, "nodes": NODES, "slot_s": SLOT, "lead_s": LEAD}
    results = {"saving": found.saving, "c": found.efficiency, "runs": [row._asdict() for row in found.rows]}
    return {"schema_version": 1, **about, **results}
