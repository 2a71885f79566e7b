# SPDX-License-Identifier: Apache-2.0
"""Home partitions: each node and each job belongs to one, and one scheduler leads each. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.agent.text import FEATURE, WordError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SPAN = 100_000_000
"""The most jobs of a home partition, counted from its first one."""
MOST_HOMES = 1000


def parse_home(text: str) -> str:
    """Return the name of a home partition. Raises `WordError`."""
    if not re.fullmatch(FEATURE, text):
        msg = f"{text[:40]!r} is no name of a home partition: use at most 32 letters, digits, . _ and -."
        raise WordError(msg)
    return text


def first_job(number: int) -> int:
    """Return the number of the first job in the home partition with this number."""
    return number * SPAN + 1


class Present(NamedTuple):
    """A scheduler that is present: its `name`, its `home` partition, and all home partitions that it `leads`."""

    name: str
    home: str
    leads: tuple[str, ...] = ()


def adopters(homes: Iterable[str], present: Mapping[int, Present]) -> dict[str, int]:
    """Return which scheduler adopts each home partition for which none of its own is present.

    The one that leads it already keeps it. Otherwise it is one that leads fewest, of these the one with the smallest
    key.
    """
    found: dict[str, int] = {}
    load = {key: len({one.home, *one.leads}) for key, one in present.items()}
    for home in sorted({*homes} - {one.home for one in present.values()}) if present else ():
        leaders = [key for key, one in present.items() if home in one.leads]
        found[home] = min(leaders or present, key=lambda key: (load[key], key))
        load[found[home]] += not leaders
    return found


def home_of(job: int, homes: Mapping[str, int]) -> str | None:
    """Return the home partition of a job; None if no home partition has its number."""
    return next((home for home, number in homes.items() if number == job // SPAN), None)


def parts_of(ranges: Sequence[Sequence[int]], homes: Mapping[str, int]) -> dict[str, list[Sequence[int]]]:
    """Return the ranges of jobs that concern each home partition; the first has those that concern none."""
    found: dict[str, list[Sequence[int]]] = {}
    for one in ranges:
        array, first, last = one
        begin, end = (array, array) if array else (first, last)
        concerned = [home for home, number in homes.items() if begin // SPAN <= number <= end // SPAN]
        for home in concerned or list(homes)[:1]:
            found.setdefault(home, []).append(one)
    return found


def merged(answers: Mapping[str, Mapping[str, Any]], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answers of home partitions to an order with these `fields` as one; jobs and nodes name their `home`.

    With `last` it has the jobs submitted last, with `limit` the first ones.
    """
    value: dict[str, Any] = {}
    for home, answer in answers.items():
        for name, found in answer.items():
            if isinstance(found, list):
                value[name] = [*value.get(name, ()), *(_at_home(row, home) for row in found)]
            elif isinstance(found, dict):
                value[name] = value.get(name, {}) | found
            elif name == "left":
                value[name] = value.get(name, 0) + found
            elif value.get(name) is None:
                value[name] = found
    if "last" in fields:
        value["jobs"] = sorted(value["jobs"], key=lambda job: job["submitted"])[-fields["last"] :]
        chosen = {job["job"] for job in value["jobs"]}
        if "entries" in value:
            value["entries"] = [entry for entry in value["entries"] if entry["job"] in chosen]
    elif "limit" in fields and len(value["jobs"]) > fields["limit"]:
        value["left"] += len(value["jobs"]) - fields["limit"]
        value["jobs"] = value["jobs"][: fields["limit"]]
        value["after"] = value["jobs"][-1]["job"]
    return value


def _at_home(row: Any, home: str) -> Any:  # noqa: ANN401 - a JSON value
    return row | {"home": row.get("home") or home} if isinstance(row, dict) and "state" in row else row
