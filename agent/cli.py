# SPDX-License-Identifier: Apache-2.0
"""The command line. Commands hand data to `agent.output`; nothing here decides anything about cores."""

from __future__ import annotations

import inspect
import io
import os
import re
import signal
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer._completion_classes import completion_init  # typer.completion has it too, but does not export it

from agent import config, consistency, control, errors, failures, output, service
from agent.__main__ import launch
from agent.cli_events import events
from agent.cli_help import Commands
from agent.cli_keys import keys_app
from agent.cli_orders import AsJson, RuntimeDir, orders_app
from agent.history import HistoryError
from agent.log import failure
from agent.machine import find_machine
from agent.options import OPTIONS
from agent.runtime import RuntimeDirError
from agent.signalling import ended_by_sigterm
from agent.synthetic import TopologyError
from dromlib import native
from dromlib.cpulist import CpuListError
from scheduler.cli import SchedulerError, compare, simulate
from scheduler.contest.cli import compare_policies
from scheduler.demo.cli import demo_cluster
from scheduler.live.cli import app as cluster_app
from scheduler.reproduction.cli import app as reproduction_app
from workloads.cli import app as workload_app
from workloads.errors import WorkloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

app = typer.Typer(
    name="drom",
    cls=Commands,
    help="Share the cores of a node between programs that shrink and grow while they run.",
    no_args_is_help=False,
    add_completion=False,  # its options install scripts that have the shell evaluate what drom prints
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

completion_init()  # what contrib/completions asks for, which typer knows only with those options


def _help_alone(context: typer.Context) -> None:
    """Print the help of a group of commands when none of them is named."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


settings_app = typer.Typer(help="Check, show and reload the configuration of the agent.")
for _name, _group in (
    ("config", settings_app),
    ("keys", keys_app),
    ("workload", workload_app),
    ("reproduce", reproduction_app),
):
    about = _group.info.help
    app.add_typer(_group, name=_name, cls=Commands, callback=_help_alone, invoke_without_command=True, help=about)
app.command()(simulate)
app.command()(compare)
app.command("compare-policies")(compare_policies)
app.add_typer(orders_app)
app.command()(events)
app.add_typer(cluster_app)

EXPECTED = (
    config.ConfigError,
    errors.ControlError,
    TopologyError,
    RuntimeDirError,
    CpuListError,
    HistoryError,
    WorkloadError,
    SchedulerError,
)
"""What is said in sentences of its own."""
DEBUG = "DROM_DEBUG"
"""A variable with which every failure shows its traceback."""
Words = Annotated[
    str | None,
    typer.Option("--topology", metavar="WORDS", help='Lay a synthetic topology over real CPUs: "pack:2 core:4 pu:2".'),
]
USAGE_ERROR = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""What typer raises for any wrong use of a command line, under a name that differs between its versions."""
SysfsRoot = Annotated[Path, typer.Option("--sysfs-root", metavar="DIR", help="Read sys/ and proc/ below DIR.")]


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer's
    if wanted:
        typer.echo(f"drom {metadata.version('drom')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", help="Say which version this is.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    _help_alone(context)


def run_app() -> None:
    """Run the command line; every failure is one sentence on stderr and exit 1, wrong usage is exit 2.

    What cannot be done yet is exit 75, as sysexits.h has it for a temporary failure.
    """
    failures.name_output()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what cannot be written as it is
    status: int | str
    try:
        status = app(prog_name="drom", standalone_mode=False) or 0
        sys.stdout.flush()
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):  # of which typer makes an exit
            raise
        status = _nobody_reads()
    except BrokenPipeError:
        status = _nobody_reads()
    except KeyboardInterrupt:
        status = 130
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        status = _failed(error)
        if isinstance(status, str):
            status = failure(status)
    sys.exit(status)


def _nobody_reads() -> int:
    """Return the status of a program of C that writes to a pipe which nobody reads: `| head` has seen enough."""
    failures.discard_output()
    return 128 + signal.SIGPIPE


def _failed(error: Exception) -> int | str:
    """Return a status or, for the status 1, the sentences of a failure."""
    if isinstance(error, USAGE_ERROR):
        typer.echo(failure(_usage_sentence(error)), err=True)
        return 2
    if isinstance(error, errors.NotYetError):
        typer.echo(failure(f"drom: {error}"), err=True)
        return os.EX_TEMPFAIL
    if isinstance(error, EXPECTED):
        return "\n".join(f"drom: {line}" for line in str(error).splitlines())
    if isinstance(error, MemoryError):
        return "drom: There is not enough memory for what was asked: ask for less, or where there is more."
    if isinstance(error, OSError):
        if error.filename == failures.OUTPUT:
            failures.discard_output()
        return f"drom: {failures.sentence_of(error)}"
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"drom: this is a fault of drom ({what}): report it, with what {DEBUG}=1 in the environment shows."


def _usage_sentence(error: Any) -> str:  # noqa: ANN401 - typer does not name the class of all its usage errors
    """Return what is wrong with a command line, with the way to the help."""
    command = error.ctx.command_path if error.ctx else "drom"
    return f"drom: {' '.join(error.format_message().split()).rstrip('.')}: see `{command} --help`."


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command whose ``**flags`` are options of the agent a flag for each option, and ``--config``."""
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, about])
        for name, kind, default, about in [*_agent_flags(), ("config_file", str | None, None, CONFIG_FLAG)]
    ]
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
    command.__signature__ = inspect.Signature([*own, *parameters])  # type: ignore[attr-defined] # typer reads it
    return command


CONFIG_FLAG = typer.Option("--config", metavar="FILE", help="Read this file instead of /etc/drom/drom.toml.")


def _agent_flags() -> Iterator[tuple[str, Any, None, Any]]:
    for option in OPTIONS:
        kind = option.about.kind
        typed = str if kind.base is tuple else kind.base
        both = f"{option.flag}/--no-{option.flag[2:]}" if typed is bool else option.flag
        shown = False if option.default in (None, "", False, ()) else str(option.default)
        about = typer.Option(both, metavar=kind.metavar or None, help=option.about.help, show_default=shown)
        yield option.name, typed | None, None, about


def _sources(flags: dict[str, object]) -> config.Sources:
    named = flags.pop("config_file")
    given = {name: value for name, value in flags.items() if value is not None}
    return config.Sources(given, str(Path(str(named)).absolute()) if named else None)


def _load(flags: dict[str, object]) -> tuple[dict[str, config.Setting], Path | None]:
    sources = _sources(flags)
    return sources.load(os.environ), sources.file(os.environ)


@app.command()
@takes_options
def agent(**flags: object) -> None:
    """Manage the cores of this node until SIGTERM or Ctrl-C; SIGHUP reloads, SIGUSR1 leaves all to the next agent."""
    sources = _sources(flags)
    service.become(config.options_of(sources.load(os.environ)), sources)


@settings_app.command("check")
def config_check(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Default: the file an agent would read.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Check a configuration file: print ok, or a sentence for each fault."""
    path = file or config.default_file(os.environ)
    faults: list[str] = []
    try:
        if path is not None:
            consistency.check_file(path)
    except config.ConfigError as error:
        if not json:
            raise
        faults = str(error).splitlines()
    if json:
        output.emit({"schema_version": config.SCHEMA_VERSION, "file": path and str(path), "faults": faults})
        raise typer.Exit(int(bool(faults)))
    output.say("ok" if path else f"ok: there is no {config.SYSTEM_FILE}, every option has its default")


@settings_app.command("show")
@takes_options
def config_show(json: AsJson = False, **flags: object) -> None:
    """Show every option an agent would have here, its value, and where that is from."""
    settings, file = _load(flags)
    output.settings(config.to_json(settings, file), as_json=json)


@settings_app.command("reload")
def config_reload(runtime_dir: RuntimeDir, json: AsJson = False) -> None:
    """Have the agent read its configuration again: what can change does, what cannot is named."""
    output.reloaded(control.order(runtime_dir, "reload"), as_json=json)


@app.command()
@takes_options
def doctor(json: AsJson = False, **flags: object) -> None:
    """Examine this node for an agent with these options: a line each, with what to do; exit 1 when something fails."""
    from agent import doctor as examination
    from agent.checks import Finding
    from agent.consistency import conflicts

    try:
        settings, file = _load(flags)
        faults = [*conflicts({name: one for name, one in settings.items() if one.origin != "default"})]
        good = f"{file} is right." if file else "Nothing is configured."
    except config.ConfigError as error:
        settings = config.load({}, {}, None)
        faults = str(error).splitlines()
    told = [Finding("configuration", "fail", fault) for fault in faults]
    told = told or [Finding("configuration", "ok", good)]
    found = examination.examine(config.options_of(settings), told, os.environ)
    output.findings(examination.to_json(found), as_json=json)
    raise typer.Exit(int(any(one.state == "fail" for one in found)))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def run(context: typer.Context) -> None:
    """Run a command on cores the agent grants: drom run [OPTIONS] -- CMD. See drom run --help."""
    launch(context.args)


@app.command()
def topology(
    words: Words = None,
    emulate: Annotated[str | None, typer.Option(metavar="WORDS", help="Show a synthetic machine.")] = None,
    sysfs_root: SysfsRoot = Path("/"),
    json: AsJson = False,
) -> None:
    """Show packages, NUMA nodes, cores and CPUs as the agent sees them."""
    output.topology(find_machine(words, emulate, str(sysfs_root)), as_json=json)


@app.command()
def flags(
    prefix: Annotated[bool, typer.Option("--prefix", help="Print the folder of include/ and lib/ instead.")] = False,
) -> None:
    """Print the compiler flags of a program that uses drom.h: gcc mine.c $(drom flags)."""
    library = native.library_path().parent
    if prefix:
        typer.echo(library.parent)
        return
    words = [f"-I{native.include_dir()}", f"-L{library}", f"-Wl,-rpath,{library}", "-ldrom"]
    typer.echo(" ".join(re.sub(r"([^\w@%+=:,./-])", r"\\\1", word) for word in words))  # as pkg-config writes spaces


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the picture goes.")] = Path("out"),
    seconds: Annotated[float, typer.Option(help="How long the first program runs.")] = 12.0,
    json: AsJson = False,
) -> None:
    """Watch two OpenMP programs share this machine."""
    from agent import demo as demonstration

    raise typer.Exit(demonstration.run(out, seconds, as_json=json))


