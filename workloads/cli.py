# SPDX-License-Identifier: Apache-2.0
"""`drom workload`: make, inspect, filter, convert and draw workloads. What needs numpy is imported by the commands."""

from __future__ import annotations

import json as json_text
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from drom.workloads.errors import WorkloadError, counted
from drom.workloads.limits import MOST_CORES, MOST_JOBS, MOST_NODES

if TYPE_CHECKING:
    from drom.workloads.cleaning import Machine
    from drom.workloads.workload import Workload

app = typer.Typer(help="Make, inspect, filter, convert and draw workloads.", no_args_is_help=False)

_PATIENCE_S = 2.0

Log = Annotated[
    Path, typer.Argument(metavar="LOG", help="A log: SWF, a .csv table, or one of Slurm, PBS or Batsim; plain or gzip.")
]
Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write: .swf or .csv, either with .gz.")
]
Nodes = Annotated[int | None, typer.Option("--nodes", metavar="N", min=1, help="Nodes of the machine.")]
Cores = Annotated[int, typer.Option("--cores", metavar="N", min=1, help="Cores of a node.")]
RuleOptions = Annotated[
    list[str] | None,
    typer.Option("--rule", metavar="NAME=CHOICE", help="Choose a cleaning rule, such as overrun=keep."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="The same seed gives the same jobs.")]


def _read(path: Path, name: str = "", zone: str = "UTC") -> Workload:
    """Read a log in the format `name`; if it takes long, show the progress on a terminal."""
    from drom.workloads.logs import read_log

    if not sys.stderr.isatty():
        return read_log(path, None, name, zone)
    started, total = time.monotonic(), path.stat().st_size
    shown = False

    def show(done: int) -> None:
        nonlocal shown
        if total and time.monotonic() - started > _PATIENCE_S:
            shown = True
            typer.echo(f"\rreading {path.name}: {done / total:4.0%}", nl=False, err=True)

    try:
        return read_log(path, show, name, zone)
    finally:
        if shown:
            typer.echo("\r\033[K", nl=False, err=True)


def _write(workload: Workload, out: Path, name: str = "") -> None:
    from drom.workloads.logs import write_log

    write_log(workload, out, name)
    typer.echo(f"{counted(len(workload), 'job')} written to {out}", err=True)


def _machine(nodes: int | None, cores: int) -> Machine | None:
    from drom.workloads.cleaning import Machine

    if nodes is None and cores != 1:
        raise typer.BadParameter("--cores has no effect without --nodes.")
    return None if nodes is None else Machine(nodes, cores)


@app.command()
def info(log: Log, rule: RuleOptions = None, nodes: Nodes = None, cores: Cores = 1, json: AsJson = False) -> None:
    """Show the contents of a log, and the effect of cleaning it."""
    from drom.workloads.cleaning import parse_rules
    from drom.workloads.summary import summary

    value = summary(_read(log), parse_rules(rule or ()), _machine(nodes, cores))
    if json:
        typer.echo(json_text.dumps(value))
    else:
        for line in description(value):
            typer.echo(line)


