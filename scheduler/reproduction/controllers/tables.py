# SPDX-License-Identifier: Apache-2.0
"""The results of the model beside those of SLURM and SLURM++: as text, JSON and pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drom.agent.text import table
from drom.scheduler.analysis import plots
from drom.scheduler.reproduction.controllers import paper
from drom.scheduler.reproduction.controllers.model import WORKLOADS
from drom.workloads.figures import COLOURS, blank, name_axes, record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from drom.scheduler.analysis.estimates import Estimate
    from drom.scheduler.reproduction.controllers.experiment import Point, Results
    from drom.scheduler.reproduction.controllers.world import Costs
    from matplotlib.axes import Axes


def lines(found: Results) -> Iterator[str]:
    """Yield the tables, each value with half of its 95 % interval."""
    yield "Figures 2 to 9: jobs/s with one controller and with one for each 50 nodes, and messages to the store per job"
    yield "The nodes bound jobs/s, whatever controllers do. Algorithm 2 is the paper's way to take nodes of others"
    heads = ["jobs", "nodes", "SLURM", "one", "SLURM++", "many", "gain", "Algorithm 2", "bound"]
    heads += ["messages, paper", "messages"]
    yield from table(heads, list(_figure_rows(found.figures)), " " + ">" * 10)
    yield ""
    yield "What each option does, for jobs that take nodes of other controllers"
    names = ("throughput", "bound", "seconds", "messages", "allocate", "conflicts", "releases")
    heads = ["jobs", "option", "jobs/s", "bound", "all, s", "messages", "to allocate, s", "conflicts", "releases"]
    rows = [[one.workload, one.options, *(_text(one.values[name]) for name in names)] for one in found.options]
    yield from table(heads, rows, "  " + ">" * len(names))
    yield ""
    yield "Very many controllers, small jobs: shares of its time in which the store, and a controller, work"
    rows = [
        [
            f"{one.setup.controllers:,}",
            f"{one.setup.nodes:,}",
            str(one.setup.store_cores),
            f"{one.values['throughput'].mean:,.0f}",
            f"{one.values['messages'].mean:.2f}",
            f"{one.values['store'].mean:.0%}",
            f"{one.values['busiest'].mean:.0%}",
        ]
        for one in found.scales
    ]
    heads = ["controllers", "nodes of each", "stores", "jobs/s", "messages", "store", "busiest"]
    yield from table(heads, rows, ">" * len(heads))
    rate, count, messages = paper.MTC_THROUGHPUT, paper.MTC_CONTROLLERS, paper.MTC_MESSAGES
    yield f"paper, extrapolated: {rate:,.0f} jobs/s with {count:,} controllers of a node, {messages:g} messages per job"


def _figure_rows(found: Sequence[Point]) -> Iterator[list[str]]:
    for one, many, theirs in zip(found[::3], found[1::3], found[2::3], strict=True):
        name, nodes = one.workload, one.setup.nodes
        gain = many.values["throughput"].mean / one.values["throughput"].mean
        given = (table.get(name, {}).get(nodes) for table in (paper.ONE, paper.MANY, paper.MESSAGES))
        slurm, plus, messages = ("" if value is None else f"{value:g}" for value in given)
        ours = _text(one.values["throughput"]), _text(many.values["throughput"]), _text(many.values["messages"])
        other, most = _text(theirs.values["throughput"]), f"{one.values['bound'].mean:,.4g}"
        yield [name, str(nodes), slurm, ours[0], plus, ours[1], f"{gain:.1f} x", other, most, messages, ours[2]]


def _text(value: Estimate) -> str:
    return f"{value.mean:.3g} ± {round(value.half, 6):.2g}"


def to_json(found: Results, seed: int, costs: Costs) -> dict[str, Any]:
    """Return all results as JSON values."""
    told = {name: [_told(one) for one in points] for name, points in found._asdict().items()}
    return {"schema_version": 1, "seed": seed, "costs_s": costs._asdict(), **told}


def _told(one: Point) -> dict[str, Any]:
    values = {name: value._asdict() for name, value in one.values.items()}
    return {"workload": one.workload, "options": one.options, **one.setup._asdict(), "values": values}


def draw(found: Results, folder: Path) -> None:
    """Write controllers.png, with SVG and numbers beside it. Raises WorkloadError without matplotlib."""
    figure = blank(11, 6.5, "Controllers: drom's model, and the paper's SLURM and SLURM++ (crosses)")
    panels = figure.subplots(2, len(WORKLOADS), squeeze=False)
    for column, workload in enumerate(WORKLOADS):
        points = [one for one in found.figures if one.workload == workload.name]
        upper, lower = panels[0][column], panels[1][column]
        numbers = paper.FIGURES[workload.name]
        for colour, label, part, given in (
            (COLOURS[0], "one controller", points[::3], paper.ONE),
            (COLOURS[1], "a controller for each 50 nodes", points[1::3], paper.MANY),
        ):
            _curve(upper, label, colour, part, "throughput")
            _crosses(upper, f"paper, {label}", colour, given[workload.name])
        _curve(lower, "messages", COLOURS[1], points[1::3], "messages")
        _crosses(lower, "paper", COLOURS[1], paper.MESSAGES[workload.name])
        upper.set_yscale("log")
        name_axes(upper, f"Figure {numbers[0]}: {workload.name} jobs", "", "jobs per second")
        name_axes(lower, f"Figure {numbers[1]}: {workload.name} jobs", "nodes", "messages per job")
        lower.set_ylim(bottom=0)
    panels[0][0].legend(frameon=False, fontsize=8)
    plots.write_picture(figure, folder / "controllers.png")


def _curve(axes: Axes, label: str, colour: str, points: Sequence[Point], name: str) -> None:
    nodes = [one.setup.controllers * one.setup.nodes for one in points]
    means, halves = zip(*(one.values[name] for one in points), strict=True)
    axes.errorbar(nodes, means, halves, color=colour, marker="o", markersize=4, capsize=3, label=label)
    record(axes, label, nodes, means, halves)


def _crosses(axes: Axes, label: str, colour: str, given: dict[int, float]) -> None:
    axes.plot(list(given), list(given.values()), "x", color=colour)
    record(axes, label, given, given.values())
