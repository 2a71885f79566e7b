# SPDX-License-Identifier: Apache-2.0
"""`drom reproduce controllers`: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.reproduction.controllers import events
from drom.scheduler.reproduction.controllers.experiment import COSTS, DROM, OPTIONS, OURS, PLAIN, THEIRS
from drom.scheduler.reproduction.controllers.model import LARGE, Setup, simulate, sizes_of

from tests.support.commands import drom
from tests.support.pictures import files_of

if TYPE_CHECKING:
    from pathlib import Path


def test_files(tmp_path: Path) -> None:
    """Three tables with the paper's values beside ours, JSON with all of them, and a picture."""
    words = "reproduce", "controllers", "--nodes", "100", "--controllers", "10", "--out", tmp_path / "out"
    text, _ = drom(*words, compiled=False)
    value = json.loads((tmp_path / "out" / "controllers.json").read_text(encoding="utf-8"))

    assert {file.name for file in (tmp_path / "out").iterdir()} == {"controllers.json", *files_of("controllers")}
    figures, options, scales = text.split("\n\n")
    assert figures.splitlines()[5].split()[:3] == ["medium", "50", "2.1"]
    assert [len(part.splitlines()) for part in (figures, options, scales)] == [3 + 6, 2 + 2 * len(OPTIONS), 2 + 4 + 1]
    assert [len(value[name]) for name in ("figures", "options", "scales")] == [18, 2 * len(OPTIONS), 4]
    assert value["costs_s"] == COSTS._asdict()
    points = value["figures"]
    for one, many, theirs in zip(points[::3], points[1::3], points[2::3], strict=True):
        assert one["controllers"] == 1
        assert one["nodes"] == many["controllers"] * many["nodes"]
        assert (many["options"], theirs["options"]) == (DROM, PLAIN)
        assert many["values"]["messages"]["mean"] <= theirs["values"]["messages"]["mean"] < 30
        assert one["values"]["bound"] == many["values"]["bound"] == theirs["values"]["bound"]
        assert one["values"]["throughput"]["mean"] < one["values"]["bound"]["mean"]


@pytest.mark.system
@pytest.mark.timeout(600)
def test_machine_code_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled loop has the results of plain Python."""
    setup = Setup(4, 50, 5)
    compiled = [simulate(setup, sizes_of(LARGE, setup, 1), COSTS, options) for options in (OURS, THEIRS)]
    monkeypatch.setattr(events, "compiled", lambda: events.run)
    assert [simulate(setup, sizes_of(LARGE, setup, 1), COSTS, options) for options in (OURS, THEIRS)] == compiled


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--nodes", "20"), "'20' is out of range: write a whole number from 50 to 500"),
        (("--controllers", "0"), "'0' is out of range: write a whole number from 1 to 1000000"),
        (("--controllers", "9", "--live"), "--controllers applies to the model: omit it, or --live"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], sentence: str) -> None:
    """Each in a sentence."""
    assert sentence in " ".join(drom("reproduce", "controllers", *words, code=2)[1].split())
