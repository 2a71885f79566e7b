# SPDX-License-Identifier: Apache-2.0
"""The commands of a cluster: its scheduler, its jobs and its nodes."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from drom.agent import errors
from drom.agent.cli import output
from drom.agent.cli.parameters import AsJson, reader, with_options
from drom.agent.system.paths import default_queue
from drom.agent.text import WordError
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cli import places, tables
from drom.scheduler.live.cli import scheduler as cli_scheduler
from drom.scheduler.live.cli.history_options import HistoryOptions
from drom.scheduler.live.cli.job_options import JobOptions
from drom.scheduler.live.cli.queue_options import QueueOptions
from drom.scheduler.live.cli.scheduler_file import WithFile
from drom.scheduler.live.cli.submit_options import SubmitOptions
from drom.scheduler.live.cli.submit_script import INPUT, SCRIPT, Submission
from drom.scheduler.live.cli.update_options import UpdateOptions
from drom.scheduler.live.cli.wait import await_all
from drom.scheduler.live.cluster.job_filter import JobFilter, parse_jobs, parse_one_job
from drom.scheduler.live.cluster.node_lists import parse_nodes
from drom.scheduler.live.cluster.paging import SCHEMA_VERSION
from drom.scheduler.live.cluster.spec import MOST_AT_ONCE, Notice, from_json, parse_signal_now
from drom.workloads import figures

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer()
app.command(cls=WithFile)(cli_scheduler.scheduler)


Where = Annotated[
    str,
    typer.Option(
        "--scheduler",
        metavar="DIR|HOST:PORT,...",
        help="The folder of the scheduler's queue, or its address for users of other nodes; of several with commas.",
        envvar="DROM_QUEUE",
        default_factory=lambda: str(default_queue()),
        show_default="/var/lib/drom, or ~/.local/state/drom",
    ),
]
T = TypeVar("T")


Number = Annotated[str, typer.Argument(metavar="JOB", help="The number of a job; 12_3 in an array.")]


def _ask(where: str, order: str, **fields: object) -> Any:  # noqa: ANN401 - a JSON value
    return places.ask(places.parse(where), order, **fields)


def _print(
    value: dict[str, Any], lines: Callable[[dict[str, Any]], list[str]], *, as_json: bool, anew: bool = False
) -> None:
    """Print an answer, on an empty screen if `anew`."""
    if anew:
        output.clear()
    if as_json:
        output.emit(tables.for_scripts(value))
    else:
        for line in lines(value):
            output.say(line)


@app.command(cls=Submission, context_settings={"allow_interspersed_args": False})
@with_options(SubmitOptions)
def submit(
    context: typer.Context,
    scheduler: Where,
    options: SubmitOptions,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND...] | SCRIPT [ARGUMENT...]", help="The command or script to run."),
    ] = None,
) -> None:
    """Submit a job: a command, or a script with its requests in #DROM lines."""
    if options.contradiction:
        raise typer.BadParameter(options.contradiction)
    if options.chdir and isinstance(places.parse(scheduler)[0], Path):
        _check_folder(options.chdir)
    words, script = list(command or []), str(context.meta.get(SCRIPT, ""))
    spec = from_json(options.spec(words, script).to_json())
    if options.pty:
        if script and words == [INPUT]:
            raise typer.BadParameter("--pty connects the input to the program: name a script, or write -- COMMAND.")
        from drom.scheduler.live.cli import interactive

        ask = partial(_ask, scheduler, home=options.home)
        raise typer.Exit(interactive.run(spec, places.parse(scheduler)[0], ask))
    answer: dict[str, Any] = {"jobs": []}
    try:
        while left := options.count - len(answer["jobs"]):
            count = min(left, MOST_AT_ONCE)
            more = _ask(scheduler, "submit", jobs=[spec.to_json()], count=count, home=options.home)
            answer = more | {"jobs": answer["jobs"] + more["jobs"]}
            if options.array:
                break
        for text in answer.get("warnings", ()):
            typer.echo(f"drom: warning: {text}", err=True)
    finally:  # those before a refusal are submitted
        if jobs := answer["jobs"]:
            said = _submitted(jobs[:1] if options.array else jobs, parsable=options.parsable)
            output.emit(answer) if options.json else output.say(said)
    if options.wait:
        sys.stdout.flush()
        raise typer.Exit(await_all(answer["jobs"], lambda number: _ask(scheduler, "job", job=number)))


def _check_folder(folder: Path) -> None:
    """Raise SchedulerError for a folder that agents of this machine could not change to."""
    try:
        os.close(os.open(folder, os.O_PATH | os.O_DIRECTORY))
        reason = "" if os.access(folder, os.X_OK) else os.strerror(errno.EACCES)
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        msg = f"cannot change to {folder}: {reason}: choose another --chdir."
        raise SchedulerError(msg)


def _submitted(numbers: list[int], *, parsable: bool) -> str:
    if parsable:
        return "\n".join(map(str, numbers))
    first, last = numbers[0], numbers[-1]
    return f"Submitted job {first}" if first == last else f"Submitted jobs {first} to {last}"


