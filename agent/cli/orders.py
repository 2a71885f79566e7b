# SPDX-License-Identifier: Apache-2.0
"""The commands that query and change the jobs of a running agent."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from drom.agent import errors
from drom.agent.cli import output
from drom.agent.cli.parameters import AsJson, reader, with_options
from drom.agent.control import client
from drom.agent.control.remote import RemoteAddress
from drom.agent.model.layouts import Layout, parse_layout
from drom.agent.system.paths import default_keys, default_runtime_dir
from drom.agent.text import parse_duration, parse_size

from dromlib import layout as binary
from dromlib.cpulist import format_cpulist, parse_cpulist

orders_app = typer.Typer()


def _number_or_auto(text: str) -> int:
    """Return a positive number, or 0 for auto."""
    if text == "auto":
        return 0
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text)):
        msg = f"{text[:40]!r} is not a number of CPUs: write a positive number or auto."
        raise ValueError(msg)
    return int(text)


def _class(text: str) -> str:
    if text not in binary.ENUMS["CLASS"]:
        msg = f"{text[:40]!r} is not a class: choose {', '.join(binary.ENUMS['CLASS'])}."
        raise ValueError(msg)
    return text


RuntimeDir = Annotated[
    Path,
    typer.Option(
        "--runtime-dir",
        metavar="DIR",
        help="The directory in which the agent keeps its files.",
        default_factory=default_runtime_dir,
        show_default="/run/drom",
    ),
]
Agent = Path | RemoteAddress
"""The destination of orders: a runtime directory of this node, or an agent on another node."""


_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:@%+=-]*")
"""Names without special characters of any shell: users choose the names of their jobs."""


def _job_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the jobs of a running agent for shell completion: only those with names that need no quoting."""
    try:
        tasks = client.order(context.params.get("runtime_dir") or default_runtime_dir(), "ps")["tasks"]
    except errors.ControlError:
        return []
    names = {task["job"] for task in tasks}
    return sorted(name for name in names if name.startswith(incomplete) and _PLAIN.fullmatch(name))


DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would change; change nothing.")]


def _agent(
    runtime_dir: RuntimeDir,
    remote: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Send the order to the agent of another node.", envvar="DROM_REMOTE"),
    ] = None,
    remote_keys: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The folder with the keys; default: that of `drom keys`.", envvar="DROM_REMOTE_KEYS"
        ),
    ] = None,
) -> Agent:
    """Return the agent that the flags select."""
    folder = remote_keys or default_keys()
    return RemoteAddress(remote, folder) if remote else runtime_dir


with_agent_options = with_options(_agent, "agent")
"""Add the flags that select an agent to a command with a parameter `agent`."""


@orders_app.command()
@with_agent_options
def ps(
    agent: Agent,
    seconds: Annotated[
        float | None, typer.Argument(metavar="SECONDS", help="With --watch: the interval; default: 2.", min=0.1)
    ] = None,
    json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat the list until Ctrl-C.")] = False,
) -> None:
    """List the tasks of this node: their users, the CPUs they have, own and lend, and the reasons."""
    if seconds is not None and not watch:
        raise typer.BadParameter("SECONDS needs --watch")
    output.tasks(client.order(agent, "ps"), as_json=json)
    while watch:
        output.pause(seconds or 2)
        value = client.order(agent, "ps")
        output.clear()
        output.tasks(value, as_json=json)


@orders_app.command()
@with_agent_options
def top(
    agent: Agent,
    once: Annotated[
        bool, typer.Option("--once", help="Print one picture and exit; the default without a terminal.")
    ] = False,
    no_color: Annotated[
        bool, typer.Option("--no-color", help="Draw without colours; NO_COLOR in the environment does the same.")
    ] = False,
) -> None:
    """Show the job on each core and the reasons for changes; live, until q."""
    try:
        from drom.agent.cli import top_screen  # curses is left out of some builds of Python
    except ImportError as error:
        msg = f"drom top needs a Python with curses ({error}): use drom ps --watch."
        raise errors.ControlError(msg) from error
    if once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        output.say(top_screen.once(agent))
    else:
        top_screen.show(agent, colour=not (no_color or os.environ.get("NO_COLOR")))


