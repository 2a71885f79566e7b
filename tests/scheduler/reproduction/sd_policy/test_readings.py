# SPDX-License-Identifier: Apache-2.0
"""Readings of the SD-Policy paper: their parameters, their numbers over phases, and the command."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.experiments.running import measure
from drom.scheduler.reproduction.sd_policy import readings, settings, spreads
from drom.scheduler.reproduction.sd_policy.logs import Source, source_of
from drom.scheduler.reproduction.sd_policy.paper import Given
from drom.scheduler.reproduction.sd_policy.readings import READINGS, cases_of, parse
from drom.scheduler.reproduction.sd_policy.spreads import RUNS, Spread, run_readings
from drom.scheduler.reproduction.sd_policy.tables import CHANGE, Row
from drom.workloads.making import SAMPLE

from tests.support.commands import drom
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PHASES, RESOLUTIONS = (0, 4, 8), (60, 1)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """Return 300 jobs for workload 4, with fewer phases."""
    monkeypatch.delenv("DROM_WORKLOADS", raising=False)
    for module in (readings, spreads):
        monkeypatch.setattr(module, "PHASES", PHASES)
    real = settings.CURIE._replace(stand_in=replace(SAMPLE, jobs=300, cores=16))
    return source_of(settings.EXPERIMENTS[4]._replace(jobs=real), None, tmp_path, 1)


def nothing(_: object) -> None:
    """Show nothing."""


@pytest.mark.parametrize("reading", READINGS.values(), ids=str)
def test_the_parameters_of_readings_exist(reading: readings.Reading) -> None:
    """Static backfilling has those of both policies, SD-Policy all of them; docs/reproduction.md has the same."""
    source = Source(__file__, 8, 2, "")  # type: ignore[arg-type]  # its jobs are not read
    cases = {place.setting: case for place, case in cases_of(4, source, [reading]).items()}

    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `{reading.name}` \|([^|]*)\|", page, re.MULTILINE)

    assert row
    assert set(re.findall(r"(\w+=[\w.]+)", row[1])) == {*reading.both, *reading.sd, *reading.rules}
    for case in cases.values():
        load_policy(case.policy, case.choices)
    assert set(reading.both) <= set(cases["static"].choices)
    assert not set(reading.sd) & set(cases["static"].choices)
    assert {*reading.both, *reading.sd, "max_slowdown=dynavgsd"} <= set(cases["dynavgsd-worst"].choices)
    assert {case.setup.rule for case in cases.values()} == {reading.rules}


def test_numbers_are_medians_over_phases(source: Source, tmp_path: Path) -> None:
    """With the least and the most; changes are from static backfilling at the same phase and resolution."""
    chosen = parse("default,eager")
    (found,) = run_readings({4: source}, chosen, tmp_path, 2, nothing)
    cases = cases_of(4, source, chosen[1:])
    slow = {
        (place.phase, place.setting): measure(case)["metrics"]["mean_slowdown"]
        for place, case in cases.items()
        if place.resolution == 1 and place.setting in {"static", "maxsd-10"}
    }
    changes = [100 * (slow[phase, "maxsd-10"] / slow[phase, "static"] - 1) for phase in PHASES]
    spread = next(one for one in found.spreads[chosen[1]][1] if one.row.what == "MAXSD 10: slowdown")

    assert (spread.row.here, spread.least, spread.most) == pytest.approx((median(changes), min(changes), max(changes)))
    assert len(list((tmp_path / RUNS).iterdir())) == len(PHASES) * len(RESOLUTIONS) * (1 + 2 * 6)
    again = run_readings({4: source}, chosen, tmp_path, 2, lambda _: pytest.fail("made again"))
    assert again == [found]
    text = "\n".join(found.lines())
    assert "eager: guests may outlast their mates, and need not end earlier (inside=0, test=0)" in text
    assert found.notes.endswith("Median (least, most) over passes at 3 phases.")
    assert json.dumps(found.to_json())


def test_what_is_reached() -> None:
    """A median within five percent, or points of a change, or its bound; nothing is said where a number is missing."""
    rows = [
        [Row("T", "close", "s", Given(100), value) for value in (90, 104, 120)],
        [Row("T", "far", "s", Given(100), value) for value in (100, 106, 120)],
        [Row("T", "close", CHANGE, Given(-50), value) for value in (-80, -45, 0)],
        [Row("T", "bound", CHANGE, Given(1, bound=True), value) for value in (-1, 0.5, 3)],
        [Row("T", "beyond", CHANGE, Given(1, bound=True), value) for value in (-1, 1.5, 3)],
        [Row("T", "silent", "s", None, value) for value in (1, 2, 3)],
        [Row("T", "missing", "s", Given(1), None) for _ in range(3)],
    ]
    found = [Spread.of(one) for one in rows]

    assert [spread.reached for spread in found] == [True, False, True, True, False, None, None]
    assert found[0].text() == "104 s (90 s, 120 s)"
    assert found[-1].text() == "-"


def test_a_simulation_that_fails_is_named(source: Source, tmp_path: Path) -> None:
    """With its workload, reading and setting."""
    with pytest.raises(SchedulerError, match=r"^Workload 4, default, static: .*larger than"):
        run_readings({4: source._replace(nodes=1)}, parse("default"), tmp_path, 2, nothing)


@pytest.mark.parametrize(
    ("options", "sentence", "code"),
    [
        (["--readings", "eagre"], "--readings: there is no reading 'eagre': choose of default, ", 1),
        (["--readings", "all", "--workload", "5"], "--readings applies to workloads 1 to 4", 2),
    ],
)
def test_bad_input(options: list[str], sentence: str, code: int) -> None:
    """One sentence that says what to do."""
    told, said = drom("reproduce", "sd-policy", *options, code=code)

    assert not told
    assert sentence in said
