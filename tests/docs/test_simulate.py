# SPDX-License-Identifier: Apache-2.0
"""What docs/simulate.md shows."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.analysis.metrics import COUNTS, FIGURES
from drom.scheduler.analysis.schedule import NAMES, NODE_LIST

from tests.support.commands import commands_of, run_lines
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGE = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")


@pytest.mark.timeout(900)  # twenty commands, most with a policy that may have to be compiled
def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    """Every command of the page, in its order; what stopped and went on is what ran in one go."""
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    run_lines(commands_of("docs/simulate.md"), tmp_path)
    part = json.loads((tmp_path / "part" / "summary.json").read_text(encoding="utf-8"))

    assert not part["complete"]
    assert all((tmp_path / "easy" / f"{name}.png").is_file() for name in ("gantt", "load", "days", "heatmaps"))


def test_the_page_names_every_column_and_metric() -> None:
    """And no other."""
    columns = PAGE[PAGE.index("Columns of") : PAGE.index("| metric in")]
    metrics = PAGE[PAGE.index("| metric in") : PAGE.index("## Pictures")]

    assert re.findall(r"`([a-z_]+)`", columns) == [*NAMES, NODE_LIST]
    assert re.findall(r"`([a-z_]+)`", metrics) == [*FIGURES, *COUNTS]
