# SPDX-License-Identifier: Apache-2.0
"""Builders for tests of the node's state machine."""

from __future__ import annotations

from typing import Any

from drom.agent.model.cores import Cores
from drom.agent.node.node import Node

MACHINES = [
    [1, 2],
    [1, 2, 4, 8],
    [1, 2, 4, 8, 16, 32, 64, 128],
    [0b11, 0b1100, 0b110000, 0b11000000],
]
"""Core masks: two cores, four, eight (two sockets of four), four cores of two threads."""


def make_node(cores: list[int], **options: Any) -> Node:
    """Return a node over these cores; the first half is one socket, the rest another."""
    return Node(sockets(cores), lambda _: None, **options)


def sockets(cores: list[int]) -> Cores:
    """Return these cores, the first half in one socket, the rest in another."""
    return Cores.of([(2 * n // len(cores), 2 * n // len(cores), mask) for n, mask in enumerate(cores)])
