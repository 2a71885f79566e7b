# SPDX-License-Identifier: Apache-2.0
"""Convert addresses in options to the form that the listeners require."""

from __future__ import annotations

from drom.agent.config.options import is_address


def metrics_address(text: str) -> tuple[str, int]:
    """Return host and port of ADDRESS:PORT; without an address the host is this machine only. Raises ValueError."""
    if not is_address(text):
        msg = f"{text} is not ADDRESS:PORT"
        raise ValueError(msg)
    host, _, port = text.rpartition(":")
    return host.strip("[]") or "127.0.0.1", int(port)


def zmq_address(text: str) -> str:
    """Return ADDRESS:PORT in the form that ZeroMQ requires."""
    host, port = metrics_address(text)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
