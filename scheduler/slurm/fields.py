# SPDX-License-Identifier: Apache-2.0
"""Read a field of a record, and name it in the sentence if it is broken. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from drom.agent.text import WordError
from drom.scheduler.slurm.records import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")
V = TypeVar("V")

SHOWN = 80
"""The most characters of a broken value that a sentence repeats."""


MISSING = "is missing"


class BrokenFieldError(WordError):
    """Raised when a field cannot be read; caught where the record is known."""

    def __init__(self, field: str, value: object, what: str) -> None:
        super().__init__(f"{field} {what}" if what == MISSING else f"{field} is {repr(value)[:SHOWN]}, which {what}")

    def sentence(self, record: str) -> str:
        """Return what is wrong, with the record in which it is."""
        return f"Slurm's record of {record} is left out: {self}."


def read_field(read: Callable[[V], T], value: V, field: str) -> T:
    """Return what `read` makes of a field's value. Raises BrokenFieldError."""
    try:
        return read(value)
    except WordError as error:
        raise BrokenFieldError(field, value, str(error)) from error


def read_records(read: Callable[[V], T], rows: Iterable[tuple[str, V]]) -> Reading[T]:
    """Return what `read` makes of rows; each comes with the words that name its record in a sentence."""
    found = [_record(read, name, row) for name, row in rows]
    return Reading(
        tuple(one.record for one in found if isinstance(one, _Whole)),
        tuple(one for one in found if isinstance(one, str)),
    )


@dataclass(frozen=True, slots=True)
class _Whole(Generic[T]):
    """A record without faults."""

    record: T


def _record(read: Callable[[V], T], name: str, row: V) -> _Whole[T] | str:
    try:
        return _Whole(read(row))
    except BrokenFieldError as broken:
        return broken.sentence(name)
