# SPDX-License-Identifier: Apache-2.0
"""Options of the form ``NAME=VALUE``, given once for each name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from drom.workloads.errors import short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

V = TypeVar("V")


def read_choices(
    option: str,
    choices: Iterable[str],
    names: Sequence[str],
    read: Callable[[str, str], tuple[V | None, str]],
    error: type[ValueError],
) -> dict[str, V]:
    """Return values by name; a choice may have several, separated by commas; the last value of a name counts.

    `read` takes a name and its text and returns the value, None for an invalid one, and the rule that values satisfy.
    Raises `error`, with `option` in its sentence, for an invalid value and for a name that is not among `names`.
    """
    chosen: dict[str, V] = {}
    for choice in (part for several in choices for part in several.split(",")):
        name, _, text = choice.partition("=")
        if name not in names:
            msg = f"{option} {short(choice)}: there is no {short(name)}: choose {', '.join(names)}."
            raise error(msg)
        value, wanted = read(name, text)
        if value is None:
            msg = f"{option} {short(choice)}: {name} is {wanted}."
            raise error(msg)
        chosen[name] = value
    return chosen


def number(text: str) -> float:
    """Return the number in a text, which may be ``infinite``; nan if it is not a number."""
    try:
        return math.inf if text == "infinite" else float(text)
    except ValueError:
        return float("nan")
