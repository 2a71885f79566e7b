# SPDX-License-Identifier: Apache-2.0
"""Jobs that are over as a scheduler tells them: chosen, and a page at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.errors import ControlError
from drom.agent.execution import protocol as say
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.live.cluster.paging import PAGE, all_pages

from tests.support.scheduler_requests import OTHER, ROOT, scheduler, submit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drom.scheduler.live.server.server import Server

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def server() -> Iterator[Server]:
    """Return a scheduler of one node of four cores."""
    with scheduler() as found:
        yield found


def asker(server: Server, sizes: list[int]) -> Callable[..., Any]:
    """Return a function that gives an order as a client does; `sizes` are the numbers of jobs of its pages."""

    def ask(order: str, **fields: Any) -> Any:
        value = server._answer({"order": order, **fields}, OTHER)
        sizes.append(len(value["jobs"]))
        return value

    return ask


def numbers(server: Server, **fields: Any) -> list[int]:
    """Return the jobs of a history."""
    fields = {"brief": True, "last": 1000} | fields
    return [row["job"] for row in all_pages(asker(server, []), "history", **fields)["jobs"]]


def test_jobs_are_chosen_by_user_state_name_and_end(server: Server) -> None:
    """A job that is not over counts as one that ends now."""
    (mine,), theirs, (waits,) = submit(server, name="a"), submit(server, 2, OTHER), submit(server, name="b")
    for number in (mine, *theirs):
        server._answer({"order": "cancel", "job": number}, ROOT)
    first, second = (server.cluster.jobs[number] for number in theirs)
    assert first.ended is not None
    assert second.ended is not None
    assert numbers(server, states=["cancelled"]) == [mine, *theirs]
    assert numbers(server, users=["nobody"]) == theirs
    assert numbers(server, names=["a", "b"]) == [mine, waits]
    assert numbers(server, since=second.ended) == [second.number, waits]
    assert numbers(server, until=second.ended) == [mine, first.number]
    assert numbers(server, since=second.ended, states=["cancelled"], last=1) == [second.number]
    assert numbers(server, last=2) == [second.number, waits]


def test_pages_are_bounded_also_where_few_jobs_are_chosen(server: Server) -> None:
    """No page reads more jobs than it may have, and none that was chosen is missing."""
    (early,) = submit(server, name="early")
    for _ in range(3):
        submit(server, PAGE)
    (late,) = submit(server, name="late")
    sizes: list[int] = []
    found = all_pages(asker(server, sizes), "history", brief=True, last=100, names=["early", "late"])

    assert [row["job"] for row in found["jobs"]] == [early, late]
    assert (sum(sizes), len(sizes) >= 4) == (2, True)
    assert found["entries"] == []


def test_core_seconds_are_in_it(server: Server) -> None:
    """Those of a job on all cores of a node, while it runs and once it is over."""
    (number,) = submit(server, caller=OTHER, hold=False)
    server.turn()
    server.cluster.agents.on_message("n1", say.Started(number, 1, 1, 0.0), server.stored.clock())
    server.turn()

    def row() -> dict[str, Any]:
        found: dict[str, Any] = server._answer({"order": "history", "brief": True}, OTHER)["jobs"][0]
        return found

    assert 0 < row()["core_seconds"] < 4 * 60
    now = server.stored.clock()
    server.cluster.agents.on_message("n1", say.Ended(number, 1, 0, now, 1.0, 0), now)
    server.turn()
    over = row()
    assert over["state"] == "completed"
    assert over["core_seconds"] == pytest.approx(4 * (over["ended"] - over["started"]))


@pytest.mark.parametrize("value", ["2026", True, 1e300, float("nan"), float("inf"), [1]])
@pytest.mark.parametrize("field", ["since", "until"])
def test_a_time_is_a_number(server: Server, field: str, value: object) -> None:
    """Nothing else is compared with times."""
    with pytest.raises(ControlError, match=f"^{field} is a time in seconds since 1970: send one"):
        server._answer({"order": "history", field: value}, OTHER)


def test_the_sizes_of_nodes_and_the_devices_of_jobs_are_in_it() -> None:
    """Nodes have a common number of cores except where jobs share nodes of any size."""
    with scheduler(policy=load_policy("resources")) as server:
        submit(server)
        found = server._answer({"order": "history"}, ROOT)

    assert (found["cores"], found["sizes"]) == (0, {"n1": [4, 0]})
    assert [job["devices"] for job in found["jobs"]] == [{}]
