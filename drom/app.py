# SPDX-License-Identifier: Apache-2.0
"""The command line `drom`: mounts the commands of all packages, and turns their errors into exit statuses."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer._completion_classes import completion_init  # typer.completion has it too, but does not export it

from drom.agent import errors
from drom.agent.cli.usage import usage_sentence
from drom.agent.observe.log import failure
from drom.agent.system import os_errors
from drom.help import HEADINGS, Commands
from dromlib.errors import DromError

if TYPE_CHECKING:
    from collections.abc import Callable

completion_init()  # contrib/completions needs it, and typer calls it only with those options


def _mount_node(app: typer.Typer) -> None:
    from drom.agent.cli.commands import agent_app, settings_app
    from drom.agent.cli.keys import keys_app

    _mount_group(app, "config", settings_app)
    _mount_group(app, "keys", keys_app)
    app.add_typer(agent_app)


def _mount_cluster(app: typer.Typer) -> None:
    from drom.scheduler.live.cli.commands import app as cluster_app

    app.add_typer(cluster_app)


def _mount_slurm(app: typer.Typer) -> None:
    from drom.scheduler.slurm.cli import app as slurm_app

    app.add_typer(slurm_app, name="slurm", cls=Commands)  # runs without a command, too


def _mount_scheduling(app: typer.Typer) -> None:
    from drom.scheduler.cli.simulate import compare, simulate
    from drom.scheduler.comparison.cli import compare_policies
    from drom.scheduler.experiments.cli import experiment
    from drom.scheduler.reproduction.cli import app as reproduction_app
    from drom.workloads.cli import app as workload_app

    _mount_group(app, "workload", workload_app)
    _mount_group(app, "reproduce", reproduction_app)
    app.command()(simulate)
    app.command()(compare)
    app.command("compare-policies")(compare_policies)
    app.command()(experiment)


def _mount_drom_itself(app: typer.Typer) -> None:
    from drom.agent.demo.cli import demo
    from drom.bench import bench
    from drom.scheduler.demo.cli import demo_adaptive, demo_cluster, demo_controllers, demo_mixed, demo_slurm

    app.command()(demo)
    app.command("demo-cluster")(demo_cluster)
    app.command("demo-controllers")(demo_controllers)
    app.command("demo-adaptive")(demo_adaptive)
    app.command("demo-mixed")(demo_mixed)
    app.command("demo-slurm")(demo_slurm)
    app.command()(bench)


MOUNTS: dict[str, Callable[[typer.Typer], None]] = {
    "The node": _mount_node,
    "Programs": _mount_node,
    "Cluster": _mount_cluster,
    "Slurm": _mount_slurm,
    "Scheduling": _mount_scheduling,
    "Looking at drom itself": _mount_drom_itself,
}
"""What mounts the commands of each heading."""


def command_line(name: str = "") -> typer.Typer:
    """Return the command line with all commands; for the `name` of a command, with at least those under its heading.

    A process runs one command, and importing those of other packages would take longer than most commands run.
    """
    app = typer.Typer(
        name="drom",
        cls=Commands,
        help="Share the cores of a node between programs that shrink and grow while they run.",
        no_args_is_help=False,
        add_completion=False,  # its options install scripts that have the shell evaluate what drom prints
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback(invoke_without_command=True)(_main)
    headings = [heading for heading, names in HEADINGS.items() if name in names]
    if not headings and name != "--version":
        headings = [*HEADINGS]
    for mount in dict.fromkeys(MOUNTS[heading] for heading in headings):
        mount(app)
    return app


def _mount_group(app: typer.Typer, name: str, group: typer.Typer) -> None:
    about = group.info.help
    app.add_typer(group, name=name, cls=Commands, callback=_help_alone, invoke_without_command=True, help=about)


def _help_alone(context: typer.Context) -> None:
    """Print the help of a group of commands if none of them is named."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


DEBUG = "DROM_DEBUG"
"""The variable that makes every failure show its traceback."""
USAGE_ERROR = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""The class of typer's usage errors, whose name differs between its versions."""


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer's
    if wanted:
        from importlib import metadata

        typer.echo(f"drom {metadata.version('drom')}")
        raise typer.Exit


def _main(
    context: typer.Context,
    *,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    _help_alone(context)


def run_app() -> None:
    """Run the command line; every failure is one sentence on stderr and exit 1, wrong usage is exit 2.

    A request that cannot be met yet is exit 75, the status of a temporary failure in sysexits.h.
    """
    os_errors.name_output()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for characters that the encoding lacks
    status: int | str
    try:
        status = _imported(sys.argv[1:2])(prog_name="drom", standalone_mode=False) or 0
        sys.stdout.flush()
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):  # typer turns this error into an exit
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


def _imported(name: list[str]) -> typer.Typer:
    """Return the command line for a command, in which Ctrl-C then raises KeyboardInterrupt; the agent has handlers."""
    found = command_line(*name)
    if name != ["agent"] and signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return found


def _nobody_reads() -> int:
    """Return the status of a C program that writes to a pipe without a reader, as after `| head`."""
    os_errors.discard_output()
    return 128 + signal.SIGPIPE


def _failed(error: Exception) -> int | str:
    """Return a status or, for the status 1, the error message."""
    if isinstance(error, USAGE_ERROR):
        typer.echo(failure(_wrong_usage(error)), err=True)
        return 2
    if isinstance(error, errors.NotYetError):
        typer.echo(failure(f"drom: {error}"), err=True)
        return os.EX_TEMPFAIL
    if isinstance(error, DromError):
        said = os_errors.NO_CURRENT_FOLDER if os_errors.lacks_current_folder(error) else str(error)
        return "\n".join(f"drom: {line}" for line in said.splitlines())
    if isinstance(error, MemoryError):
        return "drom: There is not enough memory for this request: request less, or use a machine with more."
    if isinstance(error, OSError):
        if error.filename == os_errors.OUTPUT:
            os_errors.discard_output()
        return f"drom: {os_errors.sentence_of(error)}"
    if isinstance(error, KeyError) and "_DROM_COMPLETE" in os.environ:
        what = f"_DROM_COMPLETE is for a shell's completion, which also sets {error}: unset it."
    else:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        what = f"this is a fault of drom ({what}): report it, with the output under {DEBUG}=1."
    return f"drom: {what}"


def _wrong_usage(error: Any) -> str:  # noqa: ANN401 - typer does not name the class of all its usage errors
    """Return the message for a usage error, with a pointer to the help."""
    command = error.ctx.command_path if error.ctx else "drom"
    return f"drom: {usage_sentence(error)}: see `{command} --help`."
