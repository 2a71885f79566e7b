# SPDX-License-Identifier: Apache-2.0
"""Commands of a job that its launcher elsewhere asks for, as far as they concern no process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from agent.steward import steps
from agent.steward.keeping import Attempt, Keeping
from agent.steward.launching import Place
from agent.steward.remote import Remote
from agent.steward.spool import Folder
from tests.stand_in import start

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from agent.following import Loop
    from agent.steward.protocol import Post


def test_a_job_has_a_bound_for_its_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is more is told so, and begins not; those that are known are not counted again, other jobs not at all."""
    begun: list[Attempt] = []
    monkeypatch.setattr(steps, "MOST", 2)
    monkeypatch.setattr(Keeping, "begin", lambda _, attempt: begun.append(attempt))
    said: list[Post] = []
    jobs = [Attempt(start(number, "true"), Folder(tmp_path / f"{number}.1"), 1, "running") for number in (7, 8)]
    remote = Remote(
        cast("Loop", None),
        Place("n2", tmp_path),
        "boot",
        {job.key: job for job in jobs},
        said.append,
        share=lambda _: 9,
        scan=dict,
    )

    def ask(job: Attempt, number: int) -> list[dict[str, Any]]:
        """Ask for a command with this number, and return what is answered."""
        said.clear()
        remote.take(job, "n1", {"step": f"{number:032x}", "command": "true", "folder": "/"})
        return [post.body for post in said]

    assert [ask(jobs[0], number) for number in (1, 2, 1)] == [[], [], []]
    sentence = "1 job 7 has had 2 commands on n2, and may have no more: use fewer launches, or several jobs."
    assert ask(jobs[0], 3) == [{"over": f"{3:032x}", "answer": sentence}]
    assert ask(jobs[1], 3) == []
    assert len(begun) == 3
