# SPDX-License-Identifier: Apache-2.0
"""Long answers of a scheduler come in pages, and are one answer to who asks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from drom.scheduler.live.cluster import paging
from drom.scheduler.live.cluster.paging import PAGE, PAGE_BYTES, all_pages, fill


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

    told = all_pages(ask, "history", last=last)

    wanted = list(there)[-last:]
    assert (told["jobs"], told["entries"]) == (wanted, [f"of {job}" for job in wanted])
    assert told["nodes"] == [-(-len(wanted) // PAGE)]


def test_what_comes_at_once_stays_as_it_is() -> None:
    """An answer to another order."""
    assert all_pages(lambda order, job: {"order": order, "job": job}, "cancel", job=3) == {"order": "cancel", "job": 3}


@pytest.mark.parametrize("limit", [None, 1, 7, 8, 100])
def test_pages_that_begin_after_a_row_are_put_together(limit: int | None) -> None:
    """All that there are, or as many as were asked for, and then the answer says that there are more."""
    there = list(range(1, 21))

    def ask(_order: str, *, after: int = 0, limit: int = 100) -> dict[str, Any]:
        """Answer with seven at most."""
        rest = [one for one in there if one > after]
        rows = rest[: min(7, limit)]
        return {"jobs": rows, "after": rows[-1] if len(rows) < len(rest) else None, "left": len(rest) - len(rows)}

    told = all_pages(ask, "queue") if limit is None else all_pages(ask, "queue", limit=limit)

    assert told["jobs"] == there[: limit or len(there)]
    assert (told["after"] is None) == (len(told["jobs"]) == len(there))
    assert told["left"] == len(there) - len(told["jobs"])


def test_a_page_is_bounded_in_rows_bytes_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row is told whatever it takes, as the next page would not be shorter."""
    many = [{"job": number} for number in range(2 * PAGE)]
    large = [{"job": number, "name": "x" * (PAGE_BYTES // 10)} for number in range(20)]
    assert (fill(many), fill(many, 3)) == (many[:PAGE], many[:3])
    assert fill(large) == large[:9]
    assert len(json.dumps(fill(large))) <= PAGE_BYTES
    assert len(fill([{"name": "x" * (2 * PAGE_BYTES)}, *many])) == 1

    monkeypatch.setattr(paging, "PAGE_SECONDS", -1.0)
    assert fill(many) == many[:1]
    assert fill([]) == []
