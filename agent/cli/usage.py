# SPDX-License-Identifier: Apache-2.0
"""Usage errors of a command line, as sentences."""

from __future__ import annotations

import math
import re
from typing import Any

import typer

LONGEST = 40
"""Maximum number of characters of a value in a sentence."""
_WRONG = re.compile(r"'?(?P<value>.*?)'? is not (?P<how>a valid (?:int|float)|in the)\b", re.DOTALL)
"""How typer begins the message about a wrong number."""


def usage_sentence(error: Any) -> str:  # noqa: ANN401 - typer does not name the class of all its usage errors
    """Return the sentence of a usage error of typer, without its full stop."""
    if problem := _number_problem(error):
        error.message = problem
    return " ".join(error.format_message().split()).rstrip(".")


def finite(context: typer.Context, param: typer.CallbackParam, value: float | None) -> float | None:
    """Return the value of an option, as its callback. Raises a usage error for one that is not a finite number."""
    if value is None or math.isfinite(value):
        return value
    raise typer.BadParameter(f"{value} is not in the range of numbers", context, param)


def _number_problem(error: Any) -> str:  # noqa: ANN401
    """Return what is wrong with the value of a numeric option, and what to write; empty for other errors.

    typer's own messages do not say what to write. With pydantic, which it uses from 0.29 on, they do not name the value
    either.
    """
    param = getattr(error, "param", None)
    kind: Any = getattr(param, "type", param)
    found: list[Any] = getattr(error.__cause__, "errors", list)()
    reason = found[0]["type"] if found else ""
    if reason.startswith(("int_", "float_", "finite_", "greater_", "less_")):
        value, outside = (
            str(found[0]["input"]),
            reason.startswith(("greater_", "less_")) or reason == "int_parsing_size",
        )
        is_whole = reason.startswith("int_") or any(type(bound) is int for bound in found[0].get("ctx", {}).values())
    elif wrong := _WRONG.match(error.message):
        value, outside, is_whole = wrong["value"], wrong["how"] == "in the", kind.name.startswith("int")
    else:
        return ""
    what = "whole number" if is_whole else "number"
    problem = "is out of range" if outside else f"is no {what}"
    return f"{value[:LONGEST]!r} {problem}: write a {what}{_range(kind)}"


def _range(kind: Any) -> str:  # noqa: ANN401
    """Return the bounds of the values of an option, as the end of a phrase."""
    least, most = getattr(kind, "min", None), getattr(kind, "max", None)
    if most is None:
        return ", as 12" if least is None else f" of at least {least}"
    return f" of at most {most}" if least is None else f" from {least} to {most}"
