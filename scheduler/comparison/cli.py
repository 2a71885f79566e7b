# SPDX-License-Identifier: Apache-2.0
"""`drom compare-policies`. What needs numpy or numba is imported when the command runs."""

from __future__ import annotations

import sys
import tempfile
import textwrap
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from drom.agent.system.unix_signals import ended_by_sigterm
from drom.scheduler.cli.progress import Bar, saying
from drom.scheduler.cli.simulate import Contracts, Cores, Nodes, Rules
from drom.scheduler.errors import SchedulerError
from drom.workloads.cli import Log
from drom.workloads.files import json_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drom.scheduler.comparison.candidates import Candidate
    from drom.scheduler.comparison.table import Result
    from drom.scheduler.simulator.batch import Run


def compare_policies(
    log: Log,
    nodes: Nodes,
    cores: Cores = 1,
    policies: Annotated[
        str,
        typer.Option(metavar="A,B,...", help="Names or files, such as easy,sd(max_slowdown=5); default,cp adds cp."),
    ] = "default",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter of all policies that have it, such as depth=50."),
    ] = None,
    contracts: Contracts = None,
    rule: Rules = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Simulations to run at once; default: one per CPU.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="The folder for the results, with a folder for each policy."),
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report with pictures to one file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Simulate a log under all policies, several at once; print one table."""
    from drom.scheduler.analysis.page import check_place
    from drom.scheduler.analysis.results import write_value
    from drom.scheduler.comparison import table
    from drom.scheduler.comparison.candidates import candidates, with_parameters
    from drom.workloads.figures import require

    if html is not None:
        require()
        check_place(html, "--html")
    chosen = with_parameters(candidates(policies, contracts=bool(contracts), cores=cores), set_ or ())
    common = [word for one in rule or () for word in ("--rule", one)]
    common += [word for one in contracts or () for word in ("--contracts", one)]
    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="drom-policies-")))
        runs = {one.run(log, nodes, cores, common, folder): one for one in chosen}
        faults, interrupted = _simulate(runs, jobs)
        results = _results(runs, faults)
        told = table.to_json(str(log), nodes, cores, results)
        _print(results, json_text(told) if json else None)
        if out is not None:
            write_value(told, out / "policies.json")
        if html is not None and any(result.figures for result in results) and not interrupted:
            _draw(f"{log.name}: {nodes:,} nodes of {cores}", results, folder, html)
    if interrupted:
        typer.echo("drom: interrupted: the results of the completed policies are kept.", err=True)
        raise typer.Exit(130)
    if faults:
        raise typer.Exit(1)


def _simulate(runs: dict[Run, Candidate], at_once: int | None) -> tuple[dict[Run, str], bool]:
    """Make all runs; return the reasons of failed ones, and whether the runs were interrupted.

    Raises SchedulerError if all fail for the same reason.
    """
    from drom.scheduler.analysis.results import prepare
    from drom.scheduler.gap_filling import simulation
    from drom.scheduler.simulator.batch import compile_before, run_all

    for run in runs:
        prepare(run.folder)
    compile_before((one.policy for one in runs.values()), _say)
    if any("--fill" in one.options for one in runs.values()):
        simulation.compile_before(_say)
    faults: dict[Run, str] = {}
    bar = Bar(sys.stderr, f"simulating {len(runs)} policies")
    try:
        with ended_by_sigterm():
            run_all(list(runs), at_once, bar.show, lambda run, error: faults.update({run: str(error)}))
    except KeyboardInterrupt:
        return faults, True
    finally:
        bar.clear()
    if len(faults) == len(runs) and len(set(faults.values())) == 1:
        raise SchedulerError(next(iter(faults.values())))
    return faults, False


def _say(announced: str) -> None:
    typer.echo(f"drom: {announced}", err=True)


def _results(runs: dict[Run, Candidate], faults: dict[Run, str]) -> list[Result]:
    from drom.scheduler.analysis.results import load
    from drom.scheduler.comparison.table import Result, result_of

    found = []
    for run, contender in runs.items():
        if run in faults:
            found.append(Result(contender, {}, faults[run]))
        elif not (run.folder / "summary.json").exists():
            found.append(Result(contender, {}, "interrupted"))
        else:
            found.append(result_of(contender, load(run.folder)))
    return found


def _print(results: Sequence[Result], told: str | None) -> None:
    from drom.agent.cli import output
    from drom.scheduler.comparison.table import UNITS, lines, notes

    if told is not None:
        typer.echo(told)
        return
    width = output.width()
    said = notes(results)
    if any(result.figures for result in results):
        said.insert(0, UNITS)
        for line in lines(results, width):
            typer.echo(line)
    for note in said:
        typer.echo(textwrap.fill(note, width, subsequent_indent="  ") if width else note)


def _draw(title: str, results: Sequence[Result], folder: Path, html: Path) -> None:
    from drom.scheduler.comparison.page import write_comparison

    with saying("drawing"):
        write_comparison(title, results, folder, html)
    typer.echo(f"report written to {html}", err=True)