@app.command()
@with_options(QueueOptions)
def queue(scheduler: Where, options: QueueOptions) -> None:
    """List the waiting and running jobs: their nodes, times, and reasons for waiting."""
    choice = options.job_filter
    every = options.every or choice.over
    files = bool(options.gantt or options.out or options.html)
    if files and (options.watch or options.json or any(choice)):
        raise typer.BadParameter(_FILES)
    if options.last is not None and not (every or files):
        raise typer.BadParameter("--last applies to jobs that have ended: add --all, --gantt, --html or --out.")
    if options.gantt or options.html:
        figures.require()
    if files:
        _write_history(_ask(scheduler, "history", last=options.last or 100_000), options)
        return
    if every and options.limit is not None:
        raise typer.BadParameter("--limit applies to waiting and running jobs: with --all, give --last.")
    if every:
        wanted: dict[str, Any] = {"all": True, "last": options.last or 100}
    else:
        first = (0 if options.json else FIRST) if options.limit is None else options.limit
        wanted = {"limit": first} if first else {}
    ask = partial(_queue, scheduler, choice, **wanted)
    _print(ask(), lines := partial(tables.lines, choice), as_json=options.json, anew=options.watch)
    while options.watch:
        output.pause(1)
        try:
            value = ask()
        except errors.ControlError as error:  # it may be started again
            output.clear()
            typer.echo(str(error), err=True)
        else:
            _print(value, lines, as_json=options.json, anew=True)


@app.command("history")
@with_options(HistoryOptions)
def job_history(scheduler: Where, options: HistoryOptions) -> None:
    """List the jobs that are over, or print totals of what they used."""
    if options.contradiction:
        raise typer.BadParameter(options.contradiction)
    options.show(_ask(scheduler, "history", brief=True, last=options.most, **options.choice))


FIRST = 1000
"""The number of jobs that are listed by default."""
_FILES = "--gantt, --html and --out show all jobs that have run: omit --watch, --json and the options that select jobs."


def _queue(where: str, choice: JobFilter, **fields: object) -> dict[str, Any]:
    chosen = {name: list(given) for name, given in choice._asdict().items() if given}
    return choice.of(_ask(where, "queue", **fields, **chosen))


def _write_history(told: dict[str, Any], options: QueueOptions) -> None:
    """Draw and write the history of the jobs that have run. Raises SchedulerError if none has."""
    from drom.scheduler.analysis import plots, report, results
    from drom.scheduler.live import accounting

    schedule = accounting.schedule_of(told)
    if not len(schedule.runs):
        raise SchedulerError("no job has run yet, so there is nothing to draw or to write: see drom queue.")
    if options.gantt:
        chart, title = accounting.chart_of(told), f"{told['name']}, {told['policy']}"
        figure = plots.gantt_figure(chart.schedule, title, labels=chart.labels, filling=chart.filling)
        plots.write(figure, options.gantt, "--gantt")
        output.say(f"Drew {options.gantt}")
    with TemporaryDirectory(prefix="drom-queue-") as scratch:
        folder = options.out or Path(scratch) / told["name"]
        if options.out or options.html:
            results.write_schedule(*accounting.account(told, schedule), folder)
        if options.out:
            output.say(f"Wrote {options.out}: compare it with drom compare")
        if options.html:
            report.write_report([folder], options.html)
            output.say(f"Wrote {options.html}")


@app.command()
def job(number: Number, scheduler: Where, json: AsJson = False) -> None:
    """Show a job: why it waits, where it runs, when and why it was resized, and its events."""
    one = _named(parse_one_job, number)
    which = {"array": one.array, "index": one.first} if one.array else {"job": one.first}
    _print(_ask(scheduler, "job", **which), tables.job, as_json=json)


def _named(parse: Callable[[str], T], text: str, argument: str = "JOB") -> T:
    """Return the jobs or nodes that an argument names. Raises BadParameter."""
    try:
        return parse(text)
    except WordError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{argument}'") from error


def _ranges(jobs: Sequence[str]) -> list[list[int]]:
    """Return the jobs that arguments name as an order has them. Raises BadParameter."""
    return [list(one) for text in jobs for one in _named(parse_jobs, text)]


Jobs = Annotated[
    list[str] | None, typer.Argument(metavar="[JOB...]", help="Jobs: 12, 3-7, 12_3 or 12_[1-4] in an array.")
]


@dataclass(frozen=True, slots=True)
class SelectOptions(JobOptions):
    """The options by which an order chooses jobs."""

    json: AsJson = False

    def order(self, jobs: list[str] | None) -> dict[str, Any]:
        """Return the fields of an order for the chosen jobs. Raises BadParameter if nothing is chosen."""
        choice = self.job_filter
        if not jobs and not any(choice):
            raise typer.BadParameter(
                "no job is chosen: name some, or use --me, --user, --state or --name.", param_hint="'JOB'"
            )
        return {"ranges": _ranges(jobs or ())} | {
            name: list(given) for name, given in choice._asdict().items() if given
        }


