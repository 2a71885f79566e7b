# SPDX-License-Identifier: Apache-2.0
"""Failures that are drawn, or read from a table; bad input; the command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.errors import SchedulerError
from drom.scheduler.simulator.failures import YEAR, outages_of
from drom.workloads.errors import WorkloadError
from drom.workloads.swf import write_swf

from tests.support.commands import drom
from tests.support.job_logs import synthetic
from tests.support.schedules import workload

if TYPE_CHECKING:
    from pathlib import Path

WORK = workload([(0, 100, 100, 4), (YEAR, 100, 100, 4)])


def test_a_rate_is_failures_of_a_node_in_a_year() -> None:
    """Repairs take their mean; all nodes go down and come back in turn; a seed draws the same for all."""
    table = outages_of(["rate=5", "repair=3600"], WORK, 100, 1, 1).table
    again, other = (outages_of(["rate=5", "repair=3600"], WORK, 100, 1, seed).table for seed in (1, 2))
    down, up = table[table[:, 2] == 0], table[table[:, 2] == 1]

    assert len(down) == len(up) == pytest.approx(5 * 100 * 10, rel=0.05)
    assert (up[:, 0].sum() - down[:, 0].sum()) / len(down) == pytest.approx(3600, rel=0.05)
    assert (np.diff(table[:, 0]) >= 0).all()
    for node in range(100):
        mine = table[table[:, 1] == node]
        assert mine[:, 2].tolist() == [0, 1] * (len(mine) // 2)
        assert (np.diff(mine[:, 0]) > 0).all()
    assert np.array_equal(table, again)
    assert not np.array_equal(table, other)


def test_no_rate_is_no_failure() -> None:
    """Also with other parameters."""
    assert not len(outages_of(["rate=0", "checkpoint=60", "restart=10"], WORK, 8, 1, 1).table)
    assert not len(outages_of([], WORK, 8, 1, 1).table)


def test_a_trace(tmp_path: Path) -> None:
    """In any order of lines."""
    (tmp_path / "trace.csv").write_text("node,down,up\n3,50,60\n0,10,20\n3,5,7\n")
    found = outages_of([f"trace={tmp_path / 'trace.csv'}", "lost=1"], WORK, 8, 1, 1)

    assert found.table.tolist() == [[5, 3, 0], [7, 3, 1], [10, 0, 0], [20, 0, 1], [50, 3, 0], [60, 3, 1]]
    assert found.loses


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("8,1,2", "line 2: there is no node 8: the machine has 0 to 7."),
        ("1,2,2", "line 2: node 1 comes back at 2, and goes down at 2: write a later second for up."),
        ("1,2.5,3", "line 2, down: 2.5 is not a whole number of at least 0."),
        ("1,2,9\n1,9,12", "line 3: node 1 is down until 9: write one line for both times."),
        ("1,2", "line 2: 2 columns where the first line has 3."),
    ],
)
def test_bad_traces(line: str, sentence: str, tmp_path: Path) -> None:
    """One sentence with the place."""
    (tmp_path / "trace.csv").write_text(f"node,down,up\n{line}\n")

    with pytest.raises(WorkloadError) as raised:
        outages_of([f"trace={tmp_path / 'trace.csv'}"], WORK, 8, 1, 1)
    assert str(raised.value).endswith(f"trace.csv, {sentence}")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (["rate=-1"], "--failures 'rate=-1': rate is a number from 0 to 10,000."),
        (["mtbf=3"], "--failures 'mtbf=3': there is no 'mtbf': choose rate, repair, checkpoint, restart, lost, trace."),
        (["checkpoint=1.5"], "--failures 'checkpoint=1.5': checkpoint is a whole number from 0 to 31,536,000."),
        (["restart=5"], "restart=5 is above checkpoint=0"),
        (["rate=1", "lost=1", "checkpoint=5"], "omit lost=1 or checkpoint"),
        (["rate=1", "trace=x.csv"], "the trace x.csv has all failures: omit rate"),
        (["trace="], "--failures 'trace=': trace is the name of a file."),
        (["rate=10000"], "choose a smaller rate"),
    ],
)
def test_bad_parameters(said: list[str], sentence: str) -> None:
    """One sentence that says what to do."""
    with pytest.raises(SchedulerError) as raised:
        outages_of(said, WORK, 100_000, 1, 1)
    assert sentence in str(raised.value)


def test_the_command(tmp_path: Path) -> None:
    """It writes the failures of jobs beside the other tables, and their figures into the summary."""
    write_swf(synthetic(), tmp_path / "log.swf")
    options = ("--nodes", "64", "--failures", "rate=2000", "--failures", "repair=600", "--failures", "checkpoint=600")
    told, _ = drom("simulate", tmp_path / "log.swf", *options, "--out", tmp_path / "out", "--json")
    summary = json.loads(told)
    rows = (tmp_path / "out" / "failures.csv").read_text().splitlines()

    assert rows[0] == "job_id,start,end,nodes,node,wasted_core_seconds"
    assert len(rows) - 1 == summary["failures"]["failures_of_jobs"] > 0
    assert 0.9 < summary["failures"]["availability"] < 1
    assert summary["complete"]
    drom("simulate", tmp_path / "log.swf", "--nodes", "64", "--out", tmp_path / "out")
    assert not (tmp_path / "out" / "failures.csv").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--policy", "equipartition"], "for policies that place jobs on nodes, such as easy, slurm and sd"),
        (["--event-rule", "pyss"], "--failures is for --event-rule instant, not pyss"),
        (["--predict", "recent"], "--failures is for requested times, not --predict recent"),
        (["--fill"], "--fill is for equal nodes that stay up and on: omit --failures"),
    ],
)
def test_what_failures_do_not_go_with(options: list[str], sentence: str, tmp_path: Path) -> None:
    """One sentence."""
    write_swf(synthetic(), tmp_path / "log.swf")
    _, said = drom("simulate", tmp_path / "log.swf", "--nodes", "64", "--failures", "rate=1", *options, code=2)

    assert sentence in said
