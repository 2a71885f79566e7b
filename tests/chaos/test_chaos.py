# SPDX-License-Identifier: Apache-2.0
"""A share of the chaos that `make chaos` runs, and that what watches it can see."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from dromlib import layout
from dromlib.testing import Registry
from tests.chaos import history, plan
from tests.chaos.faults import YEAR
from tests.chaos.run import chaos
from tests.chaos.stage import Clock
from tests.support.checker import Reading, Slot

if TYPE_CHECKING:
    from pathlib import Path

BEFORE = Slot(0, "a", (100, 1), (0, 0), 5, 0b11, 0b11, 5, 0b11, 0b11, 1, waiting=False)
NEXT = dataclasses.replace(BEFORE, epoch=6, grant=0b01)


def reading(*slots: Slot, file: int = 1) -> Reading:
    """Return a reading of a registry with these slots."""
    return Reading(slots, (), (1, 1), False, False, b"", file)


class TestHistory:
    """Two readings after each other."""

    @pytest.mark.parametrize(
        "after",
        [
            BEFORE,
            NEXT,
            dataclasses.replace(NEXT, held=0b01, applied_epoch=6, applied=0b01),
            dataclasses.replace(NEXT, grant=0b110, held=0b111),
            dataclasses.replace(BEFORE, held=0b111),
            dataclasses.replace(NEXT, held=0b111),
            dataclasses.replace(BEFORE, who=(101, 2), epoch=2, applied_epoch=0),
            dataclasses.replace(BEFORE, epoch=6, grant=0, held=0, applied_epoch=0, arrival=1),
        ],
    )
    def test_what_may_happen(self, after: Slot) -> None:
        """Nothing, a grant, its application, a growth, one that is planned, another task, a process that came again."""
        assert history.violations(reading(BEFORE), reading(after)) == []

    def test_an_agent_may_die_while_it_writes_down_what_is_in_force(self) -> None:
        """The agent writes the epoch first: the next agent gives up the rest of the previous grant."""
        half = dataclasses.replace(BEFORE, epoch=6, grant=0b01, earlier=0b11, applied_epoch=6)
        whole = dataclasses.replace(half, held=0b01, applied=0b01)
        assert history.violations(reading(half), reading(whole)) == []

        newer = dataclasses.replace(half, epoch=7, grant=0b01, earlier=0b10)
        found, *_ = history.violations(reading(newer), reading(dataclasses.replace(newer, held=0b01)))
        assert found.endswith("gave up 1 with nothing newer in force")

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"epoch": 4}, "its epoch was 5 before"),
            ({"grant": 0b01}, "its grant was 0,1 and is 0 now"),
            ({"applied_epoch": 4}, "applied epoch 5 became 4"),
            ({"applied_epoch": 7}, "applied epoch 5 became 7"),
            ({"epoch": 6, "grant": 0b01, "held": 0b01}, "gave up 1 with nothing newer in force"),
        ],
    )
    def test_what_may_not_happen(self, changes: dict[str, int], sentence: str) -> None:
        """Each rule has its sentence."""
        after = dataclasses.replace(BEFORE, **changes)  # type: ignore[arg-type]
        found, *_ = history.violations(reading(BEFORE), reading(after))
        assert found.endswith(sentence)

    def test_a_new_registry_has_no_history(self) -> None:
        """An agent that was stopped leaves nothing that the next one would have to agree with."""
        assert history.violations(reading(BEFORE), reading(dataclasses.replace(BEFORE, epoch=1), file=2)) == []


def test_a_plan_is_a_function_of_its_seed() -> None:
    """The same acts in the same order; another seed has others; every kind comes."""
    one, again, other = (list(itertools.islice(plan.acts(seed), 500)) for seed in (1, 1, 2))
    assert one == again != other
    assert {act.kind for act in one} == plan.FAULTS.keys() | plan.LIFE.keys()


def test_the_watcher_sees_a_core_that_is_held_twice(tmp_path: Path) -> None:
    """The process that watches a storm reports a registry that no agent may write."""
    registry = Registry(tmp_path)
    for slot, pid in ((0, 100), (1, 101)):
        registry.assign(slot, pid, 1)
        registry.view[registry.base(slot) + layout.mask_offset("held", 128)] = 0b11
    watch = [sys.executable, "-m", "tests.chaos.watch", str(tmp_path), "registry"]
    with subprocess.Popen(watch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watcher:
        seen = json.loads(watcher.communicate()[0])
    assert any("both hold 0,1" in text for text in seen["violations"])


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_the_wall_clock_is_set_while_programs_run(tmp_path: Path) -> None:
    """What was started under the clock of a storm goes by it at once, and only what was started under it."""
    clock = Clock(tmp_path)
    with clock.in_force():
        say = "import time\nwhile True:\n    input()\n    print(time.time(), flush=True)"
        asked = subprocess.Popen([sys.executable, "-c", say], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with asked:
        assert asked.stdin is not None
        assert asked.stdout is not None
        for off in (20 * YEAR, -20 * YEAR, 0):
            clock.move(off)
            print(file=asked.stdin, flush=True)
            assert abs(float(asked.stdout.readline()) - time.time() - off) < YEAR
        asked.kill()


@pytest.mark.system
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_storm_violates_nothing(tmp_path: Path) -> None:
    """Two hundred faults of all kinds, on real and on emulated cores."""
    outcome = chaos(tmp_path, 1, 200)
    assert outcome.violations == []
    assert outcome.faults.total() >= 200
    assert outcome.readings > 100
