# SPDX-License-Identifier: Apache-2.0
"""Commands of a job that its launcher elsewhere asks for, as far as they concern no process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from drom.agent.execution import steps
from drom.agent.execution.launch import LaunchSite
from drom.agent.execution.remote_steps import REPEAT, RemoteSteps
from drom.agent.execution.spool import Folder
from drom.agent.execution.step_requests import Request
from drom.agent.execution.supervisor import Attempt, StepSupervisor

from tests.support.fake_scheduler import start

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from drom.agent.execution.protocol import Post
    from drom.agent.system.loop import Loop


def _remote(folder: Path, jobs: list[Attempt], said: list[Post]) -> RemoteSteps:
    """Return what sees to the commands of these jobs on node n2, and what it says."""
    attempts = {job.key: job for job in jobs}
    loop = cast("Loop", None)
    return RemoteSteps(loop, LaunchSite("n2", folder), "boot", attempts, said.append, share=lambda _: 9, scan=dict)


def test_a_job_has_a_bound_for_its_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is more is told so, and begins not; those that are known are not counted again, other jobs not at all."""
    begun: list[Attempt] = []
    monkeypatch.setattr(steps, "MOST", 2)
    monkeypatch.setattr(StepSupervisor, "begin", lambda _, attempt, _known: begun.append(attempt))
    said: list[Post] = []
    jobs = [Attempt(start(number, "true"), Folder(tmp_path / f"{number}.1"), 1, "running") for number in (7, 8)]
    remote = _remote(tmp_path, jobs, said)

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


def test_who_hangs_up_is_heard_however_often_that_is_lost(tmp_path: Path) -> None:
    """The other node is told again and again, until it says that the command is over, or the job is over here."""
    said: list[Post] = []
    jobs = [Attempt(start(number, "true", nodes=["n2", "n1"]), Folder(tmp_path), 1, "running") for number in (7, 8)]
    remote = _remote(tmp_path, jobs, said)
    remote._step_requests = cast("Any", SimpleNamespace(waiting=[], tend=lambda _: None, answer=lambda _, __: None))
    for job in jobs:
        remote.hung_up(Request(job.start.job, 1, f"{job.start.job:032x}", "n1", "/", "true", 0))

    def ends(now: float) -> list[int]:
        """Return the jobs of which the end of a command is asked for by then, since the last look."""
        remote.run(now)
        asked = [post.job for post in said if post.body == {"end": f"{post.job:032x}"} and post.to == "n1"]
        said.clear()
        return asked

    assert ends(0.0) == [7, 8, 7, 8]  # at once, and as the first turn asks for all
    assert remote.next_due() == REPEAT
    assert (ends(REPEAT - 0.1), ends(REPEAT)) == ([], [7, 8])
    remote.take(jobs[0], "n1", {"over": f"{7:032x}", "answer": "0"})
    assert ends(2 * REPEAT) == [8]
    jobs[1].state = "ended"
    assert (ends(3 * REPEAT), ends(4 * REPEAT), remote.next_due()) == ([], [], None)


def test_the_end_of_what_is_over_is_answered(tmp_path: Path) -> None:
    """Or never was here: who asks would ask for ever."""
    said: list[Post] = []
    job = Attempt(start(7, "true", nodes=["n1", "n2"]), Folder(tmp_path), 1, "running")

    _remote(tmp_path, [job], said).take(job, "n1", {"end": f"{7:032x}"})

    assert [(post.to, post.body) for post in said] == [("n1", {"over": f"{7:032x}"})]
