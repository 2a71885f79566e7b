# SPDX-License-Identifier: Apache-2.0
"""Addresses that options name, as what listens there takes them."""

from __future__ import annotations

from drom.agent.config.options import is_address


def metrics_address(text: str) -> tuple[str, int]:
    """Return host and port of ADDRESS:PORT; without an address it is this machine alone. Raises ValueError."""
    if not is_address(text):
        msg = f"{text} is no ADDRESS:PORT"
        raise ValueError(msg)
    host, _, port = text.rpartition(":")
    return host.strip("[]") or "127.0.0.1", int(port)


def zmq_address(text: str) -> str:
    """Return ADDRESS:PORT as ZeroMQ wants it."""
    host, port = metrics_address(text)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
