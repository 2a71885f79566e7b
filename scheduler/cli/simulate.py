# SPDX-License-Identifier: Apache-2.0
"""`drom simulate` and `drom compare`. What needs numpy or numba is imported when a command runs."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from drom.scheduler.cli import messages
from drom.scheduler.cli.progress import Bar, all_or_nothing, saying
from drom.scheduler.errors import SchedulerError
from drom.workloads.files import json_text

if TYPE_CHECKING:
    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.gap_filling.parameters import FillingOptions
    from drom.scheduler.gap_filling.simulation import FilledSimulation
    from drom.scheduler.simulator.adaptive import PoolModel
    from drom.scheduler.simulator.simulation import Machine, Simulation

Log = Annotated[Path, typer.Argument(metavar="LOG", help="A log: SWF, plain or gzip, or a .csv table.")]


def simulate(
    log: Log,
    nodes: Annotated[int, typer.Option(metavar="N", min=1, max=10_000_000, help="Nodes of the machine.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="The folder for the results.")] = None,
    cores: Annotated[int, typer.Option(metavar="N", min=1, max=1_000_000, help="Cores of a node.")] = 1,
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="fcfs, firstfit, easy, conservative, slurm, sd, equipartition, payoff, cp; or a file with a policy.",
        ),
    ] = "easy",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the policy, such as depth=50."),
    ] = None,
    max_slowdown: Annotated[
        str | None, typer.Option(metavar="P", help="sd: the cut-off for mates: a number, infinite or dynavgsd.")
    ] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition", metavar="N=NODES", help="The nodes of a partition, such as 2=0-99; with reservations=nodes."
        ),
    ] = None,
    event_rule: Annotated[
        str, typer.Option(metavar="RULE", help="The event rule: instant, pyss or cqsim.")
    ] = "instant",
    runtime_model: Annotated[
        str, typer.Option(metavar="MODEL", help="The run-time model of jobs that share nodes: worst or ideal.")
    ] = "worst",
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="SHARES", help="Shares of classes, such as malleable=0.3,moldable=0.2; default: all malleable."
        ),
    ] = None,
    predict: Annotated[
        str, typer.Option(metavar="WHO", help="The run times for planning: user, recent or learned.")
    ] = "user",
    adaptive: Annotated[
        list[str] | None,
        typer.Option(
            "--adaptive", metavar="NAME=VALUE", help="equipartition: properties of the jobs, such as minimum=0.5."
        ),
    ] = None,
    fill: Annotated[bool, typer.Option("--fill", help="Fill gaps with containers that are saved in time.")] = False,
    fill_set: Annotated[
        list[str] | None,
        typer.Option("--fill-set", metavar="NAME=VALUE", help="A parameter of gap filling, such as policy=B."),
    ] = None,
    evolving: Annotated[
        str,
        typer.Option(metavar="FRACTION|FILE", help="Jobs whose range changes while they run: a fraction, or a table."),
    ] = "",
    contracts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|NAME=VALUE",
            help="Deadlines and pay-off of jobs: a table, or parameters to draw them, such as tight=2.",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="The seed for classes, ranges, contracts and filler jobs.")
    ] = 1,
    rule: Annotated[
        list[str] | None, typer.Option("--rule", metavar="NAME=CHOICE", help="A cleaning rule, such as overrun=raise.")
    ] = None,
    until: Annotated[
        int | None, typer.Option(metavar="SECONDS", min=0, help="Stop after the events of this time.")
    ] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the simulation where it stops.")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="FILE", help="Continue a saved simulation.")] = None,
    explain: Annotated[
        int | None, typer.Option(metavar="JOB", help="Explain why this job started when it did.")
    ] = None,
    plots: Annotated[
        str | None, typer.Option(metavar="png|svg|pdf", help="Draw Gantt chart, load, slowdown per day, heatmaps.")
    ] = None,
    gantt: Annotated[
        str | None, typer.Option(metavar="FROM-TO", help="Seconds of the log that the Gantt chart shows.")
    ] = None,
    idle_watts: Annotated[float, typer.Option(metavar="W", min=0, help="Power of an empty node.")] = 100.0,
    peak_watts: Annotated[float, typer.Option(metavar="W", min=0, help="Power of a node with jobs.")] = 300.0,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON value.")] = False,
) -> None:
    """Simulate the jobs of a log on a machine under a policy."""
    if peak_watts < idle_watts:
        raise typer.BadParameter("--peak-watts is below --idle-watts.")
    window = _window(gantt)
    _check_plots(plots, out, gantt)
    from drom.scheduler.analysis import metrics
    from drom.scheduler.analysis.contracts import check_possible
    from drom.scheduler.analysis.explain import explain as explained
    from drom.scheduler.analysis.explain import index_of
    from drom.scheduler.engine.compiler import load_policy
    from drom.scheduler.simulator.contracts import contracts_of
    from drom.scheduler.simulator.partitions import parse_partitions
    from drom.scheduler.simulator.simulation import Machine, Simulation
    from drom.workloads import cleaning, tables
    from drom.workloads.classes import Shares, parse_shares
    from drom.workloads.classes import classes as drawn

    cutoff = [] if max_slowdown is None else [f"max_slowdown={max_slowdown}"]
    chosen = load_policy(policy, [*(set_ or ()), *cutoff])
    messages.describe_policy(chosen, cores, event_rule, predict)
    jobs_are = _adaptive(adaptive or [], evolving, chosen)
    if chosen.built_in == "payoff" and not contracts:
        raise typer.BadParameter(
            "--policy payoff needs contracts: add --contracts FILE, or for example --contracts tight=2."
        )
    filling = _filling(fill_set or [], chosen, fill=fill, kept=save or resume)
    with saying(f"reading {log.name}"):
        raw = tables.read_log(log)
    work, report = cleaning.clean(raw, cleaning.parse_rules(rule or ()), cleaning.Machine(nodes, cores))
    if explain is not None:
        index_of(work, explain)
    shares = Shares() if classes is None else parse_shares(classes)
    confined, slot = parse_partitions(partition or ()), filling.time_slot if filling else 1
    machine = Machine(nodes, cores, event_rule, runtime_model, chosen.layers, confined, slot)
    _check_predictor(predict, machine, chosen, fill=fill)
    with saying("compiling; the result is cached"):
        kinds = drawn(work.job, shares, seed).astype(int)
        terms = contracts_of(contracts or (), work, seed)
        run = Simulation.of(
            work, machine, chosen, kinds, jobs_are, evolving=evolving, seed=seed, contracts=terms, predictor=predict
        )
    check_possible(run, terms)
    filled = _filled(run, filling, seed)
    messages.describe_jobs(run)
    messages.describe_pool(run, cores, plots)
    messages.warn_about_ineffective_options(run, classes)
    _prepare(run, out, save, resume)
    stopped = _run(run, until)
    told = metrics.summary(run, report, metrics.Power(idle_watts, peak_watts), stopped, seed)
    unknown = _finish(filled, told)
    _write(run, told, out, plots, window, filled)
    if save is not None:
        run.save(save)
    _tell(told, explained(run, explain) if explain is not None else [], as_json=json)
    _leave(stopped, unknown=unknown)


def _prepare(run: Simulation, out: Path | None, save: Path | None, resume: Path | None) -> None:
    """Check that the results of a simulation can be written, and resume a saved one."""
    from drom.scheduler.analysis.results import prepare
    from drom.scheduler.simulator.simulation import check_saving

    if resume is not None:
        run.resume(resume)
    if out is not None:
        prepare(out)
    if save is not None:
        check_saving(save)


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


def _write(
    run: Simulation,
    told: dict[str, Any],
    out: Path | None,
    plots: str | None,
    window: tuple[int, int] | None,
    filled: FilledSimulation | None,
) -> None:
    """Write the results to the given folder, if there is one."""
    from drom.scheduler.analysis import results

    if out is None:
        return
    with saying(f"writing {out}"):
        results.write(run, told, out, None if filled is None else filled.tables())
        _draw(run, out, plots, window, filled)
    messages.warn_about_missing_data()


def _check_predictor(predict: str, machine: Machine, policy: Policy, *, fill: bool) -> None:
    """Raise an error for predictions that cannot be used, before anything is compiled; print what will be compiled."""
    from drom.scheduler.predictors.knowledge import USER
    from drom.scheduler.simulator.simulation import check_predictor

    if fill and predict != USER:
        raise typer.BadParameter("--fill relies on the requested times: omit --predict.")
    check_predictor(predict, machine, policy)
    messages.announce(policy)


def _adaptive(choices: list[str], evolving: str, policy: Policy) -> PoolModel:
    """Return the parameters of jobs that share a pool."""
    from drom.scheduler.simulator.adaptive import parse_adaptive

    if (choices or evolving) and not policy.pooled:
        option = "--adaptive" if choices else "--evolving"
        msg = f"{option} is for policies that allot processors: add --policy equipartition, not {policy.name}."
        raise typer.BadParameter(msg)
    return parse_adaptive(choices)


def _filling(choices: list[str], policy: Policy, *, fill: bool, kept: Path | None) -> FillingOptions | None:
    """Return the parameters of gap filling, None if gaps are not filled."""
    if not fill:
        if choices:
            raise typer.BadParameter("--fill-set sets how gaps are filled: add --fill.")
        return None
    from drom.scheduler.gap_filling.parameters import parse_filling

    filling = parse_filling(choices)
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


def _window(text: str | None) -> tuple[int, int] | None:
    """Return the two times, in seconds, in an option."""
    if text is None:
        return None
    begin, _, end = text.partition("-")
    if not (begin.isdecimal() and end.isdecimal() and int(begin) < int(end)):
        raise typer.BadParameter(
            "--gantt takes two seconds of the log, the earlier first: write for example 86400-172800."
        )
    return int(begin), int(end)


def _check_plots(kind: str | None, out: Path | None, gantt: str | None) -> None:
    """Raise an error for pictures that could not be drawn, before anything is simulated."""
    from drom.scheduler.analysis.plots import KINDS
    from drom.workloads.figures import require

    if kind is None:
        if gantt is not None:
            raise typer.BadParameter("--gantt needs --plots: it sets the part of the log in the Gantt chart.")
        return
    if kind not in KINDS:
        raise typer.BadParameter(f"--plots {kind}: choose {', '.join(KINDS)}.")
    if out is None:
        raise typer.BadParameter("--plots needs --out, the folder for the pictures.")
    require()


def _draw(
    run: Simulation, out: Path, kind: str | None, window: tuple[int, int] | None, filled: FilledSimulation | None
) -> None:
    if kind is None:
        return
    from drom.scheduler.analysis.plots import draw_all
    from drom.scheduler.analysis.schedule import schedule_of
    from drom.scheduler.analysis.series import Span

    runs = None if filled is None else filled.runs
    draw_all(schedule_of(run), run.policy.name, out, kind, Span(*window) if window else None, runs)


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
