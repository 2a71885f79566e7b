# SPDX-License-Identifier: Apache-2.0
"""Arrays of jobs, and orders that choose many jobs."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.errors import ControlError
from drom.agent.execution import protocol as say
from drom.agent.model.caller import Caller
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster import explain
from drom.scheduler.live.cluster.job_filter import JobRange, parse_jobs
from drom.scheduler.live.cluster.launch import start_of
from drom.scheduler.live.cluster.spec import Dependency, Notice, Spec

from tests.support.fake_cluster import ANN, FakeCluster
from tests.support.other_users import NOBODY
from tests.support.scheduler_requests import HELD, ROOT, scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from drom.scheduler.live.cluster.jobs import Job
    from drom.scheduler.live.server.server import Server

POLICY = load_policy("resources")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[FakeCluster]:
    """Return a cluster of two nodes with four cores each."""
    found = FakeCluster(tmp_path, POLICY, 2)
    found.settle()
    yield found
    found.store.close()


def array(here: FakeCluster, text: str, **asked: object) -> list[Job]:
    """Submit an array of one-core jobs, and let jobs start."""
    spec = Spec(**{"command": ("true",), "folder": "/", "time": 600, "array": text, **asked})  # type: ignore[arg-type]
    jobs = here.cluster.submit_many(spec, ANN, here.now, 1)
    here.send()
    here.settle()
    return jobs


def running(jobs: list[Job]) -> list[int]:
    """Return the indices of the jobs that run."""
    return [job.index for job in jobs if job.state == "running"]


def end(here: FakeCluster, job: Job, status: int = 0) -> None:
    """Let a job end, well unless a status is given."""
    here.nodes[job.launcher].end((job.number, job.attempt), status)
    here.settle()


def test_each_job_of_an_array_finds_its_index(here: FakeCluster) -> None:
    """In its variables and in the names of its files; they share one stored specification."""
    jobs = array(here, "1,5-9:2", output="%A_%a-%j", error="%%a")

    assert [(job.label, job.array, job.index) for job in jobs] == [
        ("1_1", 1, 1),
        ("1_5", 1, 5),
        ("1_7", 1, 7),
        ("1_9", 1, 9),
    ]
    start = start_of(jobs[2], jobs[2].launcher, 1)
    found = {name: value for name, value in start.env.items() if name.startswith("DROM_ARRAY")}
    names = ("JOB_ID", "TASK_ID", "TASK_COUNT", "TASK_MIN", "TASK_MAX", "TASK_STEP")
    assert found == dict(zip((f"DROM_ARRAY_{name}" for name in names), ("1", "7", "4", "1", "9", "1"), strict=True))
    assert (start.output, start.error) == ("1_7-%j", "%%a")
    assert len({id(job.spec) for job in jobs}) == 1


def test_an_array_runs_only_so_many_at_once(here: FakeCluster) -> None:
    """In order, also after a restart of the scheduler; those outside say why they wait."""
    jobs = array(here, "0-5%2")
    assert running(jobs) == [0, 1]
    assert explain.why(jobs[2], here.cluster) == "array 1 may run 2 jobs at once, as its --array says"
    end(here, jobs[0])
    assert running(jobs) == [1, 2]

    here.crash()
    here.settle()
    jobs = [here.cluster.jobs.get(job.number, job) for job in jobs]
    assert running(jobs) == [1, 2]
    here.cluster.cancel(jobs[1].number, here.now, "cancelled")
    here.cluster.hold(jobs[3].number, here.now, "ann", held=True)
    here.send()
    here.settle()
    assert running(jobs) == [2, 4]
    other = array(here, "0-2")
    assert running(other) == [0, 1, 2]


def test_a_job_may_wait_for_a_whole_array(here: FakeCluster) -> None:
    """Not for its first job alone."""
    jobs = array(here, "0-2")
    (after,) = array(here, "7", after=(Dependency("afterok", 1),))
    assert here.cluster.queue.waits_for(after.number) == [1, 2, 3]
    for job in jobs:
        assert after.state == "pending"
        end(here, job)
    assert after.state == "running"


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("statuses", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1)])
def test_a_job_may_wait_for_a_failure_of_an_array(here: FakeCluster, statuses: Sequence[int], *, restart: bool) -> None:
    """One job that fails suffices, and all have to end first, as with Slurm; a restart changes nothing."""
    jobs = array(here, "0-2")
    (after,) = array(here, "7", after=(Dependency("afternotok", 1),))
    for number, status in enumerate(statuses, 1):
        assert after.state == "pending"
        assert here.cluster.queue.waits_for(after.number) == [job.number for job in jobs[number - 1 :]]
        end(here, jobs[number - 1], status)
        if restart and number < len(jobs):
            here.crash()
            here.settle()
            after = here.cluster.jobs[after.number]
            jobs = [here.cluster.jobs.get(job.number, job) for job in jobs]
    assert after.state == "running"
    (later,) = array(here, "7", after=(Dependency("afternotok", 1),))
    assert later.state == "running"


def test_a_failure_that_no_job_of_an_array_had_is_not_waited_for(here: FakeCluster) -> None:
    """All have succeeded: who waited is cancelled, and who comes later is refused, with the reason."""
    jobs, others = array(here, "0-2"), array(here, "0-1")
    (after,) = array(here, "7", after=(Dependency("afternotok", 4), Dependency("afternotok", 1)))
    end(here, others[0], 1)
    for job in (*jobs, others[1]):
        assert after.state == "pending"
        end(here, job)

    reason = "it was to start after failure of a job of array 1, which is completed"
    assert (after.state, after.reason) == ("cancelled", reason)
    with pytest.raises(SchedulerError, match=f"^the job could never start, as {reason}: leave that out of"):
        array(here, "7", after=(Dependency("afternotok", 1),))


def test_a_job_may_wait_for_one_of_an_array(here: FakeCluster) -> None:
    """Its index is found in the array; others of the array do not count, and no change makes them count."""
    jobs = array(here, "5-9:2")
    one = Dependency("afterok", 1, 5), Dependency("after", 1, 7)
    (after,) = array(here, "7", after=one)
    assert after.spec.after == (Dependency("afterok", 1), Dependency("after", 2))
    here.cluster.update(after.number, here.cluster.changed(after.number, {"time": 60}), here.now, "ann", "--time 60 s")
    assert here.cluster.queue.waits_for(after.number) == [1]
    end(here, jobs[0])
    assert after.state == "running"
    for index in (6, -1, 1 << 70):
        with pytest.raises(SchedulerError, match=f"^there is no job 1_{index} to wait for: see drom queue --all"):
            array(here, "7", after=(Dependency("afterok", 1, index),))
    with pytest.raises(SchedulerError, match=r"^there is no job 99_7 to wait for: see drom queue --all"):
        array(here, "7", after=(Dependency("afterok", 99, 7),))


def test_an_array_whose_first_job_is_over_is_still_known(here: FakeCluster) -> None:
    """The next scheduler keeps only jobs that are not over, and reads the others."""
    jobs = array(here, "0-2")
    end(here, jobs[0])
    here.crash()
    here.settle()
    (whole,) = array(here, "7", after=(Dependency("afterok", 1),))
    (one,) = array(here, "7", after=(Dependency("afterok", 1, 2),))

    assert 1 not in here.cluster.jobs
    assert [here.cluster.queue.waits_for(job.number) for job in (whole, one)] == [[2, 3], [3]]


def test_no_job_of_an_array_waits_for_itself(here: FakeCluster) -> None:
    """Nor for a later one of its array, by whatever name."""
    array(here, "0-3", hold=True)
    for after in (Dependency("after", 1), Dependency("after", 1, 2), Dependency("after", 1, 3)):
        with pytest.raises(
            SchedulerError, match=r"^job 3 can wait only for jobs submitted before it, not for job [34]:"
        ):
            here.cluster.changed(3, {"after": [after]})
    assert here.cluster.changed(3, {"after": [Dependency("after", 1, 1)]}).after == (Dependency("after", 2),)


def test_many_arrays_are_too_many_to_wait_for(here: FakeCluster) -> None:
    """A job waits for at most a thousand jobs."""
    for _ in range(2):
        array(here, "0-999", hold=True)
    sentence = r"^the job waits for more than 1000 jobs, the most for one: name fewer arrays\.$"
    with pytest.raises(SchedulerError, match=sentence):
        array(here, "7", after=(Dependency("after", 1), Dependency("after", 1001)))


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("12", [(0, 12, 12)]),
        ("3-7", [(0, 3, 7)]),
        ("12_0", [(12, 0, 0)]),
        ("12_[1,3-7]", [(12, 1, 1), (12, 3, 7)]),
        ("12_3-7", [(12, 3, 7)]),
    ],
)
def test_jobs_are_named_as_users_see_them(text: str, ranges: list[tuple[int, int, int]]) -> None:
    """Alone, as a range, or in an array."""
    assert list(parse_jobs(text)) == [JobRange(*one) for one in ranges]


OTHER = Caller(os.getpid(), NOBODY)


class Asked:
    """A scheduler that users give orders."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def order(self, caller: Caller, name: str, **fields: Any) -> dict[str, Any]:
        """Give an order, and return its answer."""
        answer: dict[str, Any] = self._server._answer({"order": name, **fields}, caller)
        return answer

    def submit(self, caller: Caller, count: int = 1, **about: Any) -> None:
        """Submit jobs that are held."""
        self.order(caller, "submit", jobs=[replace(HELD, **about).to_json()], count=count)


