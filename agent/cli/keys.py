# SPDX-License-Identifier: Apache-2.0
"""The commands that make and show the keys with which agents are controlled from other nodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from drom.agent.cli import output
from drom.agent.cli.orders import AsJson
from drom.agent.control import keys

keys_app = typer.Typer(help="Make and show the keys with which agents take orders from other nodes.")
SCHEMA_VERSION = 1


def _default_folder() -> Path:
    return keys.default_folder(os.environ, os.geteuid())


Folder = Annotated[
    Path,
    typer.Option(
        "--dir",
        metavar="DIR",
        help="The folder of keys.",
        default_factory=_default_folder,
        show_default="/etc/drom/keys, or ~/.config/drom/keys",
    ),
]


@keys_app.command("make")
def make(folder: Folder) -> None:
    """Make a new pair of keys."""
    made = keys.make(folder)
    output.say(f"made {folder / keys.SECRET}: keep it secret; give {folder / keys.PUBLIC} to the other side")
    output.say(f"public key {made.public.decode()}")


@keys_app.command("trust")
def trust(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The identity.key of the other side.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The node's name, or whose key it is.")],
    folder: Folder,
) -> None:
    """Let the owner of a public key give orders here, or know an agent by it."""
    output.say(f"trusted: {keys.trust(keys.load(folder), file, name)}")


@keys_app.command("show")
def show(folder: Folder, json: AsJson = False) -> None:
    """Check the keys and their modes; show our public key and who is trusted."""
    found = [{"name": name, "key": public.decode()} for public, name in keys.load(folder).peers().items()]
    if json:
        output.emit({"schema_version": SCHEMA_VERSION, "folder": str(folder), "keys": found})
        return
    for one in found:
        output.say(f"{one['key']}  {one['name']}")
