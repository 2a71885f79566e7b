# SPDX-License-Identifier: Apache-2.0
"""A storm that ends well, a plan that can be repeated, and a judge that is not easily satisfied."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster import plan
from tests.cluster.ledger import Known, violations
from tests.cluster.storm import storm

if TYPE_CHECKING:
    from pathlib import Path

KILLS = int(os.environ.get("DROM_CLUSTER_KILLS", "60"))
SEED = int(os.environ.get("DROM_CLUSTER_SEED", "8"))


@pytest.mark.timeout(60 + 20 * KILLS)
def test_a_storm_violates_nothing(tmp_path: Path) -> None:
    """Every job ends as it should, none runs twice, and no core is held at the end."""
    outcome = storm(tmp_path / "c", SEED, KILLS, print)

    assert outcome.violations == []
    assert outcome.kills.total() == KILLS
    print(f"seed {SEED}\n{outcome.table()}\n{outcome.summary()}")


def test_a_plan_is_that_of_its_seed() -> None:
    """The same acts in the same order, all kinds among them."""
    first, again, other = (list(itertools.islice(plan.acts(seed), 500)) for seed in (1, 1, 2))

    assert first == again != other
    assert {act.kind for act in first} == (plan.KILLS | plan.LIFE).keys()


FAILED = {"state": "failed"}
GOOD = ["begin 1 n1", "end 1 0"]
CASES: tuple[tuple[dict[str, Any], Known, list[str], str], ...] = (
    ({}, Known(0, requeue=True), GOOD, ""),
    (FAILED, Known(0, requeue=True), GOOD, "job 7: it is failed with status 0"),
    (FAILED | {"status": 3}, Known(3, requeue=True), ["begin 1 n1", "end 1 3"], ""),
    (FAILED | {"status": -9}, Known(0, requeue=True), GOOD[:1], "job 7: it is failed with status -9"),
    (FAILED | {"status": -9}, Known(0, requeue=True, programs={1}), GOOD[:1], ""),
    (
        {},
        Known(0, requeue=True),
        GOOD[:1],
        "job 7: it is completed with status 0 after attempt 1 of [1], its end being",
    ),
    ({}, Known(0, requeue=True), ["begin 1 n1", *GOOD], "job 7: attempt 1 was started 2 times"),
    ({}, Known(0, requeue=True), ["twice 1 n1", "end 1 0"], "job 7: attempt 1 ran beside another one"),
    ({"attempt": 2}, Known(0, requeue=True), [*GOOD, "begin 2 n1", "end 2 0"], "job 7: attempt 1 came to its end, and"),
    ({"attempt": 2}, Known(0, requeue=True), ["begin 1 n1", "begin 2 n1", "end 2 0"], "job 7: attempt 1 was given up"),
    ({"attempt": 2}, Known(0, requeue=True, steps={1}), ["begin 1 n1", "begin 2 n1", "end 2 0"], ""),
    ({"state": "node_fail", "status": None}, Known(0, requeue=False, steps={1}), GOOD[:1], ""),
    (FAILED | {"status": 205}, Known(0, requeue=True), GOOD[:1], "job 7: it is failed with status 205"),
    (FAILED | {"status": 205}, Known(0, requeue=True, launches={1: ["orted"]}), GOOD[:1], ""),
    (FAILED | {"status": 5}, Known(0, requeue=True, launches={1: ["rank"]}), ["begin 1 n1", "end 1 137"], ""),
    (
        FAILED | {"status": 5},
        Known(0, requeue=True),
        ["begin 1 n1", "end 1 5"],
        "job 7: attempt 1 ended with 5, though",
    ),
    ({"state": "cancelled", "status": None}, Known(0, requeue=False), [], "job 7: it is cancelled"),
    ({"state": "cancelled", "status": None, "attempt": 0}, Known(0, requeue=False, cancelled=True), [], ""),
)


@pytest.mark.parametrize(("about", "known", "lines", "said"), CASES)
def test_what_must_not_be_is_found(about: dict[str, Any], known: Known, lines: list[str], said: str) -> None:
    """By what a job has written itself, and what was done to it."""
    found = violations({"job": 7, "state": "completed", "status": 0, "attempt": 1} | about, known, lines)

    assert bool(found) == bool(said)
    assert not said or found[0].startswith(said)
