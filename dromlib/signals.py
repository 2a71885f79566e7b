# SPDX-License-Identifier: Apache-2.0
"""The agent's ZeroMQ signals for subscribers: their endpoint, their topics, and how to subscribe.

The registry is authoritative; a signal only means that it is time to read it. Each signal is one frame: `topic`, a
space and one JSON object.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False  # as typing's, whose import takes longer than all else here
if TYPE_CHECKING:
    from typing import Any

    import zmq

MAX_IPC_PATH = 107
"""Maximum number of bytes of a ZeroMQ socket's path."""


def topic(slot: int) -> bytes:
    """Return the topic of a slot's signals: fixed width, because ZeroMQ matches prefixes."""
    return b"slot.%010d" % slot


def slot_of(text: bytes) -> int:
    """Return the slot of a topic. Raises ValueError if the text is no topic of a slot."""
    if len(text) != len(topic(0)) or not text[-10:].isdigit() or text != topic(int(text[-10:])):
        raise ValueError("the topic of a slot is `slot.` and ten digits")
    return int(text[-10:])


def message(slot: int, event: dict[str, object]) -> bytes:
    """Return the signal of an event of a slot. Raises TypeError if JSON cannot represent a value in it."""
    return topic(slot) + b" " + json.dumps(event).encode()


def event(message: bytes) -> dict[str, Any]:
    """Return the event in a signal. Raises ValueError if it is not a signal."""
    found: dict[str, Any] = json.loads(message.partition(b" ")[2])
    return found


def endpoint(runtime_dir: str | os.PathLike[str], name: str = "signals") -> str:
    """Return the ipc endpoint `name` of a runtime directory. Raises ValueError if its path is too long."""
    path = os.path.join(os.path.abspath(runtime_dir), name)  # noqa: PTH100, PTH118 - pathlib is slow to import
    if len(os.fsencode(path)) > MAX_IPC_PATH:
        msg = (
            f"{path} is longer than the {MAX_IPC_PATH} bytes a socket's path may have: choose a shorter --runtime-dir."
        )
        raise ValueError(msg)
    return f"ipc://{path}"


def subscribe(
    context: zmq.Context[zmq.Socket[bytes]], runtime_dir: str | os.PathLike[str], slot: int | None = None
) -> zmq.Socket[bytes]:
    """Return a socket that receives the signals of one slot, or of all. Raises ValueError as `endpoint` does.

    Signals published before the agent has received the subscription are lost: read the slot after a while.
    """
    import zmq

    sock: zmq.Socket[bytes] = context.socket(zmq.SUB)
    sock.setsockopt(zmq.LINGER, 0)
    sock.setsockopt(zmq.SUBSCRIBE, b"" if slot is None else topic(slot))
    sock.connect(endpoint(runtime_dir))
    return sock
