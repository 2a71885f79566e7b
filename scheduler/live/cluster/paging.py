# SPDX-License-Identifier: Apache-2.0
"""Long answers, which a scheduler gives a page at a time, as it reads no other message meanwhile."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SCHEMA_VERSION = 1
"""The schema version of every answer."""
PAGE = 1000
"""Jobs or nodes of one answer."""
PAGE_BYTES = 1 << 19
PAGE_SECONDS = 0.03
"""The bytes and the processor time that one answer may take; it has at least one row."""
_TABLES = ("jobs", "nodes", "entries", "refused")
"""Fields of which each page has a part."""


def fill(rows: Iterable[dict[str, Any]], most: int = PAGE) -> list[dict[str, Any]]:
    """Return the first rows, as many as one answer may have: at most `most`, within its bytes and its time."""
    page: list[dict[str, Any]] = []
    left, until = PAGE_BYTES, time.thread_time() + PAGE_SECONDS
    for row in rows:
        left -= len(json.dumps(row))
        if page and left < 0:
            break
        page.append(row)
        if len(page) >= most or time.thread_time() > until:
            break
    return page


def all_pages(ask: Callable[..., Any], order: str, **fields: Any) -> Any:  # noqa: ANN401 - JSON values
    """Give an order and return its answer, put together from its pages.

    A page names in `before` the job before which the next page ends, or in `after` the job or node after which it
    begins; the last page has neither. An order with `last` or `limit` returns no more jobs than that.
    """
    value = ask(order, **fields)
    while value.get("before") is not None:
        left = fields["last"] - len(value["jobs"])
        page = ask(order, **fields | {"before": value["before"], "last": left})
        value = page | {name: page[name] + value[name] for name in ("jobs", "entries") if name in page}
    while value.get("after") is not None:
        more = {"after": value["after"]}
        if "limit" in fields:
            more["limit"] = fields["limit"] - len(value["jobs"])
            if more["limit"] <= 0:
                break
        page = ask(order, **fields | more)
        value = page | {name: value[name] + page[name] for name in _TABLES if name in page}
    return value
