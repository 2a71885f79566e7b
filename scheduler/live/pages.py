# SPDX-License-Identifier: Apache-2.0
"""Answers about many jobs, which a scheduler gives a page at a time: nobody else is heard meanwhile. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA_VERSION = 1
"""Of every answer."""
PAGE = 1000
"""Jobs of one answer."""


def whole(ask: Callable[..., Any], order: str, **fields: Any) -> Any:  # noqa: ANN401 - JSON values
    """Give an order and return its answer, put together from pages where it has some, of which the newest comes first.

    A page says `before` which job the next one ends; it is None in the last one.
    """
    value = ask(order, **fields)
    while value.get("before") is not None:
        left = fields["last"] - len(value["jobs"])
        page = ask(order, **fields | {"before": value["before"], "last": left})
        value = page | {name: page[name] + value[name] for name in ("jobs", "entries") if name in page}
    return value