@pytest.fixture
def asked() -> Iterator[Asked]:
    """Return a scheduler with an array 1 of another user with four jobs, and jobs 5 and 6 of root."""
    with scheduler() as server:
        found = Asked(server)
        found.submit(OTHER, array="0-3", name="many")
        found.submit(ROOT, name="one")
        found.submit(ROOT, name="two")
        yield found


@pytest.mark.parametrize(
    ("caller", "fields", "numbers", "refused"),
    [
        (OTHER, {"ranges": [[0, 1, 1]]}, [1, 2, 3, 4], []),
        (
            OTHER,
            {"ranges": [[1, 1, 2], [0, 5, 5]]},
            [2, 3],
            ["job 5 belongs to root: only they and root may"],
        ),
        (OTHER, {"users": ["nobody"], "states": ["pending"]}, [1, 2, 3, 4], []),
        (OTHER, {"names": ["one", "many"]}, [1, 2, 3, 4], []),
        (OTHER, {"users": ["root"]}, [], ["job 5 belongs to root", "job 6 belongs to root"]),
        (ROOT, {"ranges": [[0, 3, 5]], "names": ["one", "many"]}, [3, 4, 5], []),
        (ROOT, {"ranges": [[0, 9, 9]]}, [], ["there is no job 9: see drom queue --all."]),
        (ROOT, {"ranges": [[1, 9, 9], [0, 6, 6]]}, [6], ["no job of 1_9 waits or runs: see drom queue."]),
        (ROOT, {"states": ["running"]}, [], []),
    ],
)
def test_an_order_changes_the_jobs_that_it_chooses(
    asked: Asked, caller: Any, fields: dict[str, Any], numbers: list[int], refused: list[str]
) -> None:
    """Those that the user may change, and it says why not others that were named."""
    answer = asked.order(caller, "cancel", **fields)

    assert [job["job"] for job in answer["jobs"]] == numbers
    assert [job["state"] for job in answer["jobs"]] == ["cancelled"] * len(numbers)
    assert len(answer["refused"]) == len(refused)
    assert all(said.startswith(sentence) for said, sentence in zip(answer["refused"], refused, strict=True))
    assert answer["after"] is None


