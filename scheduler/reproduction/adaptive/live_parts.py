# SPDX-License-Identifier: Apache-2.0
"""The experiments of Kale, Kumar and DeSouza with real programs and a real scheduler: chosen and run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from drom.scheduler.reproduction.adaptive import changes, live, residual
from drom.scheduler.reproduction.adaptive.figures import draw_course
from drom.scheduler.testbed.cluster import why_no_mpi
from drom.scheduler.testbed.namespaces import MachineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

SCHEMA_VERSION = 2


class Found(NamedTuple):
    """The results of each part, None without it; `seed` is that of the cluster's jobs."""

    seed: int
    changes: dict[changes.Case, changes.Changes] | None = None
    residual: residual.Outcome | None = None
    cluster: dict[live.Task, live.Outcome] | None = None

    def lines(self) -> Iterator[str]:
        """Yield the tables of all parts."""
        if self.changes is not None:
            yield from changes.lines(self.changes)
        if self.residual is not None:
            yield from residual.lines(self.residual)
        if self.cluster is not None:
            yield from live.lines(self.cluster)

    def to_json(self) -> dict[str, Any]:
        """Return all results as JSON values."""
        return {
            "schema_version": SCHEMA_VERSION,
            "seed": self.seed,
            "changes": None if self.changes is None else changes.to_json(self.changes),
            "residual": None if self.residual is None else residual.to_json(self.residual),
            "cluster": None if self.cluster is None else live.to_json(self.cluster),
        }

    def draw(self, folder: Path) -> None:
        """Write course.png, with SVG and numbers beside it. Raises WorkloadError without matplotlib."""
        if self.residual is not None:
            draw_course(self.residual, folder)


def check(parts: Sequence[str]) -> None:
    """Raise MachineError with a sentence if this machine lacks what one of these parts needs."""
    if (reason := why_no_mpi()) and {"changes", "residual"} & {*parts}:
        msg = f"{reason.removesuffix('.')}; or run --part cluster, which needs none."
        raise MachineError(msg)


def run(parts: Sequence[str], seed: int, show: Callable[[float], None]) -> Found:
    """Run the parts one after the other; `show` gets the fraction that is done.

    Raises `ControlError` if a program, an agent or a scheduler fails.
    """
    found = Found(seed)
    for number, part in enumerate(parts):

        def advance(done: float, number: int = number) -> None:
            show((number + done) / len(parts))

        if part == "changes":
            found = found._replace(changes=changes.run_all(advance))
        elif part == "residual":
            found = found._replace(residual=residual.run_all(advance))
        else:
            found = found._replace(cluster=live.run_all(seed, advance))
    return found
