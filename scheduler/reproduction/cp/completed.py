# SPDX-License-Identifier: Apache-2.0
"""Completed simulations and live runs of `drom reproduce cp`, a line of a file each, so that it can be continued.

The first line has the versions and the platform. Each line begins with its line break, so that a truncated line damages
no other.
"""

from __future__ import annotations

import json
from contextlib import suppress
from importlib import metadata
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from drom.scheduler.errors import SchedulerError
from drom.scheduler.reproduction.cp.metrics import LiveMetrics, Metrics
from drom.scheduler.reproduction.cp.tasks import Task

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from drom.scheduler.cp.platform import Platform

M = TypeVar("M", Metrics, LiveMetrics)
NAMES: dict[type, str] = {Metrics: "runs.jsonl", LiveMetrics: "live.jsonl"}
"""The name of the file, by what its lines have."""


class Kept(Generic[M]):
    """The file of simulations in a folder, and its contents."""

    def __init__(self, folder: Path, platform: Platform, kind: type[M]) -> None:
        """Open the file, or create it. Raises SchedulerError if that fails, or if it has other versions or platform."""
        self._path = folder / NAMES[kind]
        basis = {name: metadata.version(name) for name in ("drom", "ortools")} | {"platform": platform}
        basis = json.loads(json.dumps(basis))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            told = list(_values(self._path.read_text(encoding="utf-8"))) if self._path.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise SchedulerError(f"{self._path} cannot be read: name another --out.") from error
        if len(told) < 2:  # it has no simulation to lose
            self._append(basis, "w")
        elif told[0] != basis:
            msg = f"{self._path} is from another version of drom or OR-tools, or another machine: name another --out."
            raise SchedulerError(msg)
        try:
            self.done: dict[Task, M] = {Task(**line["task"]): _metrics(kind, line["metrics"]) for line in told[1:]}
        except (KeyError, TypeError) as error:
            raise SchedulerError(f"{self._path} has lines that are no simulations: name another --out.") from error

    def keep(self, task: Task, metrics: M) -> None:
        """Add a simulation. Raises SchedulerError if the file cannot be written."""
        self.done[task] = metrics
        self._append({"task": task._asdict(), "metrics": metrics._asdict()})

    def _append(self, value: Any, mode: str = "a") -> None:  # noqa: ANN401 - JSON
        try:
            with self._path.open(mode, encoding="utf-8") as stream:
                stream.write("\n" + json.dumps(value))
        except OSError as error:
            raise SchedulerError(f"{self._path} cannot be written: {error.strerror}: name another --out.") from error


def _metrics(kind: type[M], told: dict[str, Any]) -> M:
    """Return the metrics of a line. Raises TypeError if they are not numbers."""
    found = kind(**told)
    if not all(isinstance(value, int | float) for value in found):
        raise TypeError(found)
    return found


def _values(text: str) -> Iterator[Any]:
    """Yield the values of all complete lines."""
    for line in text.splitlines():
        with suppress(ValueError):
            yield json.loads(line)
