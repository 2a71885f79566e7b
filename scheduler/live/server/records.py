# SPDX-License-Identifier: Apache-2.0
"""Jobs and nodes as texts in the rows of the queue, and the errors of texts that this drom has not written.

Pure.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from drom.scheduler.live.cluster.jobs import Entry, Job, Node, User
from drom.scheduler.live.cluster.spec import LISTS, Dependency, Spec

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMES = {kind: tuple(item.name for item in fields(kind)) for kind in (Job, Node, Spec)}
_FORMER = {"not resized": "resize_failed"}
"""Names of events in histories of earlier versions, with their present names."""
_COLUMNS = tuple(name for name in _NAMES[Job] if name != "spec")
_values_of = attrgetter(*_COLUMNS)


class CorruptRecordError(Exception):
    """Raised for a row that no drom can have written; the text names the row."""


class NewerVersionError(Exception):
    """Raised for a row that only a newer drom can have written; the text names the row and the field."""


def text_of_job(job: Job) -> str:
    """Return the text of a job without its specification."""
    return json.dumps(dict(zip(_COLUMNS, _values_of(job), strict=True)))


def text_of_spec(spec: Spec) -> str:
    """Return the text of a job's specification."""
    return json.dumps(spec.to_json())


def text_of_node(node: Node) -> str:
    """Return the text of a node."""
    return json.dumps(asdict(node))


def job_of(number: int, text: str, spec: Spec) -> Job:
    """Return the job in a text. Raises DamageError or NewerError, as all functions below."""
    with _about(f"job {number}"):
        values = _values(Job, text)
        return Job(**{**values, "user": User(*values["user"]), "spec": spec})


def spec_of(number: int, text: str) -> Spec:
    """Return the specification of a job in a text."""
    with _about(f"what job {number} asks for"):
        values = _values(Spec, text)
        texts = {name: tuple(values.get(name, ())) for name in LISTS}
        after = tuple(dict.fromkeys(Dependency(*pair) for pair in values["after"]))  # older texts may have duplicates
        return Spec(**{**values, **texts, "after": after})


def node_of(name: str, text: str) -> Node:
    """Return the node in a text."""
    with _about(f"node {name}"):
        return Node(**_values(Node, text))


def entry_of(job: int, at: float, what: str, text: str) -> Entry:
    """Return an entry of a job's history."""
    with _about(f"the history of job {job}"):
        return Entry(job, at, _FORMER.get(what, what), json.loads(text))


@contextlib.contextmanager
def _about(what: str) -> Iterator[None]:
    """Convert the errors of a block to NewerError or DamageError, with the text `what` for the thing that it reads."""
    try:
        yield
    except NewerVersionError as error:
        raise NewerVersionError(f"{what} has the field {error}") from error
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise CorruptRecordError(f"{what} cannot be understood") from error


def _values(kind: type[Job | Node | Spec], text: str) -> dict[str, Any]:
    """Return the fields in a text. Raises NewerError with the name of an unknown field."""
    values: dict[str, Any] = json.loads(text)
    if unknown := sorted(values.keys() - {*_NAMES[kind]}):
        raise NewerVersionError(repr(unknown[0]))
    return values