def description(value: dict[str, Any]) -> list[str]:
    """Return a summary as lines of text."""
    machine = value["machine"]
    size = (
        f"machine: unknown, the largest job has {value['largest_job']:,} processors: name it with --nodes and --cores"
    )
    if machine["processors"] is not None:
        size = f"machine: {machine['processors']:,} processors ({machine['from']}), load {value['load']:.1%}"
    lines = [f"{value['source']}: {counted(value['jobs'], 'job')}, {counted(value['comments'], 'comment line')}"]
    lines += [f"  {key}: {text}" for key, text in value["header"].items()]
    lines += [
        size,
        f"begins: {value['begins'] or 'unknown'}, first submission at {value['first_submit_s']:,} s",
        f"span: {value['submit_span_s']:,} s of submissions, makespan at least {value['least_makespan_s']:,} s"
        + (f", {value['recorded_makespan_s']:,} s as recorded" if value["recorded_makespan_s"] is not None else ""),
        f"users: {value['users']:,}; serial jobs {value['serial']:.1%}, powers of two {value['powers_of_two']:.1%}",
        "status: " + ", ".join(f"{status}: {number:,}" for status, number in value["status"].items()),
        "",
    ]
    columns = ("known", "mean", "min", "p10", "median", "p90", "p99", "max")
    lines.append(f"{'':16}" + "".join(f"{column.upper():>14}" for column in columns))
    for name, found in value["distributions"].items():
        cells = ["-"] * len(columns) if found is None else [_number(found[column]) for column in columns]
        lines.append(f"{name:16}" + "".join(f"{cell:>14}" for cell in cells))
    report = value["cleaning"]
    kept = f"keeps {report['jobs_out']:,} of {counted(report['jobs_in'], 'job')}:"
    if any(finding["choice"] == "refuse" for finding in report["findings"]):
        kept = "rejects the log: choose another rule, or correct the log:"
    lines += ["", f"Cleaning {kept}"]
    lines += [f"  {finding['sentence']}" for finding in report["findings"]] or ["  nothing to clean"]
    return lines + [f"warning: {sentence}" for sentence in value["warnings"]]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


@app.command(name="filter")
def filter_logs(
    logs: Annotated[list[Path], typer.Argument(metavar="LOG...", help="Logs; several are merged.")],
    out: Out,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help='Keep jobs such as "run_time>3600 and processors<=64".'),
    ] = None,
    jobs: Annotated[str | None, typer.Option(metavar="RANGES", help="Keep job numbers such as 415000-424999.")] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Keep jobs submitted at or after this time.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="TIME", help="Keep jobs submitted before this time: seconds, or a date.")
    ] = None,
    first: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Keep the first N of the remaining jobs.")
    ] = None,
    shift: Annotated[bool, typer.Option("--shift", help="Shift the times so that the first job arrives at 0.")] = False,
    scale_arrivals: Annotated[
        float,
        typer.Option(
            metavar="FACTOR", help="Multiply the times between arrivals; a factor below 1 increases the load."
        ),
    ] = 1.0,
    clean: Annotated[bool, typer.Option("--clean", help="Apply the cleaning rules at the end.")] = False,
    rule: RuleOptions = None,
    nodes: Nodes = None,
    cores: Cores = 1,
) -> None:
    """Write the jobs of logs that meet all conditions; a comment lists the changes."""
    from drom.workloads import cleaning, selection
    from drom.workloads.where import matching

    rules = cleaning.parse_rules(rule or ())
    if not clean and (rule or nodes or cores != 1):
        raise typer.BadParameter("--rule, --nodes and --cores have no effect without --clean.")
    whole = selection.merge([_read(log) for log in logs]) if len(logs) > 1 else _read(logs[0])
    work = whole
    for condition in where or ():
        work = work.take(matching(work, condition))
    if jobs is not None:
        work = work.take(selection.in_ranges(work.job, jobs))
    bounds = [None if text is None else selection.instant(whole, text) for text in (from_, to)]
    work = selection.window(work, *bounds)
    work = work.take(slice(first))
    if not len(work):
        msg = f"No job of {whole.source} is left: nothing is written."
        raise WorkloadError(msg)
    if scale_arrivals != 1:
        work = selection.scale_arrivals(work, scale_arrivals)
    if shift:
        work = selection.shift_to_zero(work)
    if clean:
        work, report = cleaning.clean(work, rules, _machine(nodes, cores))
        for finding in report.findings:
            typer.echo(finding.sentence, err=True)
    chosen = {"where": where, "jobs": jobs, "from": from_, "to": to, "first": first, "shift": shift, "clean": clean}
    words = [f"{name}={value}" for name, value in chosen.items() if value]
    words += [f"scale-arrivals={scale_arrivals:g}"] if scale_arrivals != 1 else []
    note = f"; Note: drom workload filter {' '.join(words)}: {len(work):,} of {counted(len(whole), 'job')}"
    _write(work.with_comments(note), out)


