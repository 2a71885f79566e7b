# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv
import io
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from drom.scheduler.analysis.plots import (
    PICTURES,
    days_figure,
    draw_all,
    gantt_figure,
    heat_figure,
    load_figure,
    ratio_figure,
    ratio_of,
    write,
)
from drom.scheduler.analysis.schedule import Schedule, schedule_of
from drom.scheduler.analysis.series import CORES, NODES, Grid, grid_of, unit_of
from drom.scheduler.errors import SchedulerError
from drom.scheduler.simulator.simulation import Machine
from drom.workloads.errors import WorkloadError
from drom.workloads.figures import save

from tests.support.schedules import Row, simulation

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

pytest.importorskip("matplotlib", reason="needs matplotlib")


def shared(sharing: str, until: int = 99_999) -> Schedule:
    """Return a schedule with a mate and its guest."""
    run = simulation([(0, 6000, 9000, 2), (1800, 1200, 1200, 2)], sharing, Machine(2, 48))
    run.run(until)
    return schedule_of(run)


def svg(figure: Figure) -> str:
    """Return a figure as text."""
    stream = io.BytesIO()
    save(figure, stream, "svg")
    return stream.getvalue().decode()


def test_shrunk_jobs_have_a_colour(sharing: str) -> None:
    """And the guest another, and both are named."""
    schedule = shared(sharing)
    text = svg(gantt_figure(schedule, "sd"))
    colours = np.asarray(gantt_figure(schedule, "sd").axes[0].collections[0].get_facecolor())

    assert len(np.unique(colours, axis=0)) == 3
    assert all(f"<!-- {name} -->" in text for name in ("alone on a node", "shrunk for a guest", "guest", "sd: 2 nodes"))


def test_a_picture_that_cannot_be_written_names_the_option(sharing: str, tmp_path: Path) -> None:
    """By which its place was given."""
    path = tmp_path / "none/gantt.png"
    with pytest.raises(SchedulerError) as refused:
        write(gantt_figure(shared(sharing), "sd"), path, "--gantt")

    assert str(refused.value) == f"{path} cannot be written: No such file or directory: name another --gantt."


def test_runs_side_by_side(sharing: str) -> None:
    """Each has a line and its name; the malleable starts of an hour are counted."""
    rigid = simulation([(0, 6000, 9000, 2), (1800, 1200, 1200, 2)], "easy", Machine(2, 48))
    rigid.run()
    runs = {"static": schedule_of(rigid), "sd": shared(sharing)}
    steps: list[Any] = list(days_figure(runs).axes[1].patches)
    starts = [step.get_data().values.tolist() for step in steps]

    assert starts == [[0, 0, 0], [1, 0, 0]]
    assert all(f"<!-- {name} -->" in svg(load_figure(runs)) for name in ("static", "sd", "Queue", "Utilisation"))
    assert "<!-- static / sd: above 1 sd is better -->" in svg(
        ratio_figure(("static", runs["static"]), ("sd", runs["sd"]), NODES)
    )


def test_ratios_by_class() -> None:
    """Where both have a mean above 0."""
    nothing = np.nan
    one = Grid(np.array([[4.0, 1, 0], [nothing, 2, 6]]), np.ones((2, 3), np.int64), ("1", "2"), ("a", "b", "c"))
    other = Grid(np.array([[2.0, nothing, 5]]), np.ones((1, 3), np.int64), ("1",), ("a", "b", "c"))

    assert np.array_equal(ratio_of(one, other).means, np.array([[2.0, nothing, nothing]]), equal_nan=True)
    assert ratio_of(one, other).sizes == ("1",)


