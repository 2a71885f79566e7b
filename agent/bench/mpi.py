# SPDX-License-Identifier: Apache-2.0
"""Measure the cost for an unmodified MPI program of being malleable at its MPI calls."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from drom.agent.bench import publish
from drom.agent.errors import ControlError

from dromlib import native

if TYPE_CHECKING:
    from drom.agent.bench.agent import Agent

REPETITIONS = 5


def is_possible() -> bool:
    """Return whether MPI programs can be compiled here."""
    try:
        native.bench_path("mpi")
    except FileNotFoundError:
        return False
    return True


def extra_call_ns(agent: Agent, repetitions: int = REPETITIONS) -> float:
    """Return the extra nanoseconds of an MPI call under `drom-run`, with an unchanged grant.

    The same process alternately calls the same function by its name for tools (PMPI). Of a call with parameters that
    fit in registers and one with more, the slower counts. Raises `ControlError` if the program fails.
    """
    with agent.launch(native.bench_path("mpi"), str(repetitions)) as program:
        said, _ = program.communicate(timeout=publish.PATIENCE)
    if program.returncode:
        raise ControlError("the MPI program of the benchmark has failed: its words stand above.")
    rows = [[float(word) for word in line.split()] for line in said.splitlines()]
    return max(statistics.median(row[call] for row in rows) for call in range(len(rows[0])))
