# SPDX-License-Identifier: Apache-2.0
"""What agents and their clients send to each other over ZeroMQ: the requests, and which services there are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.agent.errors import ControlError

from dromlib import signals as events

if TYPE_CHECKING:
    from pathlib import Path

PROTOCOL = 1


MAX_MESSAGE = 1 << 16
"""Bytes of a request to an agent; who sends a longer one is hung up on."""


MOST_BRACKETS = 1 << 15
"""Lists and objects of an order, and brackets in its texts: each list takes 60 bytes of memory and some time."""


class Service(NamedTuple):
    """Who answers orders: its name, how it is started in a directory, and the bytes that it takes in a request.

    `option` says where it listens for those of other nodes.
    """

    name: str
    command: str
    option: str
    longest: int = MAX_MESSAGE


AGENT = Service("agent", "drom agent --runtime-dir", "remote.listen")


def endpoint(runtime_dir: Path, name: str) -> str:
    """Return the ipc endpoint `name` of a runtime directory. Raises `ControlError` when its path is too long."""
    try:
        return events.endpoint(runtime_dir, name)
    except ValueError as error:
        raise ControlError(str(error)) from error


def request(name: str, longest: int = MAX_MESSAGE, **fields: Any) -> bytes:  # noqa: ANN401 - JSON values
    """Return an order as it is sent. Raises ControlError for one that is longer than anybody reads."""
    message = json.dumps({"protocol": PROTOCOL, "order": name, **fields}).encode()
    if len(message) > longest:
        raise ControlError(f"an order is at most {longest >> 10} KiB long: give shorter words.")
    return message


def is_order(message: bytes) -> bool:
    """Return whether a message is an order, of whatever version."""
    return isinstance(_object(message).get("order"), str)


def is_answer(message: bytes) -> bool:
    """Return whether a message is what is answered to an order."""
    return isinstance(_object(message).get("ok"), bool)


def _object(data: bytes) -> dict[str, Any]:
    """Return a JSON object, an empty one where somebody of another version says what nobody understands."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