def test_of_many_jobs_that_cannot_be_changed_the_first_are_named_and_the_others_counted(asked: Asked) -> None:
    """No job is left out without a word."""
    asked.submit(ROOT, count=30)
    refused = asked.order(OTHER, "cancel", users=["root"])["refused"]

    assert [reason.split(" belongs")[0] for reason in refused[:-1]] == [f"job {number}" for number in range(5, 25)]
    assert refused[-1] == "12 more jobs could not be changed."


def test_an_order_that_chooses_nothing_is_refused(asked: Asked) -> None:
    """It would change all jobs of the user."""
    with pytest.raises(ControlError, match=r"^an order that changes jobs must choose some"):
        asked.order(ROOT, "cancel")


def test_many_jobs_are_changed_in_turns(asked: Asked) -> None:
    """Each order changes a thousand, and the next continues."""
    for _ in range(2):
        asked.submit(ROOT, count=1000, name="job")
    first = asked.order(ROOT, "hold", names=["job"], held=False)
    second = asked.order(ROOT, "hold", names=["job"], held=False, after=first["after"])

    assert [len(answer["jobs"]) for answer in (first, second)] == [1000, 1000]
    assert (first["after"], second["after"]) == (1006, None)


def test_a_job_of_an_array_is_found_by_its_index(asked: Asked) -> None:
    """Also in answers, where it has both."""
    assert asked.order(ROOT, "job", array=1, index=2)["job"] == 3
    rows = asked.order(ROOT, "queue")["jobs"]
    assert [(row["array"], row["index"]) for row in rows] == [(1, 0), (1, 1), (1, 2), (1, 3), (0, 0), (0, 0)]
    for array, index in ((1, 4), (5, 0)):
        with pytest.raises(ControlError, match=f"^there is no job {array}_{index}: see drom queue --all"):
            asked.order(ROOT, "job", array=array, index=index)


def test_only_running_jobs_are_sent_signals(asked: Asked) -> None:
    """Others are left as they are."""
    answer = asked.order(ROOT, "cancel", ranges=[[0, 5, 5]], signal=10)

    assert answer["jobs"] == []
    assert answer["refused"] == ["job 5 is pending: only the program of a running job can be sent a signal."]


def test_a_signal_goes_to_the_program_of_a_job(here: FakeCluster) -> None:
    """Without ending the job for the scheduler; its history has it."""
    (job,) = array(here, "4")
    here.cluster.signal(job.number, Notice(10), here.now, "ann")
    entry = here.cluster.outbox.entries[-1]
    here.send()

    assert (entry.what, entry.detail) == ("signalled", {"signal": 10, "by": "ann"})
    (message,) = here.nodes[job.launcher].inbox
    assert message == say.Signal(job.number, job.attempt, 10, to="tasks")
    assert job.state == "running"
