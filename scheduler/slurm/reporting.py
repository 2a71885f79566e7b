# SPDX-License-Identifier: Apache-2.0
"""The report of `drom slurm report`: what jobs used, from Slurm's comments and from the history."""

from __future__ import annotations

import os
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from drom.agent.cli import output
from drom.agent.text import counted, duration, escaped, table
from drom.scheduler.slurm.history import FILE, History
from drom.scheduler.slurm.reader import Reader
from drom.scheduler.slurm.usage import by_user, job_uses, total

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from drom.agent.model.core_use import CoreUse
    from drom.scheduler.slurm.usage import JobUse, UserUse

SCHEMA_VERSION = 1
_AMOUNTS = ["SLURM", "HELD", "LENT", "BORROWED"]


def show_report(days: float, state: Path, *, per_job: bool, records: bool, as_json: bool) -> None:
    """Print what jobs used that run or ended in the last `days`. Raises SlurmError."""
    now = time.time()
    since = now - 86400 * days
    present = job_uses(Reader(os.environ).jobs().records, now)
    stored, note = _stored(state.absolute(), present if records else [], since, is_asked=records)
    found = {(use.job, use.started): use for use in (*stored, *present) if use.ended is None or use.ended >= since}
    uses = sorted(found.values(), key=lambda use: (use.started, use.job))
    users = by_user(uses, now)
    if as_json:
        by_job, of_users = [_row(use, use.given(now)) for use in uses], [_row(use, use.given) for use in users]
        rows = by_job if per_job else of_users
        output.emit({"schema_version": SCHEMA_VERSION, "days": days, "note": note, "rows": rows})
        return
    if not uses:
        output.say("No job has used cores under drom: agents write that with slurm_comments = true.")
    else:
        for line in job_lines(uses, now) if per_job else user_lines(users):
            output.say(line)
    if note:
        output.say(note)


def _stored(folder: Path, new: list[JobUse], since: float, *, is_asked: bool) -> tuple[list[JobUse], str]:
    """Return the stored jobs after storing `new` ones, and a sentence if they cannot be read."""
    if not is_asked and not os.access(folder / FILE, os.R_OK | os.W_OK):
        return [], f"Only jobs that Slurm still has: {folder / FILE} is not there, or not for this user."
    with _as_owner(folder), closing(History(folder)) as history:
        history.record(new)
        return history.read(since), ""


@contextmanager
def _as_owner(folder: Path) -> Iterator[None]:
    """Work as the owner of a folder where this is root: what root does there, its owner could misuse."""
    try:
        owner = folder.stat().st_uid
    except OSError:
        owner = 0
    is_other = os.geteuid() == 0 and owner != 0
    if is_other:
        os.seteuid(owner)
    try:
        yield
    finally:
        if is_other:
            os.seteuid(0)


def _row(use: JobUse | UserUse, given: float) -> dict[str, object]:
    row = use._asdict() | use.used._asdict() | {"given": given}
    del row["used"]
    return row


def _hours(given: float, used: CoreUse) -> list[str]:
    return [f"{seconds / 3600:.2f}" for seconds in (given, *used)]


def user_lines(users: list[UserUse]) -> list[str]:
    """Return a table with a row for each user, and the sums."""
    rows = [[escaped(row.user), str(row.jobs), *_hours(row.given, row.used)] for row in users]
    sums = _hours(sum(row.given for row in users), total(row.used for row in users))
    if len(users) > 1:
        rows.append(["all", str(sum(row.jobs for row in users)), *sums])
    return [*table(["USER", "JOBS", *_AMOUNTS], rows, " >>>>>"), _legend(sum(row.jobs for row in users))]


def job_lines(uses: list[JobUse], now: float) -> list[str]:
    """Return a table with a row for each job."""
    rows = []
    for use in uses:
        took = duration((use.ended or now) - use.started) + (" so far" if use.ended is None else "")
        who = [use.job, escaped(use.user), escaped(use.name), str(use.nodes), took]
        rows.append([*who, *_hours(use.given(now), use.used)])
    return [*table(["JOB", "USER", "NAME", "NODES", "TIME", *_AMOUNTS], rows, "   >>>>>>"), _legend(len(uses))]


def _legend(jobs: int) -> str:
    return (
        f"{counted(jobs, 'job')}. SLURM: CPU-hours that Slurm gave; others: core-hours. Those borrowed are also held."
    )
