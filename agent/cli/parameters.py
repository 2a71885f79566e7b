# SPDX-License-Identifier: Apache-2.0
"""Parameters that several commands have, and commands that take their options from the fields of a dataclass."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

T = TypeVar("T")
Nothing = TypeVar("Nothing")
Command = Callable[..., None]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value.")]


def reader(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return `parse` for use in an option: a value that it rejects is a usage error."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    read.__name__ = parse.__name__
    return read


def optional(parse: Callable[[str], T], nothing: Nothing) -> Callable[[str], T | Nothing]:
    """Return `parse` for an option that an empty text unsets."""

    def read(text: str) -> T | Nothing:
        return parse(text) if text else nothing

    read.__name__ = parse.__name__
    return read


def with_options(table: Callable[..., object], name: str = "options") -> Callable[[Command], Command]:
    """Give a command the parameters of `table`, after its own, in place of its parameter `name`.

    `table` is a dataclass with a field for each option, or a function; the command gets what it returns. Its parameters
    are written as those of a command: ``typer.Option`` is their default, or in their annotation. Only this decorator
    makes instances of such a dataclass, because its defaults are typer's.
    """
    hints = get_type_hints(table, include_extras=True)  # of inherited fields in the module that has them
    signature = inspect.signature(table)
    expanded = {name: one.replace(annotation=hints[name]) for name, one in signature.parameters.items()}

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> None:  # noqa: ANN401 - what typer has read
            options = {one: given.pop(one) for one in expanded}
            command(**given, **{name: table(**options)})

        own = [one for one in inspect.signature(command, eval_str=True).parameters.values() if one.name != name]
        keyword_only = [one.replace(kind=one.KEYWORD_ONLY) for one in (*own, *expanded.values())]
        run.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined] # typer reads it
        return run

    return decorate
