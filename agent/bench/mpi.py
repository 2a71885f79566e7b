# SPDX-License-Identifier: Apache-2.0
"""Measure what an unmodified MPI program pays for being malleable at its MPI calls."""

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
    """Tell whether drom was built with an MPI library at hand."""
    try:
        return native.bench_path("mpi").exists()
    except FileNotFoundError:
        return False


def extra_call_ns(agent: Agent, repetitions: int = REPETITIONS) -> float:
    """Return the nanoseconds that a call of MPI takes longer under `drom-run`, its grant unchanged.

    The same function is called by its name for tools (PMPI) in turns, in the same process. Of a call whose parameters
    fit in registers and one whose do not, the slower counts. Raises `ControlError` when the program fails.
    """
    with agent.launch(native.bench_path("mpi"), str(repetitions)) as program:
        said, _ = program.communicate(timeout=publish.PATIENCE)
    if program.returncode:
        raise ControlError("the MPI program of the benchmark has failed: its words stand above.")
    rows = [[float(word) for word in line.split()] for line in said.splitlines()]
    return max(statistics.median(row[call] for row in rows) for call in range(len(rows[0])))