@app.command()
def convert(
    log: Log,
    out: Annotated[
        Path, typer.Argument(metavar="[FILE]", help="The file to write; default: SWF to the standard output.")
    ] = Path("/dev/stdout"),
    from_: Annotated[
        str, typer.Option("--from", metavar="FORMAT", help="The format of LOG, which is otherwise recognised.")
    ] = "",
    to: Annotated[
        str,
        typer.Option(
            metavar="FORMAT", help="swf, csv, batsim or evalys; default: by the name of FILE (.csv, .json), or swf."
        ),
    ] = "",
    zone: Annotated[
        str, typer.Option(metavar="ZONE", help="The time zone of dates without one, such as Europe/Berlin.")
    ] = "UTC",
    anonymise: Annotated[
        bool, typer.Option("--anonymise", help="Number users, groups and executables anew; write no names.")
    ] = False,
    seed: Seed = 1,
) -> None:
    """Write a log in another format: from Slurm, PBS, Batsim, evalys or drom to SWF, and from SWF to others."""
    from drom.workloads.anonymising import anonymised
    from drom.workloads.formats.runs import LEFT_OUT

    work = _read(log, from_, zone)
    for comment in work.comments:
        if comment.startswith(LEFT_OUT):
            typer.echo(comment.removeprefix("; Note: "), err=True)
    _write(anonymised(work, seed) if anonymise else work, out, to)


@app.command()
def plot(
    log: Log,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The picture: .png or .svg.")],
    rule: RuleOptions = None,
    nodes: Nodes = None,
    cores: Cores = 1,
) -> None:
    """Draw a page about a log: arrivals, sizes, times, accuracy of requests, load."""
    from drom.workloads.cleaning import Machine, clean, parse_rules
    from drom.workloads.plots import draw
    from drom.workloads.summary import machine_size

    work = _read(log)
    processors, _ = machine_size(work, _machine(nodes, cores))
    cleaned, _ = clean(work, parse_rules(rule or ()), Machine(processors) if processors else None, strict=False)
    draw(work, cleaned, processors or int(cleaned.allocated.max()), out)
    typer.echo(f"drawn to {out}", err=True)


@app.command()
def make(
    model: Annotated[str, typer.Argument(metavar="lublin|cirne-like|lomonosov", help="The model to draw jobs from.")],
    out: Out,
    jobs: Annotated[int, typer.Option(metavar="N", min=1, max=MOST_JOBS, help="The number of jobs.")] = 1000,
    nodes: Annotated[int, typer.Option(metavar="N", min=1, max=MOST_NODES, help="Nodes of the machine.")] = 128,
    cores: Annotated[
        int, typer.Option(metavar="N", min=1, max=MOST_CORES, help="Cores of a node; jobs have whole cores.")
    ] = 1,
    seed: Seed = 1,
    load: Annotated[float | None, typer.Option(metavar="X", help="Stretch arrivals to this load, such as 0.8.")] = None,
    kind: Annotated[str, typer.Option(metavar="KIND", help="lublin: untyped, batch, interactive or both.")] = "untyped",
    fit: Annotated[str, typer.Option(metavar="FIT", help="cirne-like: ctc, sdsc-sp2 or kth.")] = "ctc",
    largest: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="cirne-like: nodes of the largest job.")
    ] = None,
    estimates: Annotated[
        str, typer.Option(metavar="HOW", help="Requested times: model (lublin: Tsafrir's), or exact.")
    ] = "model",
    accuracy: Annotated[
        float, typer.Option(metavar="P", min=0, max=1, help="lomonosov: the share of exact requested times.")
    ] = 0.5,
    mix: Annotated[bool, typer.Option("--mix", help="Assign the applications of the SD-Policy paper to jobs.")] = False,
) -> None:
    """Draw jobs from a model: Lublin and Feitelson with Tsafrir's estimates, Cirne-like, or Lomonosov-1."""
    from drom.workloads import making

    made = making.make(
        making.Recipe(model, jobs, nodes, cores, seed, load, kind, fit, largest, estimates, mix, accuracy),
    )
    _write(made, out)
