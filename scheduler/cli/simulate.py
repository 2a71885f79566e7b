# SPDX-License-Identifier: Apache-2.0
"""`drom simulate` and `drom compare`. What needs numpy or numba is imported when a command runs."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from drom.agent.cli.parameters import with_options
from drom.agent.cli.usage import finite
from drom.scheduler.cli import messages
from drom.scheduler.cli.limits import MOST_CORES, MOST_NODES
from drom.scheduler.cli.progress import Bar, all_or_nothing, saying
from drom.scheduler.errors import SchedulerError
from drom.workloads.cli import Log
from drom.workloads.files import json_text

if TYPE_CHECKING:
    from drom.scheduler.cli.setup import Setup
    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.gap_filling.parameters import FillingOptions
    from drom.scheduler.gap_filling.simulation import FilledSimulation
    from drom.scheduler.simulator.simulation import Simulation

Nodes = Annotated[int, typer.Option(metavar="N", min=1, max=MOST_NODES, help="Nodes of the machine.")]
Cores = Annotated[int, typer.Option(metavar="N", min=1, max=MOST_CORES, help="Cores of a node.")]
Contracts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE|NAME=VALUE",
        help="Deadlines and pay-off of jobs: a table, or parameters to draw them, such as tight=2.",
    ),
]
Rules = Annotated[
    list[str] | None, typer.Option("--rule", metavar="NAME=CHOICE", help="A cleaning rule, such as overrun=raise.")
]


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """The options of `drom simulate`."""

    nodes: Nodes
    out: Path | None = typer.Option(None, "--out", "-o", metavar="DIR", help="The folder for the results.")
    cores: Cores = 1
    policy: str = typer.Option(
        "easy",
        metavar="NAME|FILE",
        help="fcfs, firstfit, easy, sjf, ljf, saf, wfp3, unicef, f1 to f4, conservative, slurm, sd, equipartition, "
        "payoff, cp, resources; or a file.",
    )
    set_: list[str] | None = typer.Option(
        None, "--set", metavar="NAME=VALUE", help="A parameter of the policy, such as depth=50."
    )
    max_slowdown: str | None = typer.Option(
        None, metavar="P", help="sd: the cut-off for mates: a number, infinite or dynavgsd."
    )
    partition: list[str] | None = typer.Option(
        None, metavar="N=NODES", help="The nodes of a partition, such as 2=0-99; with reservations=nodes."
    )
    event_rule: str = typer.Option("instant", metavar="RULE", help="The event rule: instant, pyss or cqsim.")
    runtime_model: str = typer.Option(
        "worst", metavar="MODEL", help="The run-time model of jobs that share nodes: worst or ideal."
    )
    classes: str | None = typer.Option(
        None, metavar="SHARES", help="Shares of classes, such as malleable=0.3,moldable=0.2; default: all malleable."
    )
    predict: str = typer.Option("user", metavar="WHO", help="The run times for planning: user, recent or learned.")
    adaptive: list[str] | None = typer.Option(
        None,
        metavar="NAME=VALUE",
        help="Properties of jobs that change their size, such as minimum=0.5: equipartition, payoff, sd.",
    )
    fill: bool = typer.Option(False, "--fill", help="Fill gaps with containers that are saved in time.")
    fill_set: list[str] | None = typer.Option(
        None, metavar="NAME=VALUE", help="A parameter of gap filling, such as policy=B."
    )
    evolving: str = typer.Option(
        "", metavar="FRACTION|FILE", help="Jobs whose range changes while they run: a fraction, or a table."
    )
    contracts: Contracts = None
    failures: list[str] | None = typer.Option(
        None, metavar="NAME=VALUE", help="Failures of nodes, such as rate=0.5 for each node and year, or trace=FILE."
    )
    sleep: list[str] | None = typer.Option(
        None, metavar="NAME=VALUE", help="Turn nodes off without jobs, such as after=600 and wake=120 seconds."
    )
    speed: list[str] | None = typer.Option(
        None, metavar="SPEED=NODES", help="Nodes of another speed than 1, such as 0.8=64-95."
    )
    seed: int = typer.Option(
        1, metavar="N", min=0, help="The seed for classes, ranges, contracts, failures and filler jobs."
    )
    rule: Rules = None
    until: int | None = typer.Option(None, metavar="SECONDS", min=0, help="Stop after the events of this time.")
    save: Path | None = typer.Option(None, metavar="FILE", help="Save the simulation where it stops.")
    resume: Path | None = typer.Option(None, metavar="FILE", help="Continue a saved simulation.")
    explain: int | None = typer.Option(None, metavar="JOB", help="Explain why this job started when it did.")
    plots: str | None = typer.Option(
        None, metavar="png|svg|pdf", help="Draw Gantt chart, load, slowdown per day, heatmaps."
    )
    gantt: str | None = typer.Option(None, metavar="FROM-TO", help="Seconds of the log that the Gantt chart shows.")
    idle_watts: float = typer.Option(100.0, metavar="W", min=0, callback=finite, help="Power of an empty node.")
    peak_watts: float = typer.Option(300.0, metavar="W", min=0, callback=finite, help="Power of a node with jobs.")
    off_watts: float = typer.Option(0.0, metavar="W", min=0, callback=finite, help="Power of a node that is off.")
    json: bool = typer.Option(False, "--json", help="Print the summary as one JSON value.")


@with_options(SimulateOptions)
def simulate(log: Log, options: SimulateOptions) -> None:
    """Simulate the jobs of a log on a machine under a policy."""
    if options.peak_watts < options.idle_watts:
        raise typer.BadParameter("--peak-watts is below --idle-watts.")
    _check_plots(options)
    from drom.scheduler.analysis import metrics
    from drom.scheduler.analysis.explain import explain as explained
    from drom.scheduler.analysis.explain import index_of
    from drom.scheduler.engine.compiler import load_policy
    from drom.scheduler.simulator.simulation import check_predictor
    from drom.workloads import logs

    cutoff = [] if options.max_slowdown is None else [f"max_slowdown={options.max_slowdown}"]
    chosen = load_policy(options.policy, [*(options.set_ or ()), *cutoff])
    messages.describe_policy(
        chosen, options.cores, options.event_rule, options.predict, adaptive=bool(options.adaptive)
    )
    filling = _filling(options, chosen)
    setup = _setup(options, filling)
    if fault := setup.fault(chosen):
        raise typer.BadParameter(fault)
    with saying(f"reading {log.name}"):
        raw = logs.read_log(log)
    work, report = setup.clean(raw)
    if options.explain is not None:
        index_of(work, options.explain)
    check_predictor(options.predict, setup.machine(chosen), chosen)
    messages.announce(chosen, options.predict)
    with saying("compiling; the result is cached"):
        run = setup.simulation(work, chosen)
    filled = _filled(run, filling, options.seed)
    messages.describe_jobs(run)
    messages.describe_pool(run, options.cores, options.plots)
    messages.warn_about_ineffective_options(run, options.classes)
    _prepare(run, options)
    stopped = _run(run, options.until)
    power = metrics.Power(options.idle_watts, options.peak_watts, options.off_watts)
    told = metrics.summary(run, report, power, stopped, options.seed)
    unknown = _finish(filled, told)
    _write(run, told, options, filled)
    if options.save is not None:
        run.save(options.save)
    _tell(told, [] if options.explain is None else explained(run, options.explain), as_json=options.json)
    _leave(stopped, unknown=unknown)


def _prepare(run: Simulation, options: SimulateOptions) -> None:
    """Check that the results of a simulation can be written, and resume a saved one."""
    from drom.scheduler.analysis.results import prepare
    from drom.scheduler.simulator.simulation import check_saving

    if options.resume is not None:
        run.resume(options.resume)
    if options.out is not None:
        prepare(options.out)
    if options.save is not None:
        check_saving(options.save)


def _run(run: Simulation, until: int | None, words: str = "simulating") -> str:
    """Run a simulation and return why it stopped before its end; empty if it did not.

    Ctrl-C stops it between two events; a second one stops it immediately, without a result.
    """
    from drom.scheduler.interface import NEVER

    asked: list[int] = []
    bar = Bar(sys.stderr, words)

    def ask(number: int, _: object) -> None:
        asked.append(number)
        if len(asked) > 1:
            raise KeyboardInterrupt

    def look(done: float) -> None:
        bar.show(done)
        if asked:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, ask)
    try:
        run.run(NEVER - 1 if until is None else until, look)
    except KeyboardInterrupt:
        if len(asked) > 1:
            messages.say("drom: interrupted twice: nothing is written.")
            raise
        return "interrupted"
    finally:
        signal.signal(signal.SIGINT, before)
        bar.clear()
    return "" if run.is_over else f"until {until} s"


def _leave(stopped: str, *, unknown: bool) -> None:
    """Exit like an interrupted program and print what is missing; return if nothing is."""
    if stopped == "interrupted":
        messages.say("drom: interrupted: the results are partial, and marked so.")
    elif unknown:
        messages.say("drom: interrupted: the results lack the delays of jobs compared with a run without filling.")
    else:
        return
    raise typer.Exit(130)


def _write(run: Simulation, told: dict[str, Any], options: SimulateOptions, filled: FilledSimulation | None) -> None:
    """Write the results to the given folder, if there is one."""
    from drom.scheduler.analysis import results

    if options.out is None:
        return
    with saying(f"writing {options.out}"):
        results.write(run, told, options.out, {**results.failures(run), **(filled.tables() if filled else {})})
        _draw(run, options.out, options, filled)
    messages.warn_about_missing_data()


def _setup(options: SimulateOptions, filling: FillingOptions | None) -> Setup:
    """Return the options that change a schedule."""
    from drom.scheduler.cli.setup import Setup

    return Setup(
        options.nodes,
        options.cores,
        options.event_rule,
        options.runtime_model,
        options.partition or (),
        options.classes,
        options.predict,
        options.adaptive or (),
        options.evolving,
        options.contracts or (),
        options.rule or (),
        options.seed,
        filling.time_slot if filling else 1,
        options.failures or (),
        options.sleep or (),
        options.speed or (),
    )


def _filling(options: SimulateOptions, policy: Policy) -> FillingOptions | None:
    """Return the parameters of gap filling, None if gaps are not filled."""
    if not options.fill:
        if options.fill_set:
            raise typer.BadParameter("--fill-set sets how gaps are filled: add --fill.")
        return None
    from drom.scheduler.gap_filling.parameters import parse_filling
    from drom.scheduler.predictors.knowledge import USER

    if options.predict != USER:
        raise typer.BadParameter("--fill relies on the requested times: omit --predict.")
    if options.failures or options.sleep or options.speed:
        raise typer.BadParameter("--fill is for equal nodes that stay up and on: omit --failures, --sleep and --speed.")
    if options.adaptive and not policy.pooled:
        raise typer.BadParameter("--fill is for jobs that keep their nodes: omit --adaptive.")
    filling = parse_filling(options.fill_set or [])
    kept = options.save or options.resume
    if kept is not None and policy.pooled:
        raise typer.BadParameter(
            "--save and --resume do not store the free processors of a pool: omit them, or --fill."
        )
    if kept is not None and filling.policy == "B":
        raise typer.BadParameter("--save and --resume do not store containers: omit them, or choose policy=A.")
    return filling


def _filled(run: Simulation, filling: FillingOptions | None, seed: int) -> FilledSimulation | None:
    if filling is None:
        return None
    from drom.scheduler.gap_filling.simulation import FilledSimulation, announcement

    if announced := announcement():
        messages.say(f"drom: {announced}")
    return FilledSimulation.of(run, filling, seed)


def _finish(filled: FilledSimulation | None, told: dict[str, Any]) -> bool:
    """Add the figures of filling to a summary, under B with those without it; return whether that was interrupted."""
    if filled is None:
        return False
    from drom.scheduler.gap_filling.simulation import shifts, without

    with all_or_nothing("filling gaps") as bar:
        filled.finish(bar.show)
    told["filling"] = filled.figures(told["metrics"])
    if filled.filling.policy != "B" or not filled.run.is_over:
        return False
    regular = without(filled.run)
    stopped = _run(regular, None, "simulating without filling")
    told["filling"] |= shifts(filled.run, regular)
    return bool(stopped)


def _window(text: str) -> tuple[int, int]:
    """Return the two times, in seconds, in an option."""
    begin, _, end = text.partition("-")
    if not (begin.isdecimal() and end.isdecimal() and int(begin) < int(end)):
        raise typer.BadParameter(
            "--gantt takes two seconds of the log, the earlier first: write for example 86400-172800."
        )
    return int(begin), int(end)


def _check_plots(options: SimulateOptions) -> None:
    """Raise an error for pictures that could not be drawn, before anything is simulated."""
    from drom.scheduler.analysis.plots import KINDS
    from drom.workloads.figures import require

    if options.gantt is not None:
        _window(options.gantt)
    if options.plots is None:
        if options.gantt is not None:
            raise typer.BadParameter("--gantt needs --plots: it sets the part of the log in the Gantt chart.")
        return
    if options.plots not in KINDS:
        raise typer.BadParameter(f"--plots {options.plots}: choose {', '.join(KINDS)}.")
    if options.out is None:
        raise typer.BadParameter("--plots needs --out, the folder for the pictures.")
    require()


def _draw(run: Simulation, out: Path, options: SimulateOptions, filled: FilledSimulation | None) -> None:
    if options.plots is None:
        return
    from drom.scheduler.analysis.plots import draw_all
    from drom.scheduler.analysis.schedule import schedule_of
    from drom.scheduler.analysis.series import Span

    span = None if options.gantt is None else Span(*_window(options.gantt))
    runs = None if filled is None else filled.runs
    draw_all(schedule_of(run), run.policy.name, out, options.plots, span, runs)


def _tell(told: dict[str, Any], sentences: list[str], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json_text(told | ({"explained": sentences} if sentences else {})))
        return
    for line in [*messages.lines(told), *sentences]:
        typer.echo(line)


def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Folders with results of drom simulate; the first counts as 1."),
    ],
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report with pictures to one file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Compare results: each figure of the first, and its ratio in the others."""
    from drom.scheduler.analysis import comparison
    from drom.scheduler.analysis.results import load
    from drom.workloads.figures import require

    if html is not None:
        require()
    told = [load(folder) for folder in folders]
    names, rows = comparison.names_of(folders), comparison.rows_of(told)
    for note in comparison.notes(names, told):
        messages.say(note)
    if json:
        figures = [{"figure": r.figure, "first": r.values[0], "values": r.values, "ratios": r.ratios} for r in rows]
        typer.echo(json_text({"schema_version": 1, "folders": [str(f) for f in folders], "figures": figures}))
    else:
        for line in comparison.table(names, rows):
            typer.echo(line)
    if html is not None:
        from drom.scheduler.analysis.report import write_report

        with saying("drawing"):
            write_report(folders, html)
        messages.say(f"report written to {html}")


__all__ = ["SchedulerError", "compare", "simulate"]
