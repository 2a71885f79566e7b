# SPDX-License-Identifier: Apache-2.0
"""What docs/experiments.md and the example show."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.experiments.design import KEYS, TABLES, parse, read_source

from tests.support.commands import commands_of, run_lines
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGE = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")


def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    """Its file, its commands, and its lines of Python, which find all runs made."""
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    pytest.importorskip("pandas", reason="needs pandas")
    text, code = (re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)[0] for kind in ("toml", "python"))
    (tmp_path / "load.toml").write_text(text)
    run_lines(commands_of("docs/experiments.md"), tmp_path)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert "CHANGE is from policy easy" in done.stdout
    assert (tmp_path / "load" / "report.html").is_file()
    assert len(list((tmp_path / "load" / "runs").iterdir())) == 45


def test_the_page_names_every_key() -> None:
    """And no other."""
    rows = dict(re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", PAGE, re.MULTILINE))
    tables = {name: rows[f"`[{name}]`"] for name in TABLES}
    keys = [key for row in rows for key in re.findall(r"`(\w+)`", row)]

    assert [key for key in keys if key in KEYS] == [
        "title",
        "seeds",
        "warm_up",
        "cool_down",
        "compare",
        "baseline",
        "metrics",
    ]
    for name, text in tables.items():
        assert set(re.findall(r"`(\w+)`", text)) == set(TABLES[name])


def test_the_example_is_as_the_page_says() -> None:
    """Four policies, three loads, ten seeds of 10,000 jobs."""
    design = parse(read_source(ROOT / "examples" / "experiment.toml"))

    assert (len(design.cells), len(design.seeds), design.values["workload.jobs"]) == (12, 10, 10_000)
