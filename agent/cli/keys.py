# SPDX-License-Identifier: Apache-2.0
"""The commands that make and show the keys with which agents are controlled from other nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from drom.agent.cli import output
from drom.agent.cli.parameters import AsJson
from drom.agent.control import keys
from drom.agent.system.paths import default_keys

keys_app = typer.Typer(help="Make and show the keys for orders between nodes.")
SCHEMA_VERSION = 1


Folder = Annotated[
    Path,
    typer.Option(
        "--dir",
        metavar="DIR",
        help="The folder with the keys.",
        default_factory=default_keys,
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
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file identity.key of the other node or user.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the node or of the key's owner.")],
    folder: Folder,
) -> None:
    """Trust a public key: its owner may give orders here, or it identifies an agent."""
    output.say(f"trusted: {keys.trust(keys.load(folder), file, name)}")


@keys_app.command("show")
def show(folder: Folder, json: AsJson = False) -> None:
    """Check the keys and their modes; show the own public key and the trusted ones."""
    found = [{"name": name, "key": public.decode()} for public, name in keys.load(folder).peers().items()]
    if json:
        output.emit({"schema_version": SCHEMA_VERSION, "folder": str(folder), "keys": found})
        return
    for one in found:
        output.say(f"{one['key']}  {one['name']}")