@app.command()
@with_options(SelectOptions)
def cancel(
    scheduler: Where,
    options: SelectOptions,
    jobs: Jobs = None,
    signal: Annotated[
        Notice | None,
        typer.Option(
            metavar="[B:]SIGNAL",
            help="Send running jobs this signal instead: to their tasks, or with B: to the shells of scripts.",
            parser=reader(parse_signal_now),
        ),
    ] = None,
) -> None:
    """End jobs, or remove them from the queue."""
    done = "Signalled" if signal else "Cancelled"
    fields = options.order(jobs) | ({"signal": signal.signal, "first": signal.first} if signal else {})
    _change(_ask(scheduler, "cancel", **fields), done, as_json=options.json)


@app.command()
@with_options(SelectOptions)
def hold(
    scheduler: Where,
    options: SelectOptions,
    jobs: Jobs = None,
    release: Annotated[bool, typer.Option("--release", help="Allow them to start again.")] = False,
) -> None:
    """Keep jobs from starting."""
    done = "Released" if release else "Held"
    _change(_ask(scheduler, "hold", held=not release, **options.order(jobs)), done, as_json=options.json)


@app.command()
@with_options(UpdateOptions)
def update(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help="Jobs: 12, 3-7, 12_3 or 12_[1-4] in an array.")],
    scheduler: Where,
    options: UpdateOptions,
) -> None:
    """Change what waiting jobs ask for, or the time limit of running ones; '' unsets a value."""
    changes = options.changes()
    if not changes:
        raise typer.BadParameter("nothing to change: give what the job is to have, such as --time 2h.")
    _change(_ask(scheduler, "update", changes=changes, ranges=_ranges(jobs)), "Updated", as_json=options.json)


def _change(answer: dict[str, Any], done: str, *, as_json: bool) -> None:
    """Print the jobs that an order has changed. Raises SchedulerError with a line for each reason why one was not."""
    changed = answer["jobs"]
    if as_json:
        output.emit({"schema_version": SCHEMA_VERSION, "jobs": list(map(tables.for_scripts, changed))})
    elif len(changed) <= MOST_NAMED:
        for one in changed:
            output.say(f"{done} job {tables.label(one)}")
    else:
        output.say(f"{done} {len(changed)} jobs")
    if answer["refused"]:
        raise SchedulerError("\n".join(dict.fromkeys(answer["refused"])))
    if not changed and not as_json:
        output.say("No job is chosen by that: see drom queue")


MOST_NAMED = 20
"""Jobs that are named in lines of their own."""


@app.command()
def nodes(
    scheduler: Where,
    partitions: Annotated[
        bool, typer.Option("--partitions", help="List the home partitions instead, and the schedulers that lead them.")
    ] = False,
    json: AsJson = False,
) -> None:
    """List the nodes of the cluster, their states, and the jobs that run on them."""
    if partitions:
        _print(_homes(scheduler), tables.homes, as_json=json)
    else:
        _print(_ask(scheduler, "nodes"), tables.nodes, as_json=json)


def _homes(where: str) -> dict[str, Any]:
    """Return the home partitions, with what each has unless no scheduler leads it."""
    value: dict[str, Any] = _ask(where, "homes")
    for row in value["homes"]:
        if row.get("led_by"):
            with suppress(errors.ControlError):  # it has ended meanwhile
                row.update(_ask(where, "homes", home=row["home"])["homes"][0])
    return value


@app.command()
def drain(
    given: Annotated[list[str], typer.Argument(metavar="NODE...", help="Nodes, such as n1 or n[3-5].")],
    scheduler: Where,
    reason: Annotated[str, typer.Option(help="The reason, shown to other users.")] = "drained",
    undo: Annotated[bool, typer.Option("--undo", help="Allow jobs to start on the nodes again.")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Remove nodes that are down permanently.")] = False,
    json: AsJson = False,
) -> None:
    """Start no more jobs on nodes; the running ones continue."""
    if undo and forget:
        raise typer.BadParameter("--undo and --forget contradict each other: give one of them.")
    why = "" if undo else reason or "drained"
    done = "Forgot node {}" if forget else "Jobs may start on node {} again" if undo else "Drained node {}"
    answer: dict[str, Any] = {}
    refused: list[str] = []
    for name in dict.fromkeys(name for text in given for name in _named(parse_nodes, text, "NODE")):
        try:
            value = _ask(scheduler, "drain", node=name, reason=why, forget=forget)
        except errors.RefusedError as error:  # noqa: PERF203 - the others are drained
            refused.append(str(error))
        else:
            answer = value | {"nodes": [*answer.get("nodes", ()), *value["nodes"]]}
            if not json:
                output.say(done.format(name))
    if json and answer:
        output.emit(tables.for_scripts(answer))
    if refused:
        raise SchedulerError("\n".join(dict.fromkeys(refused)))