app.command("demo-cluster")(demo_cluster)


@app.command()
@ended_by_sigterm()
def bench(
    what: Annotated[
        str,
        typer.Argument(metavar="node|openmp|resize-cost|faults|hostile|day|simulate|cluster", help="What to measure."),
    ] = "node",
    runs: Annotated[int, typer.Option(help="Runs of each measurement of the node, or days.", min=5)] = 5,
    cycles: Annotated[int, typer.Option(help="Shrinks, moves and growths of each program.", min=5)] = 20,
    log: Annotated[
        Path | None, typer.Option(metavar="PATH", help="simulate: a log, or a folder of them; else $DROM_WORKLOADS.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Measure the node agent, its recovery from faults, what resizes cost programs, the simulator or a live cluster.

    Prints medians and spread. `hostile` measures orders while another user attacks the agent's sockets.
    """
    if what == "node":
        from agent import bench as benchmark

        output.bench(benchmark.node(runs), as_json=json)
    elif what == "openmp":
        from agent import bench_openmp

        output.bench(bench_openmp.measure(runs), as_json=json)
    elif what == "resize-cost":
        from agent.bench_resize import resize_cost

        output.resize_cost(resize_cost(cycles), as_json=json)
    elif what == "faults":
        from agent.bench_faults import faults

        output.bench(faults(runs), as_json=json)
    elif what == "hostile":
        from agent.bench_hostile import hostile_users

        output.bench(hostile_users(runs), as_json=json)
    elif what == "day":
        from agent.bench_day import simulate

        output.days(simulate(runs), as_json=json)
    elif what == "simulate":
        from scheduler.bench import measure

        output.bench(measure(runs, log), as_json=json)
    elif what == "cluster":
        from scheduler.live import bench as cluster

        output.bench(cluster.measure(runs), as_json=json)
    else:
        known = "node, openmp, resize-cost, faults, hostile, day, simulate or cluster"
        msg = f"there is no benchmark {what!r}: choose {known}."
        raise typer.BadParameter(msg)
