# SPDX-License-Identifier: Apache-2.0
"""Jobs that are changed after their submission: drom update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.errors import ControlError
from drom.agent.execution import protocol as say
from drom.scheduler.live.cluster.controller import Controller
from drom.scheduler.live.cluster.quotas import ROW
from drom.scheduler.live.cluster.settings import Settings
from drom.scheduler.live.cluster.spec import Dependency, Spec, size_of

from tests.support.scheduler_requests import OTHER, ROOT, scheduler, submit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from drom.agent.model.caller import Caller
    from drom.scheduler.live.server.server import Server

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def server() -> Iterator[Server]:
    """Return a scheduler of one node of four cores."""
    with scheduler() as found:
        yield found


def update(server: Server, job: int, caller: Caller = OTHER, **changes: object) -> dict[str, Any]:
    """Change a job, and return its row."""
    row: dict[str, Any] = server._answer({"order": "update", "job": job, "changes": changes}, caller)
    return row


def refusal(server: Server, job: int, caller: Caller = OTHER, **changes: object) -> str:
    """Return the sentence with which a change is refused."""
    with pytest.raises(ControlError) as refused:
        update(server, job, caller, **changes)
    return str(refused.value)


def start(server: Server, **about: Any) -> int:
    """Start a job of one minute of a user, and return its number."""
    (number,) = submit(server, caller=OTHER, **{"hold": False, "time": 60, **about})
    server.turn()
    assert server.cluster.jobs[number].state == "starting"
    server.cluster.agents.on_message("n1", say.Started(number, 1, 1, 0.0), server.stored.clock())
    server.turn()
    assert server.cluster.jobs[number].state == "running"
    return number


def test_a_change_is_stored_for_one_of_the_jobs_that_were_submitted_together(tmp_path: Path) -> None:
    """The next scheduler has it, the history names who changed what, and the other jobs are as they were."""
    with scheduler(tmp_path) as server:
        first, second = submit(server, 2, OTHER, time=60, environment={"A": "1"})
        row = update(server, first, time=600, tasks=2, threads=2, name="new", constraint=[], priority=-3, memory=0)
        assert (row["name"], row["requested"], row["limit"]) == ("new", 600, 600)
    with scheduler(tmp_path) as server:
        changed, other = (server.cluster.jobs[number] for number in (first, second))
        assert (changed.spec.time, changed.spec.tasks, changed.spec.ranks, changed.priority) == (600, 2, 2, -3)
        assert changed.spec.environment == {"A": "1"}
        assert (other.spec.time, other.spec.name, other.priority) == (60, "", 0)
        history = server._answer({"order": "job", "job": first}, OTHER)["history"]
        assert history[-1]["what"] == "updated"
        said = "--time 10 min, --tasks-per-node 2, --cpus-per-task 2, --job-name new, --constraint unset, --priority -3"
        assert history[-1]["detail"] == {"by": "nobody", "changed": f"{said}, --mem unset"}
        assert server.stored.store._db.execute("SELECT count(*) FROM specs").fetchone() == (2,)


def test_a_job_with_another_number_of_tasks_has_the_nodes_for_them(server: Server) -> None:
    """Other numbers may be given with it, and have to agree with it."""
    (number,) = submit(server, caller=OTHER, tasks=4, ranks=4)
    update(server, number, ranks=3)
    spec = server.cluster.jobs[number].spec
    assert (spec.nodes, spec.tasks, spec.ranks) == (1, 3, 3)
    update(server, number, ranks=2, tasks=2)
    spec = server.cluster.jobs[number].spec
    assert (spec.nodes, spec.tasks, spec.ranks) == (1, 2, 2)
    assert server.stored.store.history(number, number)[-1].detail["changed"] == "--ntasks 2, --tasks-per-node 2"
    assert refusal(server, number, ranks=9).startswith("the job asks for 3 nodes, and this cluster has 1 node")
    assert refusal(server, number, ranks=3, nodes=1, tasks=2).startswith("3 tasks are not 1 node with 2 each")
    assert (spec.nodes, spec.tasks, spec.ranks) == (1, 2, 2)


def test_a_changed_job_keeps_its_place(server: Server) -> None:
    """It is before jobs of its priority that came later, and behind them with a lower one."""
    start(server)
    numbers = submit(server, 3, OTHER, hold=False)
    assert server.cluster.controller
    update(server, numbers[0], time=300)
    assert server.cluster.controller.waiting == numbers
    update(server, numbers[0], priority=-1)
    assert server.cluster.controller.waiting == [*numbers[1:], numbers[0]]


def test_a_job_can_wait_for_other_jobs_than_at_its_submission(server: Server) -> None:
    """It starts when it waits for none any more."""
    first, second = submit(server, 2, OTHER)
    (third,) = submit(server, caller=OTHER, hold=False, after=(("afterok", first),))
    update(server, third, after=[("afterany", second)])
    assert server.cluster.queue.waits_for(third) == [second]
    server._answer({"order": "cancel", "job": first}, OTHER)  # would have ended it
    server.turn()
    assert server.cluster.jobs[third].state == "pending"
    update(server, third, after=[])
    server.turn()
    assert server.cluster.jobs[third].state == "starting"


def test_a_job_that_was_to_be_cancelled_for_its_dependency_waits_on_without_it(server: Server) -> None:
    """Also if the other job has failed, and the jobs that wait for it have not been handled yet."""
    (first,) = submit(server, caller=OTHER)
    second, third = submit(server, 2, OTHER, after=(("afterok", first),))
    server.cluster.queue._steps = 0
    server._answer({"order": "cancel", "job": first}, OTHER)
    server.cluster.queue._look_again(first, *server.cluster.queue.dependencies.on(first))
    update(server, second, after=[])
    server.turn()
    assert [server.cluster.jobs[number].state for number in (second, third)] == ["pending", "cancelled"]


def test_a_job_cannot_be_made_one_that_never_runs(server: Server) -> None:
    """The sentences are those of a submission, and the job stays as it was."""
    (first,) = submit(server, caller=OTHER)
    (number,) = submit(server, caller=OTHER, after=(("afterok", first),))
    assert refusal(server, number, nodes=2).startswith("the job asks for 2 nodes, and this cluster has 1 node")
    assert refusal(server, number, tasks=5).startswith("5 tasks of 1 core do not fit on a node, which has 4 cores")
    assert refusal(server, number, constraint=["gpu"]).startswith("policy fcfs treats all nodes as equal")
    assert refusal(server, number, time=-1).startswith("--time is a whole number from 0 to ")
    assert refusal(server, number, after=[("after", 99)]).startswith(f"job {number} can wait only for jobs submitted ")
    assert refusal(server, first, after=[("after", first)]).startswith(f"job {first} can wait only for jobs submitted ")
    assert refusal(server, number, priority=1).startswith("only root and the scheduler's own user may put jobs ")
    assert refusal(server, number, time="1") == "a field of the job has a wrong type: use this version's drom."
    for changes in ({}, {"command": ["false"]}, {"umask": 3}):
        sentence = "a change names some fields of a submission: use this version's drom."
        assert refusal(server, number, **changes) == sentence
    with pytest.raises(ControlError, match=r"^update takes an object of changes: "):
        server._answer({"order": "update", "job": number, "changes": 1}, OTHER)
    job = server.cluster.jobs[number]
    assert (job.spec.nodes, job.spec.time, job.spec.after) == (1, 3600, (Dependency("afterok", first),))
    assert len(server.stored.store.history(number, number)) == 1


def test_only_its_user_and_operators_change_a_job(server: Server) -> None:
    """Root may also put it before others, and then its user may change something else of it."""
    (mine,), (theirs,) = submit(server), submit(server, caller=OTHER)
    assert refusal(server, mine, time=60) == f"job {mine} belongs to root: only they and root may change it."
    update(server, theirs, ROOT, priority=5)
    update(server, theirs, name="x")
    assert server.cluster.jobs[theirs].priority == 5
    server._answer({"order": "cancel", "job": theirs}, OTHER)
    assert refusal(server, theirs, time=60) == f"job {theirs} is over: it is cancelled."
    assert refusal(server, 99, time=60) == "there is no job 99: see drom queue --all."


def test_the_limit_of_a_running_job_is_shortened_by_its_user_and_lengthened_by_operators(server: Server) -> None:
    """Nothing else of the job changes."""
    number = start(server)
    assert isinstance(server.cluster.controller, Controller)
    assert update(server, number, time=30)["limit"] == 30
    who = "only root and the scheduler's own user may lengthen the limit of a job that has started"
    assert refusal(server, number, time=60) == f"{who}: give a shorter --time."
    assert update(server, number, ROOT, time=7200)["limit"] == 7200
    assert server.cluster.controller.limit(number) == 7200
    assert server.cluster.controller.world.jobs.ends[0] == server.cluster.controller.world.jobs.start[0] + 7200
    assert refusal(server, number, nodes=2) == f"job {number} has started: only its --time can be changed."
    assert refusal(server, number, time=60, name="x") == f"job {number} has started: only its --time can be changed."
    assert [entry.what for entry in server.stored.store.history(number, number)][-4:] == ["limit", "updated"] * 2
    server._answer({"order": "cancel", "job": number}, OTHER)
    assert refusal(server, number, time=10) == f"job {number} is ending: nothing of it can be changed."


def test_a_user_has_no_more_bytes_by_changing_jobs_that_share_their_script() -> None:
    """A changed job has a script of its own, which counts."""
    large = {"A": "x" * 400_000}
    size = size_of(Spec(command=("true",), folder="/", hold=True, environment=large))
    with scheduler(settings=Settings(max_bytes=size + 10 * ROW)) as server:
        first, second = submit(server, 2, OTHER, environment=large)
        assert refusal(server, first, time=60).startswith("393.1 KiB are kept for the jobs of user nobody, and with ")
        server._answer({"order": "cancel", "job": second}, OTHER)
        update(server, first, time=60)
