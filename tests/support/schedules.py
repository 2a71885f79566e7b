# SPDX-License-Identifier: Apache-2.0
"""Small workloads and what the simulator makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.simulator.leaving import NodeModel
from drom.scheduler.simulator.simulation import Machine, Simulation
from drom.workloads.workload import Workload, make_workload
from hypothesis import strategies as st

from tests.support.reference_schedules import Job

if TYPE_CHECKING:
    from collections.abc import Sequence

NODES = 8

SHARING = """
from drom.scheduler.interface import NEVER, NOBODY, SUBMITTED, nodes_of, place, resize, set_limit, start
import numpy as np

def decide(state, event, options, actions):
    jobs, free = state.jobs, state.free
    for job in state.queue:
        need = jobs.nodes[job]
        if need <= free:
            start(actions, job)
            free -= need
            continue
        nodes = np.empty(need, np.int64)
        count = 0
        for mate in state.running:
            for node in nodes_of(state, mate):
                if count < need and state.nodes.resident[node, 1] == NOBODY:
                    nodes[count] = node
                    count += 1
        guest = int(state.cores * options[0])
        for mate in state.running:
            mine = np.empty(need, np.int64)
            used = 0
            for node in nodes_of(state, mate):
                for other in nodes[:count]:
                    if other == node:
                        mine[used] = node
                        used += 1
            if used:
                resize(actions, mate, mine[:used], state.cores - guest)
                set_limit(actions, mate, jobs.limit[mate] + jobs.requested[job])
        place(actions, job, nodes[:count], guest)
        set_limit(actions, job, int(jobs.requested[job] / options[0]))
    return NEVER

OPTIONS = {"share": 0.5}
"""
"""A policy that starts whoever finds no free node as a guest of running jobs."""

Row = tuple[int, int, int, int]
"""Submit time, run time, requested time, nodes."""


def workload(rows: Sequence[Row], cores: int = 1) -> Workload:
    """Return a workload of these jobs, numbered from 1."""
    submit, run, requested, nodes = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    size = nodes * cores
    columns = {"submit": submit, "run_time": run, "requested_time": requested, "allocated": size}
    return make_workload(columns | {"requested_processors": size, "status": np.ones(len(size), np.int64)})


def simulation(
    rows: Sequence[Row],
    policy: str,
    machine: Machine | None = None,
    *choices: str,
    adaptive: NodeModel | None = None,
    least: Sequence[int] = (),
) -> Simulation:
    """Return a simulation of these jobs before its first event; `least` are their fewest nodes, if some may leave."""
    machine = machine or Machine(NODES)
    if least and adaptive is None:
        adaptive = NodeModel(stall=0, memory=0)
    run = Simulation.of(workload(rows, machine.cores), machine, load_policy(policy, choices), adaptive=adaptive)
    if least:
        run.world.jobs.least[:] = least
    return run


def starts(rows: Sequence[Row], policy: str, machine: Machine | None = None, *choices: str) -> list[int]:
    """Return when each job starts."""
    run = simulation(rows, policy, machine, *choices)
    run.run()
    started: list[int] = run.world.jobs.start.tolist()
    return started


def jobs_of(rows: Sequence[Row]) -> list[Job]:
    """Return the same jobs for the reference."""
    return [Job(number, *row) for number, row in enumerate(rows)]


@st.composite
def logs(draw: st.DrawFn, *, exact: bool = False, most: int = 25) -> list[Row]:
    """Draw a log of small jobs with many ties and much waiting."""
    rows, submit = [], 0
    for _ in range(draw(st.integers(1, most))):
        submit += draw(st.sampled_from((0, 0, 1, 2, 5, 11)))
        run = draw(st.integers(1, 12))
        slack = 0 if exact else draw(st.sampled_from((0, 0, 1, 5, 20)))
        rows.append((submit, run, run + slack, draw(st.integers(1, NODES))))
    return rows
