# SPDX-License-Identifier: Apache-2.0
"""`drom reproduce`. What needs numpy or numba is imported when a command runs."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from drom.agent.text import counted, duration
from drom.scheduler.cli.progress import Bar, all_or_nothing, interruptible, saying
from drom.workloads.files import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from drom.scheduler.reproduction.cp.completed import Kept
    from drom.scheduler.reproduction.cp.metrics import LiveMetrics
    from drom.scheduler.reproduction.sd_policy.logs import Source
    from drom.scheduler.reproduction.sd_policy.outcome import Outcome

app = typer.Typer(help="Repeat the experiments of a paper, and print the results beside its numbers.")

_WORKLOADS = range(1, 6)
_WITH_LOG = (3, 4)
_ADAPTIVE_PARTS = ("changes", "residual", "cluster")


@app.command("sd-policy")
def sd_policy(
    workload: Annotated[
        list[int] | None, typer.Option(metavar="1..5", help="A workload of the paper's Table 1; default: all.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The log of workload 3 or 4; default: in $DROM_WORKLOADS.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="The folder for results, pictures and a report.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Simulations at once; default: CPUs. Runs on Slurm at once: 3."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="The seed for the models of workloads 1, 2 and 5.")] = 1,
    scale: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART", help="Workload 5: rehearsal, cores, nodes; default: these, which takes hours. Or slurm."
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=30, help="Workload 5: number of seeds of each part.")
    ] = None,
    first: Annotated[int | None, typer.Option(metavar="N", min=1, help="Workload 5: only the first N jobs.")] = None,
    compression: Annotated[
        float | None, typer.Option(metavar="F", min=1, max=1000, help="Workload 5: how much faster emulated nodes run.")
    ] = None,
    curves: Annotated[
        str, typer.Option(metavar="NAME", help="Workload 5: mixed, or ideal, on emulated nodes.")
    ] = "mixed",
    readings: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Workloads 1 to 4 under other readings of the paper; all: all of them."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Run the simulations of the SD-Policy paper (ICPP 2019), or its workload 5; print both results side by side."""
    numbers = _numbers(workload, log)
    of_five = {"scale": scale, "seeds": seeds, "first": first, "compression": compression}
    if readings is not None and numbers == [5]:
        raise typer.BadParameter("--readings applies to workloads 1 to 4: name one of them with --workload.")
    _check_five(numbers, scale, curves, [name for name, value in of_five.items() if value is not None])
    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="drom-reproduce-")))
        if numbers == [5]:
            _run_five(folder, out, {**of_five, "seed": seed, "curves": curves}, jobs, as_json=json)
            return
        simulated = [number for number in numbers if number != 5]
        if readings is not None:
            _run_readings(
                readings,
                lambda: _sources(simulated, log, folder, seed),
                folder,
                jobs,
                keep=out is not None,
                as_json=json,
            )
            return
        _prepare(simulated, folder)
        sources = _sources(simulated, log, folder, seed)
        interrupted = _simulate(sources, folder, jobs)
        outcomes = _outcomes(numbers, sources, folder, seed)
        told = _told(outcomes)
        _print(outcomes, told, as_json=json)
        if out is not None:
            _write(outcomes, told, out, draw=not interrupted)
    if interrupted:
        typer.echo("drom: interrupted: the results are partial, and marked so.", err=True)
        raise typer.Exit(130)


