# SPDX-License-Identifier: Apache-2.0
"""The sender of a request to the agent. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of an order: process and user as the kernel reports them, or the name of its `key` on another node."""

    pid: int
    uid: int
    key: str = ""
