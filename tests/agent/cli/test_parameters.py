# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from drom.agent.cli.parameters import AsJson, reader, with_options
from typer.testing import CliRunner

Place = Annotated[str, typer.Argument(metavar="PLACE")]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a command of each kind: required, with its own flag, read by a function, and shared."""

    size: Annotated[int, typer.Option(help="The size.", min=1)]
    words: list[str] | None = typer.Option(None, "--word", "-w")
    level: float = typer.Option(0.5, parser=reader(float))
    json: AsJson = False


@with_options(Options)
def paint(place: Place, options: Options, twice: Annotated[bool, typer.Option("--twice")] = False) -> None:
    """Paint a place."""
    typer.echo(f"{place} {twice} {options}")


def run(*words: str) -> tuple[int, str]:
    """Return the exit status of the command, and what it prints."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(paint)
    result = CliRunner().invoke(app, words)
    return result.exit_code, result.output


def test_the_fields_of_a_dataclass_are_options() -> None:
    """A command gets an instance with what was given, and the defaults of the other fields."""
    few = run("here", "--size", "3")
    all_ = run("here", "--size", "3", "-w", "a", "--word", "b", "--level", "2", "--json", "--twice")

    assert few == (0, "here False Options(size=3, words=None, level=0.5, json=False)\n")
    assert all_ == (0, "here True Options(size=3, words=['a', 'b'], level=2.0, json=True)\n")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ([], "Missing option '--size'"),
        (["--size", "0"], "Invalid value for '--size'"),
        (["--size", "1", "--level", "x"], "Invalid value for '--level'"),
        (["--size", "1", "--options", "x"], "No such option: --options"),
    ],
)
def test_fields_are_checked_as_options(words: list[str], fault: str) -> None:
    """A missing or wrong value of a field is a usage error, and the instance itself is no option."""
    status, printed = run("here", *words)

    assert status == 2
    assert fault in printed


def test_the_options_of_a_table_follow_those_of_the_command() -> None:
    """The help lists the command's own options first, then the fields in their order."""
    status, printed = run("--help")

    assert status == 0
    places = [printed.index(flag) for flag in ("PLACE", "--twice", "--size", "--word", "--level", "--json")]
    assert places == sorted(places)
    assert "Paint a place." in printed
