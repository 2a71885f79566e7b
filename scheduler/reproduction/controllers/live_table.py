# SPDX-License-Identifier: Apache-2.0
"""What real schedulers cost, and how well the model fits their runs, as text and JSON."""

from __future__ import annotations

from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Any

from drom.agent.text import table
from drom.scheduler.reproduction.controllers.live import SINGLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drom.scheduler.reproduction.controllers.live import Measured, Run

_COSTS = {
    "message": "a controller, for a message to the store",
    "job": "a controller, for a job",
    "node": "a controller, for a node of a job",
    "beat": "a controller, for a heartbeat",
    "store": "the store's leader, for a message",
    "store_job": "the store's leader, for a job",
    "store_node": "the store's leader, for a node of a job",
    "latency": "a small message to the store and back",
    "start": "a program on a node until it runs",
    "launch": "a program that does nothing on a node",
    "agent": "what another node adds to that",
}


def lines(found: Measured) -> Iterator[str]:
    """Yield the costs, and the medians of real runs beside the model."""
    yield "What it costs, in ms: CPU times of controllers and store, the others from begin to end"
    rows = [[words, f"{1e3 * getattr(found.costs, name):.3f}"] for name, words in _COSTS.items()]
    yield from table(["", "ms"], rows, " >")
    yield ""
    yield "Real runs and the model: medians with extremes, all on this machine, without stealing. The model has the"
    yield "waits of each run: for how long controllers ran or waited for a core, for each second of their CPU time"
    heads = (
        "controllers",
        "nodes",
        "CPU s",
        "model",
        "",
        "messages",
        "model",
        "",
        "seconds",
        "model",
        "",
        "waits",
        "load",
    )
    yield from table(["jobs", *heads], [_row(found, runs) for runs in _grouped(found)], " " + ">" * len(heads))


def _grouped(found: Measured) -> Iterator[list[Run]]:
    """Yield the runs with each setup and workload, except those of one job after the other."""
    for _, runs in groupby(found.runs, lambda run: (run.setup, run.workload)):
        same = list(runs)
        if same[0].workload != SINGLE:
            yield same


def _row(found: Measured, runs: list[Run]) -> list[str]:
    first, models = runs[0], [found.predicted(run) for run in runs]
    real = {
        "cpu": [run.used.controllers for run in runs],
        "messages": [run.used.messages / len(run.sizes) for run in runs],
        "seconds": [run.seconds for run in runs],
    }
    return [
        first.workload,
        str(first.setup.controllers),
        str(first.setup.nodes),
        *(cell for name, values in real.items() for cell in _compared(values, [getattr(one, name) for one in models])),
        _spread([run.conditions.controllers for run in runs]),
        _spread([run.load for run in runs]),
    ]


def _compared(real: list[float], model: list[float]) -> tuple[str, str, str]:
    """Return what was measured, what the model says of these runs, and by how much it differs."""
    differs = median(said / was - 1 for said, was in zip(model, real, strict=True))
    return _spread(real), f"{median(model):.3g}", f"{differs:+.0%}"


def _spread(values: list[float]) -> str:
    return f"{median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def to_json(found: Measured, seed: int) -> dict[str, Any]:
    """Return all results as JSON values."""
    costs = {"costs_s": found.costs._asdict()}
    rows = [
        run._asdict()
        | {name: getattr(run, name)._asdict() for name in ("setup", "used", "conditions")}
        | {"model": _model(found, run)}
        for run in found.runs
    ]
    return {"schema_version": 1, "seed": seed, **costs, "runs": rows}


def _model(found: Measured, run: Run) -> dict[str, float] | None:
    return None if run.workload == SINGLE else found.predicted(run)._asdict()
