# SPDX-License-Identifier: Apache-2.0
"""Jobs that wait for others: what they wait for is kept once for a submission, and long lists do not stop anybody."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.live.cluster.jobs import PENDING, Job, User
from drom.scheduler.live.cluster.spec import MOST_AT_ONCE, MOST_DEPENDENCIES, Dependency
from drom.scheduler.live.server.store import Store

from tests.support.scheduler_requests import HELD, ROOT, cost, scheduler, submit

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)


def test_what_many_jobs_wait_for_is_kept_once() -> None:
    """So the largest request costs little memory and time; all of them follow when one of the others ends."""
    with scheduler() as server:
        others = submit(server, MOST_DEPENDENCIES)
        after = tuple(Dependency("afterany", number) for number in others)
        with cost() as taken:
            numbers = submit(server, MOST_AT_ONCE, after=after)
        assert taken.peak < 10 << 20
        more = submit(server, MOST_AT_ONCE, after=after)
        assert len(server.cluster.queue.dependencies._waits) == 2
        assert server.cluster.queue.waits_for(numbers[7]) == server.cluster.queue.waits_for(more[-1]) == others
        for number in others[:-1]:
            server._answer({"order": "cancel", "job": number}, ROOT)
        assert server.cluster.queue.waits_for(numbers[7]) == others[-1:]
        server._answer({"order": "cancel", "job": numbers[7]}, ROOT)
        server._answer({"order": "cancel", "job": others[-1]}, ROOT)
        assert server.cluster.queue.waits_for(more[-1]) == []
        assert not server.cluster.queue.dependencies._waits
        assert not server.cluster.queue.dependencies._dependents


def test_what_becomes_of_jobs_that_wait_in_vain() -> None:
    """All of a submission are cancelled, and those that wait for these."""
    with scheduler() as server:
        (first,) = submit(server)
        second = submit(server, 3, after=(Dependency("afterok", first),))
        (third,) = submit(server, after=tuple(Dependency("afterok", number) for number in second))
        server._answer({"order": "cancel", "job": first}, ROOT)
        assert {server.cluster.jobs[number].state for number in (*second, third)} == {"cancelled"}
        assert not server.cluster.queue.dependencies._waits
        assert not server.cluster.queue.dependencies._dependents


def test_a_queue_with_longer_lists_than_are_taken_now_is_loaded(tmp_path: Path) -> None:
    """An earlier version took any number: they are looked at once for all jobs that have them."""
    wanted = tuple(Dependency("afterany", number) for number in range(1, 12_001))
    spec = replace(HELD, after=wanted)
    user = User(0, 0, "root")
    with closing(Store(tmp_path)) as store:
        store.write([Job(number, HELD, user, 1.0, PENDING, held=True) for number in range(1, 12_001)], [], [])
        store.write([Job(number, spec, user, 1.0, PENDING, held=True) for number in range(12_001, 13_001)], [], [])
    with scheduler(tmp_path) as server:
        assert len(server.cluster.queue.waits_for(13_000)) == 12_000
        told = server._answer({"order": "job", "job": 13_000}, ROOT)
        assert told["reason"] == "held: release it with drom hold --release 13000"
