# SPDX-License-Identifier: Apache-2.0
"""Who asks the agent for something. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent an order: process and user in the kernel's words, or on another node the name of its `key`."""

    pid: int
    uid: int
    key: str = ""