@orders_app.command()
@with_agent_options
def explain(
    job: Annotated[
        str, typer.Argument(autocompletion=_job_names, metavar="JOB", help="Name of the job, as drom ps shows it.")
    ],
    agent: Agent,
    json: AsJson = False,
) -> None:
    """Explain in sentences why a job has its CPUs, or what it waits for."""
    output.explanation(client.order(agent, "explain", job=job), as_json=json)


@orders_app.command(name="set")
@with_agent_options
def set_cpus(
    job: Annotated[
        str,
        typer.Argument(autocompletion=_job_names, metavar="JOB|PID", help="A job with one task, or the pid of a task."),
    ],
    cpus: Annotated[
        int, typer.Argument(metavar="CPULIST", help="OS CPUs such as 0-3,8.", parser=reader(parse_cpulist))
    ],
    agent: Agent,
    dry_run: DryRun = False,
    json: AsJson = False,
) -> None:
    """Give a task exactly these CPUs until the next order (drom resize JOB auto ends it)."""
    _order(agent, "set", dry_run, json, job=job, cpus=format_cpulist(cpus))


@orders_app.command()
@with_agent_options
def resize(
    job: Annotated[
        str, typer.Argument(autocompletion=_job_names, metavar="JOB", help="Name of the job, as drom ps shows it.")
    ],
    cpus: Annotated[
        int,
        typer.Argument(
            metavar="N|auto", help="CPUs to hold the job at; auto ends the hold.", parser=reader(_number_or_auto)
        ),
    ],
    agent: Agent,
    for_: Annotated[
        int | None,
        typer.Option(
            "--for",
            metavar="TIME",
            help="End the hold after this time: 90s, 10m, 2h, 1d.",
            parser=reader(parse_duration),
        ),
    ] = None,
    dry_run: DryRun = False,
    json: AsJson = False,
) -> None:
    """Hold a job at a number of CPUs until the next order, or for a time."""
    if for_ is not None and not cpus:
        raise typer.BadParameter("--for needs a number of CPUs: `auto` has no end")
    _order(agent, "resize", dry_run, json, job=job, cpus=cpus or None, **({} if for_ is None else {"for": for_}))


@orders_app.command()
@with_agent_options
def attach(
    pid: Annotated[
        int,
        typer.Argument(metavar="PID", help="A running process; its descendants come with it.", min=1),
    ],
    agent: Agent,
    job: Annotated[
        str, typer.Option("--job", metavar="NAME", help="Name of the job; default: that of the program.")
    ] = "",
    cpus: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="CPUs it can use; default: all. If cores differ: as many whole cores as always have N.",
            min=1,
        ),
    ] = None,
    least: Annotated[int | None, typer.Option("--min", metavar="N", help="The fewest CPUs it may have.", min=1)] = None,
    job_class: Annotated[
        str, typer.Option("--class", metavar="C", help="malleable, moldable or rigid.", parser=reader(_class))
    ] = "malleable",
    distribution: Annotated[
        Layout | None,
        typer.Option(
            metavar="D",
            help="compact, spread or per-socket=N; with ! after it, wait until it is possible.",
            parser=reader(parse_layout),
        ),
    ] = None,
    mem: Annotated[
        int | None, typer.Option(metavar="SIZE", help="Memory it needs, such as 800M or 4G.", parser=reader(parse_size))
    ] = None,
    dry_run: DryRun = False,
    json: AsJson = False,
) -> None:
    """Manage a running process and its descendants as a job."""
    fields = {
        "pid": pid,
        "job": job or None,
        "cpus": cpus,
        "min": least,
        "class": job_class,
        "distribution": None if distribution is None else str(distribution),
        "mem": mem,
    }
    _order(agent, "attach", dry_run, json, **fields)


@orders_app.command()
@with_agent_options
def release(
    job: Annotated[
        str, typer.Argument(autocompletion=_job_names, metavar="JOB|PID", help="A job, or the pid of a task.")
    ],
    agent: Agent,
    dry_run: DryRun = False,
    json: AsJson = False,
) -> None:
    """Stop managing a job: it continues to run, with its original affinity."""
    _order(agent, "release", dry_run, json, job=job)


def _order(agent: Agent, name: str, dry_run: bool, as_json: bool, **fields: Any) -> None:  # noqa: ANN401, FBT001
    extra: dict[str, Any] = {"dry_run": True} if dry_run else {}
    output.ordered(client.order(agent, name, **fields, **extra), as_json=as_json)
