# SPDX-License-Identifier: Apache-2.0
"""Messages between agents and their clients over ZeroMQ: the requests, and the services."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.agent.errors import ControlError

from dromlib import signals as events

if TYPE_CHECKING:
    from pathlib import Path

PROTOCOL = 1
MAX_MESSAGE = 1 << 16
"""Most bytes of a request to an agent; the connection of a client that sends a longer one is closed."""
MOST_BRACKETS = 1 << 15
"""Most brackets in an order (lists, objects, and in texts): each list takes 60 bytes of memory and some time."""


class Service(NamedTuple):
    """A service that answers orders: its name, the command that starts it, and the most bytes of a request.

    `command` is to be followed by a directory, and `place` names another directory to users; `option` is the option
    with its address for other nodes.
    """

    name: str
    command: str
    place: str
    option: str
    longest: int = MAX_MESSAGE


AGENT = Service("agent", "drom agent --runtime-dir", "DROM_RUNTIME_DIR", "remote.listen")


def endpoint(runtime_dir: Path, name: str) -> str:
    """Return the ipc endpoint `name` of a runtime directory. Raises `ControlError` if its path is too long."""
    try:
        return events.endpoint(runtime_dir, name)
    except ValueError as error:
        raise ControlError(str(error)) from error


def request(name: str, longest: int = MAX_MESSAGE, **fields: Any) -> bytes:  # noqa: ANN401 - JSON values
    """Return the bytes of an order. Raises `ControlError` if it is longer than `longest` bytes."""
    message = json.dumps({"protocol": PROTOCOL, "order": name, **fields}).encode()
    if len(message) > longest:
        raise ControlError(f"an order is at most {longest >> 10} KiB long: shorten it.")
    return message


def is_order(message: bytes) -> bool:
    """Return whether a message is an order of any version."""
    return isinstance(_object(message).get("order"), str)


def is_answer(message: bytes) -> bool:
    """Return whether a message is an answer to an order."""
    return isinstance(_object(message).get("ok"), bool)


def _object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`; an empty one if it is not an object, as from another version."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
