# SPDX-License-Identifier: Apache-2.0
"""Usage errors of a command line, as sentences."""

from __future__ import annotations

from typing import Any

LONGEST = 40
"""Maximum number of characters of a value in a sentence."""


def usage_sentence(error: Any) -> str:  # noqa: ANN401 - typer does not name the class of all its usage errors
    """Return the sentence of a usage error of typer, without its full stop."""
    if problem := _number_problem(error):
        error.message = problem
    return " ".join(error.format_message().split()).rstrip(".")


def _number_problem(error: Any) -> str:  # noqa: ANN401
    """Return what is wrong with the value of a numeric option, and what to write; empty for other errors.

    typer reports such values with the messages of pydantic, which do not name them.
    """
    found: list[Any] = getattr(error.__cause__, "errors", list)()
    kind = found[0]["type"] if found else ""
    if not kind.startswith(("int_", "float_", "finite_", "greater_", "less_")):
        return ""
    is_whole = kind.startswith("int_") or any(type(bound) is int for bound in found[0].get("ctx", {}).values())
    what = "whole number" if is_whole else "number"
    is_number = kind.startswith(("greater_", "less_")) or kind == "int_parsing_size"
    problem = "is out of range" if is_number else f"is no {what}"
    return f"{str(found[0]['input'])[:LONGEST]!r} {problem}: write a {what}{_range(error.param)}"


def _range(param: Any) -> str:  # noqa: ANN401
    """Return the bounds of the values of an option, as the end of a phrase."""
    least, most = getattr(param, "min", None), getattr(param, "max", None)
    if most is None:
        return ", as 12" if least is None else f" of at least {least}"
    return f" of at most {most}" if least is None else f" from {least} to {most}"
