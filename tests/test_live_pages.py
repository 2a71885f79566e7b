# SPDX-License-Identifier: Apache-2.0
"""Long answers of a scheduler come in pages, and are one answer to who asks."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.live.pages import PAGE, whole


@pytest.mark.parametrize("last", [1, PAGE, PAGE + 1, 10 * PAGE])
def test_pages_are_put_together(last: int) -> None:
    """In the order of the jobs, no more than were asked for, with what the last page says of the cluster."""
    there = range(1, 3 * PAGE + 6)
    asked: list[dict[str, Any]] = []

    def ask(_order: str, *, last: int, before: int = there.stop) -> dict[str, Any]:
        """Answer as a scheduler does."""
        asked.append({"last": last, "before": before})
        jobs = list(range(max(1, before - min(last, PAGE)), before))
        more = jobs[0] if last > PAGE and jobs[0] > 1 else None
        return {"jobs": jobs, "entries": [f"of {job}" for job in jobs], "before": more, "nodes": [len(asked)]}

    told = whole(ask, "history", last=last)

    wanted = list(there)[-last:]
    assert (told["jobs"], told["entries"]) == (wanted, [f"of {job}" for job in wanted])
    assert told["nodes"] == [-(-len(wanted) // PAGE)]


def test_what_comes_at_once_stays_as_it_is() -> None:
    """An answer to another order."""
    assert whole(lambda order, job: {"order": order, "job": job}, "cancel", job=3) == {"order": "cancel", "job": 3}
