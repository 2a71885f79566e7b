# SPDX-License-Identifier: Apache-2.0
"""Carrying out what the node asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from agent.acting import Acting
from tests.test_registry import job_of, task_of


def test_those_that_shrink_are_saved_first() -> None:
    """A core that changes hands leaves one record and fence before it enters another: none ever shows it twice."""
    grows, shrinks = task_of(0, (2, 0b1111)), task_of(1, (2, 0b0001))
    file = {0: 0b0001, 1: 0b1111}
    saved: list[object] = []
    registry = SimpleNamespace(held=file.get, save=lambda task, *_, **__: saved.append(task.slot))
    plan = SimpleNamespace(target=lambda _: 0, owned=lambda _: 0)
    node = SimpleNamespace(take_unsaved=lambda: [grows, shrinks], jobs={"a": job_of(grows)}, plan=plan)

    fences = SimpleNamespace(keep=lambda task, _: saved.append(("fence", task.slot)))
    following = SimpleNamespace(processes_of=lambda _: None)
    acting = SimpleNamespace(registry=registry, node=node, fences=fences, following=following)

    Acting.save(cast("Acting", acting))

    assert saved == [1, ("fence", 1), 0, ("fence", 0)]
