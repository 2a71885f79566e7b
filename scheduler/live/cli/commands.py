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
from drom.agent.cli.parameters import AsJson, optional, reader, with_options
from drom.agent.execution.protocol import CONTAINER
from drom.agent.system.paths import default_queue
from drom.agent.text import WordError
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cli import places, tables
from drom.scheduler.live.cli import scheduler as cli_scheduler
from drom.scheduler.live.cli.history_options import HistoryOptions
from drom.scheduler.live.cli.job_options import JobOptions
from drom.scheduler.live.cli.scheduler_file import WithFile
from drom.scheduler.live.cli.submit_script import INPUT, SCRIPT, Submission
from drom.scheduler.live.cli.wait import await_all
from drom.scheduler.live.cluster.job_filter import JobFilter, parse_jobs, parse_one_job
from drom.scheduler.live.cluster.node_lists import parse_nodes
from drom.scheduler.live.cluster.paging import SCHEMA_VERSION
from drom.scheduler.live.cluster.spec import (
    MOST,
    MOST_AT_ONCE,
    Dependency,
    Notice,
    Spec,
    exported,
    from_json,
    parse_amounts,
    parse_array,
    parse_class,
    parse_contract,
    parse_dependencies,
    parse_features,
    parse_memory,
    parse_notice,
    parse_pattern,
    parse_signal_now,
    parse_time,
)
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
MOST_LISTED = 10_000_000
"""The largest --limit of `drom queue`: more jobs than a scheduler can have."""
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


def _umask() -> int:
    """Return the umask of this process, which can only be read by setting it."""
    found = os.umask(0o077)
    os.umask(found)
    return found


def _picture(text: str) -> Path:
    """Return the path of a picture. Raises ValueError for an unknown kind of picture."""
    from drom.scheduler.analysis.plots import KINDS

    if Path(text).suffix[1:] not in KINDS:
        kinds = ", ".join(f".{kind}" for kind in KINDS)
        msg = f"{text!r} is not a picture: end its name in one of {kinds}."
        raise ValueError(msg)
    return Path(text)


@dataclass(frozen=True, slots=True)
class QueueOptions(JobOptions):
    """The options of `drom queue`."""

    every: bool = typer.Option(False, "--all", help="Also list the last jobs that have ended.")
    last: int | None = typer.Option(
        None, min=1, max=100_000, help="How many of the last jobs: with --all, default 100; in a report, default all."
    )
    limit: int | None = typer.Option(
        None,
        metavar="N",
        min=0,
        max=MOST_LISTED,
        help="The most waiting and running jobs to list; 0: all. Default: 1000; with --json: all.",
    )
    watch: bool = typer.Option(False, "--watch", help="Repeat the list each second, until Ctrl-C.")
    gantt: Path | None = typer.Option(
        None, metavar="FILE", help="Draw the jobs on each node over time: .png, .svg, .pdf.", parser=reader(_picture)
    )
    out: Path | None = typer.Option(
        None, metavar="DIR", help="Write the jobs that have run to a folder as drom simulate does, for drom compare."
    )
    html: Path | None = typer.Option(
        None, metavar="FILE", help="Write a report on the jobs that have run, with pictures, to one file."
    )
    json: AsJson = False


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
        _tell_history(_ask(scheduler, "history", last=options.last or 100_000), options)
        return
    if every and options.limit is not None:
        raise typer.BadParameter("--limit applies to waiting and running jobs: with --all, give --last.")
    if every:
        wanted: dict[str, Any] = {"all": True, "last": options.last or 100}
    else:
        first = (0 if options.json else FIRST) if options.limit is None else options.limit
        wanted = {"limit": first} if first else {}
    ask = partial(_queue, scheduler, choice, **wanted)
    _print(ask(), tell := partial(tables.lines, choice), as_json=options.json, anew=options.watch)
    while options.watch:
        output.pause(1)
        try:
            value = ask()
        except errors.ControlError as error:  # it may be started again
            output.clear()
            typer.echo(str(error), err=True)
        else:
            _print(value, tell, as_json=options.json, anew=True)


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


def _tell_history(told: dict[str, Any], options: QueueOptions) -> None:
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
    elif len(changed) <= MOST_SAID:
        for one in changed:
            output.say(f"{done} job {tables.label(one)}")
    else:
        output.say(f"{done} {len(changed)} jobs")
    if answer["refused"]:
        raise SchedulerError("\n".join(dict.fromkeys(answer["refused"])))
    if not changed and not as_json:
        output.say("No job is chosen by that: see drom queue")


MOST_SAID = 20
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
