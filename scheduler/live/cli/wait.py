# SPDX-License-Identifier: Apache-2.0
"""Waiting until jobs are over, for `drom submit --wait`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import typer
from drom.agent.errors import ControlError, RefusedError
from drom.scheduler.live.cli.tables import label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def await_all(numbers: Iterable[int], ask: Callable[[int], dict[str, Any]]) -> int:
    """Wait until some jobs are over and return their largest exit status; `ask` returns a job's description.

    The reason of each that did not complete is printed. A scheduler that does not answer is asked again. Raises
    RefusedError if it refuses to answer.
    """
    largest = 0
    for number in numbers:
        job = await_end(number, ask)
        if status := exit_status(job):
            typer.echo(f"drom: job {label(job)}: {job['reason'] or job['state']}", err=True)
        largest = max(largest, status)
    return largest


def await_end(
    number: int, ask: Callable[[int], dict[str, Any]], pause: Callable[[], object] = lambda: time.sleep(1)
) -> dict[str, Any]:
    """Wait until a job is over and return its description; an empty one once `pause` returns something true.

    `pause` is called between two questions. Raises as `await_all`.
    """
    from drom.scheduler.live.cluster.jobs import FINAL

    told = ""
    while True:
        try:
            job = ask(number)
        except RefusedError:
            raise
        except ControlError as error:
            if str(error) != told:
                typer.echo(f"drom: {error}", err=True)
            told = str(error)
        else:
            told = ""
            if job["state"] in FINAL:
                return job
        if pause():
            return {}


def exit_status(job: dict[str, Any]) -> int:
    """Return the exit status of a job that is over as a shell reports it, like sbatch; 1 if it failed without one."""
    status = job["status"]
    if job["state"] == "completed":
        return 0
    return (status if status > 0 else 128 - status) if status else 1
