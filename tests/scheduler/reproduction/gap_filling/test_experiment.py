# SPDX-License-Identifier: Apache-2.0
"""`drom reproduce gapfill`: its jobs, its simulations, and what comes of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from drom.scheduler.engine.state import QUEUED
from drom.scheduler.reproduction.gap_filling.experiment import (
    ACCURACIES,
    DEPTH,
    NODES,
    NONE,
    PAUSES,
    TIME_SLOTS,
    A,
    B,
    jobs_of,
    rows,
    simulated,
)
from drom.workloads.distributions import DAY

from tests.support.commands import drom
from tests.support.pictures import files_of

if TYPE_CHECKING:
    from pathlib import Path

FEW = 3
"""Days that are simulated here."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict[str, Any]]:
    """Reproduce some days once; return the folder, what was printed, and what was written."""
    folder = tmp_path_factory.mktemp("gapfill") / "out"
    text, _ = drom("reproduce", "gapfill", "--days", str(FEW), "--out", folder)
    return folder, text, json.loads((folder / "gapfill.json").read_text(encoding="utf-8"))


def test_files(told: tuple[Path, str, dict[str, Any]]) -> None:
    """A point for each accuracy, policy, T and t below T; both tables, both pictures."""
    folder, text, value = told
    slots = [(A, slot, pause) for slot in TIME_SLOTS for pause in PAUSES if pause < slot]
    ways = [(NONE, 1, 0), *slots, *((B, 1, pause) for pause in PAUSES)]
    found = [(p["accuracy"], p["policy"], p["slot_min"], p["pause_min"]) for p in value["points"]]

    assert {file.name for file in folder.iterdir()} == {"gapfill.json", *files_of("figure-2", "gain")}
    assert sorted(found) == sorted((accuracy, *way) for accuracy in ACCURACIES for way in ways)
    assert text.startswith(f"Figure 2: mean load over the accuracy p of requests, 512 slots, {FEW} days\n")
    assert len(text.splitlines()) == 2 + len(ACCURACIES) + 1 + 2 + len(ways)


def test_what_filling_does(told: tuple[Path, str, dict[str, Any]]) -> None:
    """A delays no regular job; B fills what is idle, and delays some; more time to save leaves less for work."""
    for point in told[2]["points"]:
        policy, gain, pause = point["policy"], point["gain"]["mean"], point["pause_min"]
        delayed, share = point["delayed"]["mean"], 1 - pause / point["slot_min"]
        assert (delayed > 0) == (policy == B)
        assert (gain > 0) == (policy != NONE)
        assert policy != B or point["load"]["mean"] > 0.99
        assert policy != A or point["bound"] == pytest.approx(0.1 * share)


def test_gain_by_slots_is_the_part_that_is_left() -> None:
    """What a queue that is always full gains in whole slots is in proportion to 1 - t."""
    gains = {(row.slot_min, row.pause_min): row.gain for row in rows(0.5, 3, FEW) if row.policy == A}

    for slot in (30, 60):
        assert gains[slot, 15] / (1 - 15 / slot) == pytest.approx(gains[slot, 1] / (1 - 1 / slot))


def test_jobs_that_saturate_the_machine() -> None:
    """The same jobs at any accuracy; at any time more work than the machine could have done, and many jobs."""
    work, other = jobs_of(0, 5, 60), jobs_of(1, 5, 60)
    size = work.allocated * work.run_time

    assert (work.run_time == other.run_time).all()
    assert (other.requested_time == other.run_time).all()
    assert (work.requested_time > other.requested_time).any()
    for day in range(60):
        assert size[work.submit <= day * DAY].sum() >= NODES * DAY * (day + 1)
    assert np.count_nonzero(work.submit == 0) > 10 * DEPTH


def test_the_queue_is_never_short() -> None:
    """At the end more jobs wait than have reservations."""
    run = simulated(jobs_of(1, 5, 20), 1, 20)

    assert run.world.scalars[QUEUED] > DEPTH
    assert run.now <= 20 * DAY


@pytest.mark.parametrize("paper", ["adaptive", "gapfill"])
def test_a_folder_that_cannot_be_is_refused_at_once(paper: str, tmp_path: Path) -> None:
    """Nothing is simulated first, which takes minutes."""
    (tmp_path / "file").touch()
    text, said = drom("reproduce", paper, "--out", tmp_path / "file", code=1)

    assert (text, said) == (
        "",
        f"drom: {tmp_path}/file cannot hold results: File exists: name another folder with --out.\n",
    )