@app.command("adaptive")
def adaptive(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="The folder for adaptive.json and pictures.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="The first of ten seeds.")] = 1,
    stall: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, max=3600, help="The additional cost of each change of processors."),
    ] = 0.0,
    live: Annotated[
        bool, typer.Option("--live", help="Run a real scheduler, agents and MPI programs on this machine.")
    ] = False,
    part: Annotated[
        list[str] | None,
        typer.Option(metavar="PART", help="Live: changes, residual, cluster; default: these, which takes an hour."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Run the experiments on adaptive jobs (CCGRID 2002): response and utilisation over the load, and contracts."""
    parts = list(dict.fromkeys(part or _ADAPTIVE_PARTS))
    if wrong := sorted({*parts} - {*_ADAPTIVE_PARTS}):
        raise typer.BadParameter(f"{wrong[0]!r} is none of {', '.join(_ADAPTIVE_PARTS)}.", param_hint="--part")
    if live:
        _adaptive_live(out, seed, parts, as_json=json)
        return
    if part:
        raise typer.BadParameter("simulations have no parts: omit it, or add --live.", param_hint="--part")
    from drom.scheduler.analysis.results import make_folder
    from drom.scheduler.reproduction.adaptive.contracts import levels
    from drom.scheduler.reproduction.adaptive.experiment import points
    from drom.scheduler.reproduction.adaptive.figures import contract_lines, draw, lines, to_json

    if out is not None:
        make_folder(out)
    with all_or_nothing("simulating") as bar:
        found = points(seed, stall, lambda done: bar.show(done / 2))
        bound = levels(seed, stall, lambda done: bar.show((1 + done) / 2))
    told = to_json(found, bound, seed, stall)
    _show(
        told,
        (*lines(found), *contract_lines(bound)),
        out,
        "adaptive.json",
        lambda folder: draw(found, bound, folder),
        as_json=json,
    )


def _adaptive_live(out: Path | None, seed: int, parts: list[str], *, as_json: bool) -> None:
    """Run experiments of the paper with real programs and a real scheduler, and print and write the results."""
    from drom.scheduler.analysis.results import make_folder
    from drom.scheduler.reproduction.adaptive import live_parts

    if out is not None:
        make_folder(out)
    live_parts.check(parts)
    with all_or_nothing("running") as bar:
        found = live_parts.run(parts, seed, bar.show)
    told = found.to_json()
    _show(told, found.lines(), out, "adaptive-live.json", found.draw, as_json=as_json)


@app.command("gapfill")
def gapfill(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="The folder for gapfill.json and pictures.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", min=1, help="Simulations at once; default: CPUs.")] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="The first of ten seeds.")] = 1,
    days: Annotated[int, typer.Option(metavar="N", min=1, max=3650, help="Number of simulated days.")] = 180,
    live: Annotated[bool, typer.Option("--live", help="Run real jobs and fillers on this machine instead.")] = False,
    seconds: Annotated[
        int, typer.Option(metavar="N", min=120, max=86400, help="Seconds of regular jobs in each of four real runs.")
    ] = 900,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Run the simulation on gap filling with containers (GRID 2018): load over accuracy, and the gain."""
    if live:
        _gapfill_live(out, seed, seconds, as_json=json)
        return
    from drom.scheduler.analysis.results import make_folder
    from drom.scheduler.engine.compiler import announcement, compile_program, load_policy
    from drom.scheduler.gap_filling import simulation
    from drom.scheduler.reproduction.gap_filling.experiment import POLICY, points
    from drom.scheduler.reproduction.gap_filling.figures import draw, lines, to_json

    if out is not None:
        make_folder(out)
    policy = load_policy(POLICY)
    for announced in filter(None, (announcement(policy), simulation.announcement())):
        typer.echo(f"drom: {announced}", err=True)
    compile_program(policy)
    simulation.compile_all()
    with all_or_nothing("simulating") as bar:
        found = points(seed, days, jobs, bar.show)
    told = to_json(found, seed, days)
    _show(told, lines(found, days), out, "gapfill.json", lambda folder: draw(found, folder), as_json=json)


def _gapfill_live(out: Path | None, seed: int, seconds: int, *, as_json: bool) -> None:
    """Run the experiment on real nodes, and print and write the results."""
    from drom.scheduler.analysis.results import make_folder
    from drom.scheduler.reproduction.gap_filling.live import run_all
    from drom.scheduler.reproduction.gap_filling.live_table import lines, to_json

    if out is not None:
        make_folder(out)
    with all_or_nothing("running") as bar:
        found = run_all(seed, seconds, bar.show)
    told = to_json(found, seed, seconds)
    _show(told, lines(found, seconds), out, "gapfill-live.json", as_json=as_json)


@app.command("controllers")
def controllers(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="The folder for controllers.json and pictures.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="The first of ten seeds; of one with --live.")] = 1,
    nodes: Annotated[
        int | None, typer.Option(metavar="N", min=50, max=500, help="The most nodes; default: 500, with --live 100.")
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            "--controllers", metavar="N", min=1, max=1_000_000, help="The most controllers; default: 1000000."
        ),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Run real schedulers with etcd and emulated nodes.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Run the measurements of SLURM++ in a model of many controllers on one store, with the effect of each option."""
    if live and most is not None:
        raise typer.BadParameter("--controllers applies to the model: omit it, or --live.")
    if live:
        _controllers_live(out, seed, nodes or 100, as_json=json)
        return
    from drom.scheduler.analysis.results import make_folder
    from drom.scheduler.reproduction.controllers.experiment import COSTS, run_all
    from drom.scheduler.reproduction.controllers.tables import draw, lines, to_json

    if out is not None:
        make_folder(out)
    with all_or_nothing("simulating") as bar:
        found = run_all(seed, COSTS, nodes or 500, most or 1_000_000, bar.show)
    told = to_json(found, seed, COSTS)
    _show(told, lines(found), out, "controllers.json", lambda folder: draw(found, folder), as_json=json)


def _controllers_live(out: Path | None, seed: int, nodes: int, *, as_json: bool) -> None:
    """Measure real schedulers, and print the costs of a job and how well the model fits."""
    from drom.scheduler.analysis.results import make_folder
    from drom.scheduler.reproduction.controllers.live import measure
    from drom.scheduler.reproduction.controllers.live_table import lines, to_json

    if out is not None:
        make_folder(out)
    with all_or_nothing("running") as bar:
        found = measure(nodes, seed, bar.show)
    told = to_json(found, seed)
    _show(told, lines(found), out, "controllers-live.json", as_json=as_json)


@app.command("cp")
def constraint_programming(
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="The folder for all results; existing ones are kept."),
    ] = None,
    test: Annotated[int | None, typer.Option(metavar="1|2", min=1, max=2, help="The test; default: both.")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=30, help="Number of the 30 seeds to run; default: all, with --live 3."),
    ] = None,
    first: Annotated[int, typer.Option(metavar="N", min=1, help="Only the first N jobs of each test.")] = 1000,
    platform: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="The machine: a name, or a file that ends in .toml.")
    ] = "eurora",
    jobs: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Simulations at once; default: CPUs; live runs: half of them."),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Run a real scheduler with emulated nodes.")] = False,
    compression: Annotated[
        float | None,
        typer.Option(
            metavar="F",
            min=1,
            max=1000,
            help="How much faster live runs go; default: 200, at least 5 minutes a run in test 1, 11 in test 2.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Run the two tests of the CP scheduler of Bridi et al.: waiting, late jobs and overhead beside rules."""
    from drom.scheduler.cp.model import require
    from drom.scheduler.cp.platform import load_platform
    from drom.scheduler.reproduction.cp.completed import Kept
    from drom.scheduler.reproduction.cp.experiment import measure_all, tasks_of
    from drom.scheduler.reproduction.cp.generate import SEEDS, TESTS
    from drom.scheduler.reproduction.cp.metrics import LiveMetrics, Metrics
    from drom.scheduler.reproduction.cp.table import draw, lines, to_json

    _check_live(platform, seeds, compression, live=live)
    require()
    machine = load_platform(platform)
    tests = TESTS if test is None else TESTS[test - 1 : test]
    if live:
        asked = {"tests": tests, "seeds": seeds, "first": first}
        _run_live(out, None if out is None else Kept(out, machine, LiveMetrics), asked, compression, jobs, as_json=json)
        return
    kept = None if out is None else Kept(out, machine, Metrics)
    chosen = SEEDS[:seeds]
    tasks = tasks_of(chosen, first, platform, tests)
    left = "nothing is written" if kept is None else "completed simulations are kept for the same command"
    with interruptible("simulating", left) as bar:
        found = measure_all(tasks, jobs, bar.show, kept)
    told = to_json(found, chosen, first, machine)
    _show(told, lines(found, chosen, first, machine), out, "cp.json", lambda folder: draw(found, folder), as_json=json)


def _check_live(platform: str, seeds: int | None, compression: float | None, *, live: bool) -> None:
    """Raise BadParameter for options that are only for live runs, or only for simulations."""
    if live and platform != "eurora":
        raise typer.BadParameter("live runs are of Eurora: omit --platform or --live.")
    if not live and compression is not None:
        raise typer.BadParameter("--compression applies to live runs: add --live.")
    if not live and seeds == 1:
        raise typer.BadParameter("--seeds 1 leaves nothing to estimate from: choose 2 or more, or add --live.")


def _run_live(
    out: Path | None,
    kept: Kept[LiveMetrics] | None,
    asked: dict[str, Any],
    speed: float | None,
    at_once: int | None,
    *,
    as_json: bool,
) -> None:
    """Make the remaining live runs of constraint programming, `at_once` of them, and print the results."""
    from drom.scheduler.reproduction.cp.live import COMPRESSION, run_all, tasks_of
    from drom.scheduler.reproduction.cp.live_table import lines, to_json

    speed, first = speed or COMPRESSION, asked["first"]
    tasks = tasks_of(**asked, compression=speed)
    left = "nothing is kept" if kept is None else "completed runs are kept for the same command"
    with interruptible("running", left) as bar:
        found = run_all(tasks, at_once, bar.show, kept)
    told = to_json(found, first, speed)
    _show(told, lines(found, first, speed), out, "live.json", as_json=as_json)


def _numbers(chosen: list[int] | None, log: Path | None) -> list[int]:
    """Return the numbers of the chosen workloads. Raises BadParameter for unknown ones, and for an unsuitable log."""
    numbers = sorted(set(chosen or _WORKLOADS))
    if not set(numbers) <= set(_WORKLOADS):
        raise typer.BadParameter("--workload must be 1, 2, 3, 4 or 5.")
    if log is not None and (len(numbers) != 1 or numbers[0] not in _WITH_LOG):
        raise typer.BadParameter("--log names the log of one workload: add --workload 3 or --workload 4.")
    return numbers


def _check_five(numbers: list[int], parts: list[str] | None, curves: str, given: list[str]) -> None:
    """Raise BadParameter for options of workload 5 if it is not run alone, and for unknown parts of it."""
    if given and numbers != [5]:
        msg = f"--{given[0]} applies to workload 5, which runs alone: add --workload 5."
        raise typer.BadParameter(msg)
    if not set(parts or ()) <= {"rehearsal", "cores", "nodes", "slurm"}:
        raise typer.BadParameter("--scale must be rehearsal, cores, nodes or slurm.")
    if curves not in {"mixed", "ideal"}:
        raise typer.BadParameter("--curves must be mixed or ideal.")


def _run_five(folder: Path, out: Path | None, asked: dict[str, Any], at_once: int | None, *, as_json: bool) -> None:
    """Make the remaining runs of workload 5, `at_once` of those on Slurm, and print the results."""
    from drom.scheduler.reproduction.sd_policy.real import command
    from drom.scheduler.reproduction.sd_policy.real.settings import LEVELS

    parts = asked.pop("scale") or command.PARTS
    wanted = command.RunSelection(parts, **asked)
    tasks = command.left(wanted, folder)
    kept = "nothing is kept" if out is None else "completed runs are kept for the same command"
    if tasks:
        long = duration(sum(task.seconds() for task in tasks))
        typer.echo(f"drom: {counted(len(tasks), 'run')} to make, of at least {long} together.", err=True)
    with interruptible("running", kept) as bar:
        command.make_all(tasks, folder, bar.show, at_once or len(LEVELS))
    with interruptible("simulating", kept) as bar:
        rehearsed = command.rehearse(wanted, folder, bar.show)
    outcomes = [command.outcome(folder, wanted.seed, rehearsed)]
    told = _told(outcomes)
    _print(outcomes, told, as_json=as_json)
    if out is not None:
        _write(outcomes, told, out, draw=False)


def _run_readings(
    names: str, sources: Callable[[], dict[int, Source]], folder: Path, jobs: int | None, *, keep: bool, as_json: bool
) -> None:
    """Make the remaining simulations under readings of the paper, and print and write their numbers."""
    from drom.scheduler.analysis.results import make_folder, write_value
    from drom.scheduler.reproduction.sd_policy.readings import parse
    from drom.scheduler.reproduction.sd_policy.spreads import SCHEMA, run_readings
    from drom.scheduler.simulator.batch import compile_before

    chosen = parse(names)
    make_folder(folder)
    found = sources()
    compile_before(("slurm", "sd"), lambda announced: typer.echo(f"drom: {announced}", err=True))
    kept = "completed runs are kept for the same command" if keep else "nothing is kept"
    with interruptible("simulating", kept) as bar:
        outcomes = run_readings(found, chosen, folder, jobs, bar.show)
    told = {"schema_version": SCHEMA, "workloads": [outcome.to_json() for outcome in outcomes]}
    if as_json:
        typer.echo(json_text(told))
    else:
        typer.echo("\n".join(line for outcome in outcomes for line in (*outcome.lines(), "")).rstrip())
    write_value(told, folder / "readings.json")


def _prepare(numbers: list[int], folder: Path) -> None:
    """Create the folders of results, or remove old files from them."""
    from drom.scheduler.analysis.results import prepare
    from drom.scheduler.reproduction.sd_policy.outcome import folder_of
    from drom.scheduler.reproduction.sd_policy.settings import SETTINGS

    for number in numbers:
        for setting in SETTINGS:
            prepare(folder_of(folder, number, setting.name))


def _sources(numbers: list[int], log: Path | None, folder: Path, seed: int) -> dict[int, Source]:
    from drom.scheduler.reproduction.sd_policy.logs import source_of
    from drom.scheduler.reproduction.sd_policy.settings import EXPERIMENTS

    with saying("making and reading logs"):
        return {number: source_of(EXPERIMENTS[number], log, folder, seed) for number in numbers}


def _simulate(sources: dict[int, Source], folder: Path, at_once: int | None) -> bool:
    """Make all simulations, the largest workload first, and return whether they were interrupted."""
    from drom.scheduler.reproduction.sd_policy.outcome import runs_of
    from drom.scheduler.simulator.batch import compile_before, run_all

    compile_before(("slurm", "sd"), lambda announced: typer.echo(f"drom: {announced}", err=True))
    bar = Bar(sys.stderr, "simulating")
    runs = [run for number in sorted(sources, reverse=True) for run in runs_of(number, sources[number], folder)]
    try:
        run_all(runs, at_once, bar.show)
    except KeyboardInterrupt:
        return True
    finally:
        bar.clear()
    return False


def _outcomes(numbers: list[int], sources: dict[int, Source], folder: Path, seed: int) -> list[Outcome]:
    from drom.scheduler.reproduction.sd_policy.outcome import outcome_of
    from drom.scheduler.reproduction.sd_policy.real.command import outcome

    with saying("reading results"):
        return [outcome(folder, seed) if n == 5 else outcome_of(n, sources[n], folder) for n in numbers]


def _told(outcomes: list[Outcome]) -> dict[str, Any]:
    from drom.scheduler.reproduction.sd_policy.outcome import SCHEMA

    return {
        "schema_version": SCHEMA,
        "complete": all(outcome.complete for outcome in outcomes),
        "workloads": [outcome.to_json() for outcome in outcomes],
    }


def _print(outcomes: list[Outcome], told: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json_text(told))
        return
    for outcome in outcomes:
        for line in (*outcome.lines(), ""):
            typer.echo(line)
    typer.echo("Changes are from static backfilling. docs/reproduction.md says what they rest on.")


def _write(outcomes: list[Outcome], told: dict[str, Any], out: Path, *, draw: bool) -> None:
    """Write reproduction.json and, if `draw` and they can be drawn, the pictures."""
    from drom.scheduler.analysis.results import write_value
    from drom.scheduler.reproduction.sd_policy.pictures import write_all

    write_value(told, out / "reproduction.json")
    if draw:
        _try_to_draw(lambda: write_all(outcomes, out))


def _show(
    told: dict[str, Any],
    lines: Iterable[str],
    out: Path | None,
    name: str,
    draw: Callable[[Path], None] | None = None,
    *,
    as_json: bool,
) -> None:
    """Print results, as JSON or as lines; write them to a file in the folder `out`, and draw there."""
    from drom.scheduler.analysis.results import write_value

    typer.echo(json_text(told) if as_json else "\n".join(lines).rstrip())
    if out is not None:
        write_value(told, out / name)
        if draw:
            _try_to_draw(lambda: draw(out))


def _try_to_draw(draw: Callable[[], None]) -> None:
    from drom.workloads.errors import WorkloadError

    try:
        with saying("drawing"):
            draw()
    except WorkloadError as error:
        typer.echo(f"note: there are no pictures. {error}", err=True)
