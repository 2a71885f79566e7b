# SPDX-License-Identifier: Apache-2.0
"""The options of `drom submit`, and the request that they make."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from drom.agent.cli.parameters import AsJson, optional, reader
from drom.agent.execution.protocol import CONTAINER
from drom.scheduler.live.cli.submit_script import INPUT
from drom.scheduler.live.cluster.node_lists import parse_nodes
from drom.scheduler.live.cluster.spec import (
    MOST,
    Dependency,
    Spec,
    exported,
    parse_amounts,
    parse_array,
    parse_class,
    parse_contract,
    parse_dependencies,
    parse_features,
    parse_memory,
    parse_notice,
    parse_pattern,
    parse_time,
)

_OURS = {"DROM_TASK", "DROM_CPUS", "DROM_RUNTIME_DIR"}
"""Variables that belong to the place of submission, and are not passed to a job."""


def _chosen(text: str) -> dict[str, str]:
    """Return the variables of this process that `text` chooses for a job."""
    return exported(text, {name: value for name, value in os.environ.items() if name not in _OURS})


IN_ARRAY = "drom-%A_%a.out"
"""The file for the output of a job in an array, unless another is given."""


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """The options of `drom submit`."""

    nodes: int | None = typer.Option(
        None, "--nodes", "-N", min=1, max=MOST, help="Number of nodes; default: as many as the tasks need."
    )
    min_nodes: int | None = typer.Option(
        None,
        min=1,
        max=MOST,
        help="Fewest nodes of an adaptive MPI job, under policies such as sd: it may leave the others.",
    )
    tasks: int | None = typer.Option(None, "--tasks-per-node", min=1, max=MOST, help="Tasks on each node.")
    ranks: int | None = typer.Option(None, "--ntasks", "-n", min=1, max=MOST, help="Tasks on all nodes together.")
    least: int | None = typer.Option(
        None,
        "--min",
        min=1,
        max=MOST,
        help="Fewest cores of an adaptive MPI job, under policies such as equipartition.",
    )
    most: int | None = typer.Option(None, "--max", min=1, max=MOST, help="Most cores of an adaptive MPI job.")
    threads: int | None = typer.Option(None, "--cpus-per-task", "-c", min=1, max=MOST, help="Cores for each task.")
    limit: int | None = typer.Option(
        None, "--time", "-t", metavar="TIME", help="Time limit: minutes, H:M:S, 90s, 2h.", parser=reader(parse_time)
    )
    name: str = typer.Option("", "--job-name", "-J", help="The job's name; default: that of its program.")
    job_class: str = typer.Option(
        "malleable", "--class", metavar="CLASS", help="malleable, moldable or rigid.", parser=reader(parse_class)
    )
    priority: int = typer.Option(
        0,
        min=-MOST,
        max=MOST,
        help="Jobs of higher priority come first; above 0 only for root and the scheduler's owner.",
    )
    dependency: Sequence[Dependency] | None = typer.Option(
        None,
        "--dependency",
        "-d",
        metavar="KIND:JOB,...",
        help="The jobs to wait for, such as afterok:12, or afterok:12_3 in an array.",
        parser=reader(parse_dependencies),
    )
    partition: str = typer.Option("", "--partition", "-p", metavar="NAME", help="The partition in which it runs.")
    home: str = typer.Option(
        "",
        "--home-partition",
        metavar="NAME",
        help="The home partition in which it runs; default: that of the scheduler that answers.",
    )
    constraint: Sequence[str] | None = typer.Option(
        None,
        "--constraint",
        "-C",
        metavar="NAMES",
        help="Features that its nodes must have, such as bigmem,fast.",
        parser=reader(parse_features),
    )
    nodelist: Sequence[str] | None = typer.Option(
        None,
        "--nodelist",
        "-w",
        metavar="NODES",
        help="The nodes among which it gets its own, such as n1,n[3-5].",
        parser=reader(parse_nodes),
    )
    exclude: Sequence[str] | None = typer.Option(
        None, "--exclude", "-x", metavar="NODES", help="Nodes that it does not get.", parser=reader(parse_nodes)
    )
    memory: int | None = typer.Option(
        None,
        "--mem",
        metavar="SIZE",
        help="Memory on each node, such as 4G; a bare number is MiB.",
        parser=reader(parse_memory),
    )
    resources: dict[str, int] | None = typer.Option(
        None, metavar="NAME=N,...", help="Counted resources of each node, such as gpu=2.", parser=reader(parse_amounts)
    )
    export: dict[str, str] | None = typer.Option(
        None,
        metavar="ALL|NONE|NAME[=VALUE],...",
        help="The environment variables to pass to the job; default: all.",
        parser=reader(_chosen),
    )
    stdout: str = typer.Option(
        Spec().output,
        "--output",
        "-o",
        metavar="FILE",
        help="The file for its output; %j is its number.",
        parser=reader(parse_pattern),
    )
    stderr: str | None = typer.Option(
        None,
        "--error",
        "-e",
        metavar="FILE",
        help="The file for its errors; default: that of the output.",
        parser=reader(parse_pattern),
    )
    stdin: str | None = typer.Option(
        None,
        "--input",
        "-i",
        metavar="FILE",
        help="The file for its input; default: none.",
        parser=reader(parse_pattern),
    )
    chdir: Path | None = typer.Option(
        None,
        "--chdir",
        "-D",
        metavar="DIR",
        readable=False,
        help="The folder in which it runs; default: the current one.",
    )
    filler: bool = typer.Option(
        False, "--filler", help="Run in the gaps that regular jobs leave; it is saved when they need its node."
    )
    checkpoint: str = typer.Option(
        "",
        metavar="WAY",
        help="How a filler is saved: container (default), by CRIU, or program, by itself on SIGUSR1, exiting with 85.",
    )
    signal: str = typer.Option(
        "",
        metavar="[B:]SIGNAL[@SECONDS]",
        help="Send a signal so many seconds (60) before the limit to its tasks, or with B: to the shell of its script.",
        parser=reader(optional(parse_notice, "")),
    )
    contract: str = typer.Option(
        "",
        metavar="SOFT,HARD,PAYOFF[,PENALTY]",
        help="What the job pays, under --policy payoff: all if it ends by SOFT, less until HARD, then the penalty.",
        parser=reader(optional(parse_contract, "")),
    )
    no_requeue: bool = typer.Option(False, "--no-requeue", help="Fail if a node is lost, instead of starting again.")
    hold: bool = typer.Option(False, "--hold", "-H", help="Do not start the job before drom hold --release.")
    count: int = typer.Option(1, min=1, max=10_000, help="Submit this many copies of the job.")
    array: str | None = typer.Option(
        None,
        "--array",
        "-a",
        metavar="INDICES",
        help="Submit a job for each index: 0-99, 1,5,20-30:5; 0-99%10 runs ten at once.",
        parser=reader(parse_array),
    )
    wait: bool = typer.Option(
        False, "--wait", "-W", help="Wait for the end, and exit with the job's status; of several jobs, the largest."
    )
    pty: bool = typer.Option(
        False, "--pty", help="Run it on this terminal, and exit with its status: an interactive program, such as bash."
    )
    parsable: bool = typer.Option(False, "--parsable", help="Print only the job's number, one per line.")
    json: AsJson = False

    @property
    def contradiction(self) -> str:
        """Why these options cannot be given together; empty if they can."""
        if self.array and self.count > 1:
            return "--array and --count contradict each other: give one of them."
        if self.checkpoint and not self.filler:
            return "--checkpoint says how a filler is saved: add --filler, or leave it out."
        if self.parsable and self.json:
            return "--parsable and --json contradict each other: give one of them."
        given = {
            "--array": self.array,
            "--count": self.count > 1,
            "--output": self.stdout != Spec().output,
            "--error": self.stderr,
            "--input": self.stdin,
            "--parsable": self.parsable,
            "--json": self.json,
        }
        others = [name for name, value in given.items() if value] if self.pty else []
        return f"--pty and {others[0]} contradict each other: give one of them." if others else ""

    def spec(self, words: list[str], script: str) -> Spec:
        """Return the request for a job that runs `words`, or `script` with the arguments `words[1:]`."""
        return Spec(
            command=tuple(words[1:] if script else words),
            script=script,
            name=self.name or (("stdin" if words[0] == INPUT else Path(words[0]).name) if script else ""),
            nodes=self.nodes or 0,
            min_nodes=self.min_nodes or 0,
            tasks=self.tasks or 0,
            ranks=self.ranks or 0,
            least=self.least or 0,
            most=self.most or 0,
            threads=self.threads or 0,
            time=self.limit or 0,
            job_class=self.job_class,
            priority=self.priority,
            after=tuple(self.dependency or ()),
            constraint=tuple(self.constraint or ()),
            nodelist=tuple(self.nodelist or ()),
            exclude=tuple(self.exclude or ()),
            partition=self.partition,
            memory=self.memory or 0,
            resources=self.resources or {},
            output=IN_ARRAY if self.array and self.stdout == Spec().output else self.stdout,
            error=self.stderr or "",
            input=self.stdin or "",
            folder=str((self.chdir or Path()).absolute()),
            environment=_chosen("ALL") if self.export is None else self.export,
            umask=_umask(),
            requeue=not self.no_requeue,
            hold=self.hold,
            array=self.array or "",
            saving=(self.checkpoint or CONTAINER) if self.filler else "",
            signal=self.signal,
            contract=self.contract,
        )


def _umask() -> int:
    """Return the umask of this process, which can only be read by setting it."""
    found = os.umask(0o077)
    os.umask(found)
    return found
