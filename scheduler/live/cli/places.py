# SPDX-License-Identifier: Apache-2.0
"""Where the schedulers of a cluster listen to users, and orders to the one of them that leads."""

from __future__ import annotations

import itertools
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drom.agent.control import client
from drom.agent.control.remote import HANDSHAKE_MS, RemoteAddress
from drom.agent.errors import ControlError, ElsewhereError, NotYetError, UnreachableError
from drom.agent.system.paths import default_keys
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster.homes import merged, parts_of
from drom.scheduler.live.cluster.paging import all_pages
from drom.scheduler.live.cluster.spec import SERVICE

if TYPE_CHECKING:
    from collections.abc import Sequence

Place = Path | RemoteAddress
PATIENCE = 10.0
"""Seconds for which an order waits until one of several schedulers leads."""
AGAIN = 0.2
"""Seconds until all of them are asked again."""
FIRST_MS = 1000
"""Milliseconds for a scheduler to answer a connection before the next one is tried, at first; then twice as many."""


def parse(text: str) -> list[Place]:
    """Return the schedulers in a list with commas; a folder that exists may have commas in its name.

    Raises SchedulerError for one that is neither an address nor a folder.
    """
    return [_place(one) for one in ([text] if Path(text).is_dir() else text.split(","))]


def _place(text: str) -> Place:
    """Return the scheduler at ``HOST:PORT``, optionally after ``tcp://``, or the folder of its queue."""
    address = text.removeprefix("tcp://")
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in address:
        folder = os.environ.get("DROM_REMOTE_KEYS")
        return RemoteAddress(address, Path(folder) if folder else default_keys())
    if ":" in text and not Path(text).is_dir():
        msg = f"{text!r} is not a scheduler: write HOST:PORT, or the folder of its queue."
        raise SchedulerError(msg)
    return Path(text)


def ask(places: Sequence[Place], order: str, **fields: Any) -> Any:  # noqa: ANN401 - JSON values
    """Give an order to the scheduler that leads, or to those of all home partitions, and return the answer.

    Raises ControlError.
    """
    value = _ask(places, order, **fields)
    homes: dict[str, int] = value.get("ask_homes", {})
    if not homes:
        return value
    concerned: dict[str, dict[str, Any]] = {home: {} for home in homes}
    if order == "drain":
        nodes = [node for node in ask(places, "nodes")["nodes"] if node["name"] == fields["node"]]
        there = [home for node in nodes for home in (node.get("borrower"), node["home"]) if home]
        concerned = {home: {} for home in there[: 1 if fields.get("forget") else None] or list(homes)[:1]}
    elif fields.get("ranges"):
        concerned = {home: {"ranges": found} for home, found in parts_of(fields["ranges"], homes).items()}
    answers = {home: _ask(places, order, **fields | {"home": home} | more) for home, more in concerned.items()}
    return merged(answers, fields)


def _ask(places: Sequence[Place], order: str, **fields: object) -> Any:  # noqa: ANN401 - a JSON value
    """Give an order to the first scheduler that accepts it and return its answer. Raises ControlError.

    Of several it tries the next one if one stands by, or cannot be reached, and all again for up to `PATIENCE`. One
    that may have been replaced, as it is cut off from its store, answers only if none is certain to lead. An order that
    may have arrived is not repeated.
    """
    certainly: list[dict[str, object]] = [{}]
    until, patience_ms = 0.0, None
    if len(places) > 1:
        certainly = [{"certain": True}, {}]
        until, patience_ms = time.monotonic() + PATIENCE, FIRST_MS
    while True:
        failures: list[ControlError] = []
        for more, place in itertools.product(certainly, places):
            ask_it = partial(client.order, place, server=SERVICE, patience_ms=patience_ms)
            try:
                return all_pages(ask_it, order, **fields, **more)
            except (NotYetError, UnreachableError) as error:  # another one may lead
                failures.append(error)
        if time.monotonic() >= until:
            raise min(reversed(failures), key=lambda error: isinstance(error, (ElsewhereError, UnreachableError)))
        patience_ms = patience_ms and min(2 * patience_ms, HANDSHAKE_MS)
        time.sleep(AGAIN)