def test_sizes_that_are_the_same_jobs_on_nodes_and_in_a_pool() -> None:
    """Where nodes differ both are classed by cores, and the axes say so; on the same nodes by nodes."""
    rows: list[Row] = [(0, 100, 100, 1), (0, 100, 100, 2)]
    nodes, pool = (simulation(rows, policy, Machine(4, 8)) for policy in ("easy", "equipartition"))
    nodes.run()
    pool.run()
    first, other = schedule_of(nodes), schedule_of(pool)
    unit = unit_of((first, other))
    sizes = [
        np.flatnonzero(grid_of(one, one.table["wait"], unit=unit).jobs.sum(axis=1)).tolist() for one in (first, other)
    ]

    assert sizes == [[3, 4], [3, 4]]
    assert (unit, unit_of((first, first))) == (CORES, NODES)
    for figure in (ratio_figure(("easy", first), ("equi", other), unit), heat_figure(first, "easy", unit)):
        assert [axes.get_ylabel() for axes in figure.axes[:3]] == ["cores"] * 3
    assert heat_figure(first, "easy").axes[0].get_ylabel() == "nodes"


def test_before_anything_has_started_or_ended(sharing: str, tmp_path: Path) -> None:
    """A partial schedule is drawn nevertheless."""
    draw_all(shared(sharing, 0), "sd", tmp_path, "png")
    idle = simulation([(5, 1, 1, 1)], "fcfs")
    idle.run(0)
    draw_all(schedule_of(idle), "fcfs", tmp_path, "pdf")

    assert {file.read_bytes()[:4] for file in tmp_path.iterdir() if file.suffix in {".png", ".pdf"}} == {
        b"\x89PNG",
        b"%PDF",
    }


def test_pictures_have_their_numbers_beside_them(sharing: str, tmp_path: Path) -> None:
    """And the same as SVG: series of each panel, and the classes of a heat map with their jobs."""
    draw_all(shared(sharing), "sd", tmp_path, "png")
    names = sorted(file.name for file in tmp_path.iterdir())
    tables = {name: read(tmp_path / f"{name}.csv") for name in ("load", "days", "heatmaps")}

    assert names == sorted(
        f"{name}.{kind}" for name in PICTURES for kind in ("png", "svg", "csv") if (name, kind) != ("gantt", "csv")
    )
    assert [row for row in tables["days"] if row[0] == "Malleable starts"] == [
        ["Malleable starts", "sd", "0", "1", ""],
        ["Malleable starts", "sd", "1", "0", ""],
        ["Malleable starts", "sd", "2", "0", ""],
    ]
    assert {row[0] for row in tables["load"][1:]} == {"Utilisation", "Queue"}
    slow = [row[1:] for row in tables["heatmaps"] if row[0].startswith("Mean slowdown")]
    assert slow == [
        ["Mean slowdown", "1 h", "2", "2.0"],
        ["Mean slowdown", "4 h", "2", "1.2"],
        ["jobs", "1 h", "2", "1"],
        ["jobs", "4 h", "2", "1"],
    ]


def read(path: Path) -> list[list[str]]:
    """Return the rows of a table."""
    with path.open(newline="") as stream:
        return list(csv.reader(stream))


def test_jobs_have_their_numbers_in_a_chart(sharing: str) -> None:
    """Also on whole nodes, where there is room."""
    text = svg(gantt_figure(shared(sharing), "sd"))

    assert text.count("<!-- 1 -->") >= 2
    assert "<!-- 2 -->" in text


@pytest.mark.parametrize(("nodes", "last"), [(1, "0"), (30, "29"), (31, "30"), (5040, "5,000")])
def test_nodes_are_numbered_at_the_axis(nodes: int, last: str) -> None:
    """At most 30 of them have their number, beside the middle of their row."""
    run = simulation([(0, 10, 10, 1)], "easy", Machine(nodes))
    run.run()
    axes = gantt_figure(schedule_of(run), "easy").axes[0]
    named = [label.get_text() for label in axes.get_yticklabels()]

    assert (named[0], named[-1]) == ("0", last)
    assert axes.get_yticks()[0] == 0.5
    assert len(named) <= 30


def test_where_nothing_can_be_written(sharing: str, tmp_path: Path) -> None:
    """A sentence names the file."""
    with pytest.raises(SchedulerError, match=r"gantt\.png cannot be written: No such file or directory"):
        draw_all(shared(sharing), "sd", tmp_path / "none", "png")


def test_a_chart_without_matplotlib_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever picture is drawn first."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(WorkloadError, match=r"^Drawing needs matplotlib: run pip install 'drom\[plots\]'\.$"):
        gantt_figure(None, "x")  # type: ignore[arg-type] # it is not looked at
