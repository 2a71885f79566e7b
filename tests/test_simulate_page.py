# SPDX-License-Identifier: Apache-2.0
"""What docs/simulate.md shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.metrics import COUNTS, FIGURES
from scheduler.schedule import NAMES, NODE_LIST

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")


def test_it_runs_as_it_stands(tmp_path: Path) -> None:
    """Every command of the page, in its order; what stopped and went on is what ran in one go."""
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    lines = "".join(re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", lines],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    part = json.loads((tmp_path / "part" / "summary.json").read_text(encoding="utf-8"))

    assert done.returncode == 0, done.stderr
    assert not part["complete"]
    assert all((tmp_path / "easy" / f"{name}.png").is_file() for name in ("gantt", "load", "days", "heatmaps"))


def test_it_names_every_column_and_metric() -> None:
    """And no other."""
    columns = PAGE[PAGE.index("Columns of") : PAGE.index("| metric in")]
    metrics = PAGE[PAGE.index("| metric in") : PAGE.index("## Pictures")]

    assert re.findall(r"`([a-z_]+)`", columns) == [*NAMES, NODE_LIST]
    assert re.findall(r"`([a-z_]+)`", metrics) == [*FIGURES, *COUNTS]
