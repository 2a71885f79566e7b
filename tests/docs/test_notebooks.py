# SPDX-License-Identifier: Apache-2.0
"""The notebook that is shipped, and what the interface shows in a notebook."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import drom
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

nbformat: Any = pytest.importorskip("nbformat", reason="needs nbclient")
pytest.importorskip("nbclient", reason="needs nbclient")
pytest.importorskip("ipykernel", reason="needs ipykernel")

PAGE = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
RUN = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], 4)
NotebookClient(notebook, timeout=250, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""
PROGRESS = """
from drom.scheduler.cli.progress import Bar, progress_stream
times = iter([0.0, 9.0, 10.0])
bar = Bar(progress_stream(), "simulating", lambda: next(times))
bar.show(0.5)
"""


def executed(notebook: Path, folder: Path) -> list[list[dict[str, Any]]]:
    """Return the outputs of the cells of code of a notebook, which a process of its own executes in a folder."""
    command = [sys.executable, "-c", RUN, str(notebook), str(folder / "out.ipynb")]
    environment = os.environ | {"IPYTHONDIR": str(folder / "ipython"), "JUPYTER_RUNTIME_DIR": str(folder / "runtime")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [cell.outputs for cell in nbformat.read(folder / "out.ipynb", 4).cells if cell.cell_type == "code"]


def test_the_first_steps_run_as_they_are(tmp_path: Path) -> None:
    """The notebook runs from its first cell to its last, with its charts as pictures; it is kept without outputs."""
    notebook = ROOT / "docs" / "notebooks" / "first_steps.ipynb"
    outputs = executed(notebook, tmp_path)

    assert "1,000 jobs of the data frame on 128 nodes under easy" in outputs[1][-1]["data"]["text/plain"]
    assert all("image/png" in outputs[cell][-1]["data"] for cell in (3, 4))
    assert "mean_slowdown" in outputs[-1][-1]["data"]["text/plain"]
    assert not any(cell.get("outputs") for cell in nbformat.read(notebook, 4).cells)


def test_a_notebook_shows_progress_in_one_line(tmp_path: Path) -> None:
    """The line is replaced while a simulation runs, and empty at its end."""
    cells = [nbformat.v4.new_code_cell(PROGRESS + rest) for rest in ("", "bar.clear()")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "in.ipynb")
    (shown,), (cleared,) = executed(tmp_path / "in.ipynb", tmp_path)

    assert shown["data"]["text/plain"].startswith("simulating [###############...............]  50%")
    assert cleared["data"]["text/plain"] == ""


def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    """Each block of Python on the page runs, in their order."""
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "easy" / "summary.json").is_file()


def test_the_page_names_every_part_of_a_result() -> None:
    """The table has the public names of a result."""
    public = {name for name in vars(drom.Result) if not name.startswith("_")} | {"summary"}

    assert set(re.findall(r"^\| `\.(\w+)", PAGE, re.MULTILINE)) == public
