# SPDX-License-Identifier: Apache-2.0
"""The options of `drom update`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import typer
from drom.agent.cli.parameters import AsJson, optional, reader
from drom.scheduler.live.cluster.node_lists import parse_nodes
from drom.scheduler.live.cluster.spec import (
    MOST,
    Dependency,
    parse_dependencies,
    parse_features,
    parse_memory,
    parse_time,
)


@dataclass(frozen=True, slots=True)
class UpdateOptions:
    """The options of `drom update`: those of `drom submit` that can change; without a value they change nothing."""

    limit: int | None = typer.Option(
        None, "--time", "-t", metavar="TIME", help="Time limit.", parser=reader(optional(parse_time, 0))
    )
    nodes: int | None = typer.Option(None, "--nodes", "-N", min=1, max=MOST, help="Number of nodes.")
    min_nodes: int | None = typer.Option(None, min=0, max=MOST, help="Fewest nodes of an adaptive MPI job; 0: all.")
    tasks: int | None = typer.Option(None, "--tasks-per-node", min=1, max=MOST, help="Tasks on each node.")
    ranks: int | None = typer.Option(None, "--ntasks", "-n", min=1, max=MOST, help="Tasks on all nodes together.")
    least: int | None = typer.Option(None, "--min", min=1, max=MOST, help="Fewest cores of an adaptive MPI job.")
    most: int | None = typer.Option(None, "--max", min=1, max=MOST, help="Most cores of an adaptive MPI job.")
    threads: int | None = typer.Option(None, "--cpus-per-task", "-c", min=1, max=MOST, help="Cores for each task.")
    memory: int | None = typer.Option(
        None, "--mem", metavar="SIZE", help="Memory on each node.", parser=reader(optional(parse_memory, 0))
    )
    partition: str | None = typer.Option(None, "--partition", "-p", metavar="NAME", help="The partition.")
    constraint: Sequence[str] | None = typer.Option(
        None,
        "--constraint",
        "-C",
        metavar="NAMES",
        help="Features that its nodes must have.",
        parser=reader(optional(parse_features, ())),
    )
    nodelist: Sequence[str] | None = typer.Option(
        None,
        "--nodelist",
        "-w",
        metavar="NODES",
        help="The nodes among which it gets its own.",
        parser=reader(optional(parse_nodes, ())),
    )
    exclude: Sequence[str] | None = typer.Option(
        None,
        "--exclude",
        "-x",
        metavar="NODES",
        help="Nodes that it does not get.",
        parser=reader(optional(parse_nodes, ())),
    )
    priority: int | None = typer.Option(
        None, min=-MOST, max=MOST, help="Its priority; above 0 only by root and the scheduler's owner."
    )
    name: str | None = typer.Option(None, "--job-name", "-J", help="The job's name.")
    dependency: Sequence[Dependency] | None = typer.Option(
        None,
        "--dependency",
        "-d",
        metavar="KIND:JOB,...",
        help="The jobs to wait for, all submitted before it.",
        parser=reader(optional(parse_dependencies, ())),
    )
    json: AsJson = False

    def changes(self) -> dict[str, object]:
        """Return the values that were given, by field of a specification."""
        values = {
            "time": self.limit,
            "nodes": self.nodes,
            "min_nodes": self.min_nodes,
            "tasks": self.tasks,
            "ranks": self.ranks,
            "least": self.least,
            "most": self.most,
            "threads": self.threads,
            "memory": self.memory,
            "constraint": self.constraint,
            "priority": self.priority,
            "name": self.name,
            "after": self.dependency,
            "nodelist": self.nodelist,
            "exclude": self.exclude,
            "partition": self.partition,
        }
        return {name: value for name, value in values.items() if value is not None}
