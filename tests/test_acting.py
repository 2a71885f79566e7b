# SPDX-License-Identifier: Apache-2.0
"""Carrying out what the node asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from agent.acting import Acting
from tests.test_registry import job_of, task_of


def test_those_that_shrink_are_saved_first() -> None:
    """A core that changes hands leaves one record before it enters the other, so no file ever shows it twice."""
    grows, shrinks = task_of(0, (2, 0b1111)), task_of(1, (2, 0b0001))
    file = {0: 0b0001, 1: 0b1111}
    saved: list[int] = []
    registry = SimpleNamespace(held=file.get, save=lambda task, *_, **__: saved.append(task.slot))
    plan = SimpleNamespace(target=lambda _: 0, owned=lambda _: 0)
    node = SimpleNamespace(take_unsaved=lambda: [grows, shrinks], jobs={"a": job_of(grows)}, plan=plan)

    Acting.save(cast("Acting", SimpleNamespace(registry=registry, node=node)))

    assert saved == [1, 0]
