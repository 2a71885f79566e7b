# SPDX-License-Identifier: Apache-2.0
"""The commands of a node: the agent, its configuration, doctor, topology. They decide nothing about cores."""

from __future__ import annotations

import inspect
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from drom.agent.cli import output
from drom.agent.cli.events import events
from drom.agent.cli.launch import launch
from drom.agent.cli.orders import RuntimeDir, orders_app
from drom.agent.cli.parameters import AsJson
from drom.agent.config import sources as config
from drom.agent.config import validation
from drom.agent.config.options import OPTIONS
from drom.agent.control import client
from drom.agent.daemon import startup
from drom.agent.topology.detect import find_machine

from dromlib import native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

agent_app = typer.Typer()
agent_app.add_typer(orders_app)
agent_app.command()(events)
settings_app = typer.Typer(help="Check, show and reload the configuration of the agent.")
Words = Annotated[
    str | None,
    typer.Option("--topology", metavar="WORDS", help='Lay a synthetic topology over real CPUs: "pack:2 core:4 pu:2".'),
]
SysfsRoot = Annotated[Path, typer.Option("--sysfs-root", metavar="DIR", help="Read sys/ and proc/ below DIR.")]


def with_config_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add a flag for each option of the agent, and ``--config``, to a command that takes them as ``**flags``."""
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


@agent_app.command()
@with_config_options
def agent(**flags: object) -> None:
    """Manage the cores of this node until SIGTERM or Ctrl-C; SIGHUP reloads, SIGUSR1 hands over to the next agent."""
    sources = _sources(flags)
    startup.exec_agent(config.options_of(sources.load(os.environ)), sources)


@settings_app.command("check")
def config_check(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Default: the file that an agent would read.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Check a configuration file: print "ok", or a sentence for each fault."""
    path = file or config.default_file(os.environ)
    faults: list[str] = []
    try:
        if path is not None:
            validation.check_file(path)
    except config.ConfigError as error:
        if not json:
            raise
        faults = str(error).splitlines()
    if json:
        output.emit({"schema_version": config.SCHEMA_VERSION, "file": path and str(path), "faults": faults})
        raise typer.Exit(int(bool(faults)))
    output.say("ok" if path else f"ok: there is no {config.SYSTEM_FILE}, every option has its default")


@settings_app.command("show")
@with_config_options
def config_show(json: AsJson = False, **flags: object) -> None:
    """Show every option of an agent on this node, its value, and where it was set."""
    settings, file = _load(flags)
    output.settings(config.to_json(settings, file), as_json=json)


@settings_app.command("reload")
def config_reload(runtime_dir: RuntimeDir, json: AsJson = False) -> None:
    """Reload the configuration of the agent; options that cannot change while it runs are listed."""
    output.reloaded(client.order(runtime_dir, "reload"), as_json=json)


@agent_app.command()
@with_config_options
def doctor(json: AsJson = False, **flags: object) -> None:
    """Check this node for an agent with these options: a line for each check, with the remedy; exit 1 if one fails."""
    from drom.agent.cli import doctor as examination
    from drom.agent.cli.doctor_checks import Finding
    from drom.agent.config.validation import conflicts

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


@agent_app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def run(context: typer.Context) -> None:
    """Run a command on cores granted by the agent: drom run [OPTIONS] -- CMD. See drom run --help."""
    launch(context.args)


@agent_app.command()
def topology(
    words: Words = None,
    emulate: Annotated[str | None, typer.Option(metavar="WORDS", help="Show a synthetic machine.")] = None,
    sysfs_root: SysfsRoot = Path("/"),
    json: AsJson = False,
) -> None:
    """Show packages, NUMA nodes, cores and CPUs as the agent detects them."""
    output.topology(find_machine(words, emulate, str(sysfs_root)), as_json=json)


@agent_app.command()
def flags(
    prefix: Annotated[
        bool, typer.Option("--prefix", help="Print the folder that contains include/ and lib/ instead.")
    ] = False,
    mpi: Annotated[
        bool, typer.Option("--mpi", help="Add drom_mpi.c, which adaptive MPI programs compile: mpicc mine.c $(...).")
    ] = False,
) -> None:
    """Print the compiler flags for a program that uses drom.h: gcc mine.c $(drom flags)."""
    library = native.library_path().parent
    if prefix:
        typer.echo(library.parent)
        return
    path = ["-Xlinker", "-rpath", "-Xlinker", str(library)]
    if "," not in str(library):
        path = [f"-Wl,-rpath,{library}"]
    include = native.include_dir()
    words = [f"-I{include}", *[f"{include}/drom_mpi.c"] * mpi, f"-L{library}", *path, "-ldrom"]
    typer.echo(quoted := " ".join(re.sub(r"([^\w@%+=:,./-])", r"\\\1", word) for word in words))  # as pkg-config does
    if "\\" in quoted and not sys.stdout.isatty():
        why = f"{library.parent} has characters with a meaning in shells"
        typer.echo(f'drom: {why}: if the compiler misses files, write eval "gcc mine.c $(drom flags)".', err=True)
