# SPDX-License-Identifier: Apache-2.0
"""Jobs that may leave whole nodes, from the options of `drom simulate` to its results."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import MALLEABLE, RIGID
from drom.scheduler.policies.change_cost import BANDWIDTH, STALL
from drom.scheduler.simulator.leaving import NodeModel, figures, parse_leaving
from drom.workloads.swf import write_swf

from tests.support.commands import drom
from tests.support.job_logs import synthetic
from tests.support.paths import ROOT
from tests.support.schedules import simulation, workload

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)
"""The policy takes half a minute to compile, once."""

ROWS = [(0, 100, 100, 6), (0, 100, 100, 1), (10, 20, 20, 4)]
LEFT = ("interval=1", "max_slowdown=infinite")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a small log."""
    write_swf(synthetic(), tmp_path / "log.swf.gz")
    return tmp_path / "log.swf.gz"


def test_minima_are_of_the_jobs_that_are_drawn() -> None:
    """The share is of the malleable jobs, a larger one has the same jobs and more, and minima are rounded up."""
    work = workload([(0, 9, 9, 1 + number % 7) for number in range(4000)])
    classes = np.where(np.arange(4000) % 2, MALLEABLE, RIGID)
    nodes, leaving = work.allocated, [NodeModel(share, 0.4).leaving(work, classes, 8, 1, 3) for share in (0.2, 0.5, 1)]
    chosen = [one.least < nodes for one in leaving]

    assert (leaving[2].least[1::2] == np.ceil(0.4 * nodes[1::2] - 1e-9)).all()
    assert (leaving[2].least[::2] == nodes[::2]).all()
    assert (chosen[0] <= chosen[1]).all()
    assert (chosen[1] <= chosen[2]).all()
    assert chosen[0].sum() / chosen[2].sum() == pytest.approx(0.2, abs=0.03)


def test_what_came_of_it() -> None:
    """The results count jobs, starts, changes and data: 3 of 6 nodes that move to the others, and back."""
    run = simulation(ROWS, "sd", None, *LEFT, adaptive=NodeModel(share=1, minimum=0.5, memory=10))
    run.run()

    assert figures(run.world, run.adaptive) == {"jobs": 2, "starts": 1, "changes": 2, "moved_mb": 60.0}
    assert figures(run.world, None) is None


def test_the_command(log: Path, tmp_path: Path) -> None:
    """The summary has the model and what came of it, and a stopped run goes on to the same schedule."""
    options = ("--nodes", "16", "--cores", "4", "--policy", "sd", "--adaptive", "share=0.9,memory=100")
    said, _ = drom("simulate", log, *options, "--out", tmp_path / "whole")
    drom("simulate", log, *options, "--until", "40000", "--save", tmp_path / "state")
    drom("simulate", log, *options, "--resume", tmp_path / "state", "--out", tmp_path / "parts")
    told = json.loads((tmp_path / "whole" / "summary.json").read_text(encoding="utf-8"))

    assert (told["adaptive"]["share"], told["adaptive"]["memory"]) == (0.9, 100)
    assert told["leaving"]["starts"] > 0
    assert f"leaving: starts {told['leaving']['starts']:>28}" in said
    whole, parts = ((tmp_path / name / "jobs.csv").read_bytes() for name in ("whole", "parts"))
    assert whole == parts


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--adaptive", "minimum=0"), "--adaptive 'minimum=0': minimum is a fraction above 0, at most 1."),
        (("--adaptive", "share=2"), "--adaptive 'share=2': share is a fraction from 0 to 1."),
        (("--adaptive", "maximum=2"), "--adaptive 'maximum=2': there is no 'maximum': choose share, minimum,"),
        (("--adaptive", "share=1", "--event-rule", "cqsim"), "--adaptive is for --event-rule instant, not cqsim"),
        (("--adaptive", "share=1", "--predict", "recent"), "--adaptive is for requested times, not --predict recent"),
        (("--adaptive", "share=1", "--fill"), "--fill is for jobs that keep their nodes: omit --adaptive"),
        (
            ("--adaptive", "parallelism=4", "--set", "recompute=1"),
            "--adaptive parallelism is not for recompute=1, which takes speedup for linear",
        ),
        (("--set", "bandwidth=0"), "policy sd: stall, and memory over bandwidth, are from 0 to 86,400 seconds"),
        (("--set", "memory=nan"), "policy sd: stall, and memory over bandwidth, are from 0 to 86,400 seconds"),
    ],
)
def test_options_that_cannot_be(log: Path, options: tuple[str, ...], sentence: str) -> None:
    """A sentence says what is wrong and what to do."""
    code = 2 if sentence.startswith(("--fill is", "--adaptive is", "--adaptive parallelism")) else 1
    machine = ("--nodes", "16", "--cores", "4", "--policy", "sd")
    _, said = drom("simulate", log, *machine, *options, code=code, compiled=False)

    assert sentence in " ".join(said.replace("│", " ").split())


def test_machines_and_costs_that_are_too_large() -> None:
    """Numbers that the simulation could not count are refused."""
    with pytest.raises(SchedulerError, match="cannot be counted on 9,000,000 nodes of 4 cores"):
        NodeModel().leaving(workload([(0, 9, 9, 1)]), np.array([MALLEABLE]), 9_000_000, 4, 1)
    with pytest.raises(SchedulerError, match="more than a day"):
        parse_leaving(["memory=1e9"])


def test_the_line_through_the_measured_changes_is_the_documented_one() -> None:
    """Least squares over all medians of the table of changes of ranks; the defaults are no cheaper than it."""
    page = (ROOT / "docs" / "adaptive.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:objects|arrays) \| \d+ and \d+ \|(.*)\|.*\|$", page, re.MULTILINE)
    medians = np.array([[float(cell.split()[0]) for cell in row.split("|")[:4]] for row in rows])
    megabytes = np.tile([1.0, 1.0, 10.0, 10.0], len(medians))
    (fixed, per_megabyte), *_ = np.linalg.lstsq(np.stack((np.ones_like(megabytes), megabytes), 1), medians.ravel())

    assert len(rows) == 8
    assert f"Its defaults, {STALL:g} s and\n{BANDWIDTH:g} MB/s," in page
    assert f"Through those above it is {round(fixed) / 1000:g} s and {1000 / per_megabyte:.0f} MB/s." in page
    assert fixed / 1000 < STALL
    assert 1000 / per_megabyte > BANDWIDTH
