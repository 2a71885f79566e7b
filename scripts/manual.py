# SPDX-License-Identifier: Apache-2.0
"""Writes the manual pages of all commands, man/drom-COMMAND.1, from what `drom COMMAND --help` knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from drom.app import command_line

MAN = Path(__file__).resolve().parent.parent / "man"
BY_HAND = ("run",)


def roff(text: str) -> str:
    """Return text as roff shows it literally."""
    text = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def options(command: Any, context: Any) -> list[str]:  # noqa: ANN401 - typer's own click has no names for types
    """Return arguments and options of a command, each with what it does."""
    lines = []
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record and "--help" not in parameter.opts:
            lines += [".TP", f".B {roff(record[0])}", roff(record[1]) or "\\&"]
    return lines


def describe(command: Any, path: str, level: str) -> list[str]:  # noqa: ANN401
    """Return the section of a command: how it is called, what it does, what it takes; and so of its commands."""
    context = command.make_context(path, [], resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f".{level} {roff(path)}"] if level == "SS" else [".SH SYNOPSIS"]
    lines += [f".B {roff(path)}", roff(usage)]
    lines += [".PP" if level == "SS" else ".SH DESCRIPTION", roff(command.help or "")]
    taken = options(command, context)
    lines += [".SH OPTIONS"] * bool(taken and level == "SH") + taken
    inner = [describe(one, f"{path} {name}", "SS") for name, one in sorted(getattr(command, "commands", {}).items())]
    return [*lines, *([".SH COMMANDS"] if inner else []), *(line for section in inner for line in section)]


def pages() -> dict[str, str]:
    """Return the text of each page by its file's name."""
    found = {}
    for name, command in typer.main.get_command(command_line()).commands.items():  # type: ignore[attr-defined] # a group
        if name in BY_HAND or command.hidden:
            continue
        short = roff((command.help or command.get_short_help_str()).split(":")[0].split(".")[0])
        title = f'.TH DROM\\-{roff(name).upper()} 1 "" "drom" "drom"'
        head = [title, ".SH NAME", f"drom\\-{roff(name)} \\- {short[:1].lower()}{short[1:]}"]
        tail = [".SH SEE ALSO", ".BR drom (1)"]
        found[f"drom-{name}.1"] = "\n".join([*head, *describe(command, f"drom {name}", "SH"), *tail]) + "\n"
    return found


def main() -> None:
    """Write the pages."""
    for name, text in pages().items():
        (MAN / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
