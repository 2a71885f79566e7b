# SPDX-License-Identifier: Apache-2.0
"""What mpirun needs: the names under which it knows the nodes of a job, and leave to run as root. Pure.

mpirun cuts off the domain of a host, refuses an underscore in its name, reads some words in a file of hosts as keywords
and starts the ranks of `localhost` where it runs itself. A job with such a node has aliases of its nodes for mpirun;
`drom-step remote`, which mpirun calls in place of ssh, translates them back (remote.c).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""Variables without which mpirun of Open MPI refuses to run as root, who has confirmed that by submitting a job."""
ALIAS = "drom-node-"
"""Followed by the position of a node in the list of the job's nodes, from 0 on; remote.c has the same word."""
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,62}")
_KEYWORD = re.compile(r"boards?|cores?|count|cpus?|max|port|rank|relative|slots?|sockets?|username")


def mpi_hosts(nodes: Sequence[str]) -> list[str]:
    """Return the hosts to name to mpirun for the nodes of a job, in their order.

    These are the names of the nodes or, if mpirun would misread one of these, an alias for each node.
    """
    return list(nodes) if all(map(_is_plain, nodes)) else [f"{ALIAS}{index}" for index in range(len(nodes))]


def host_file(nodes: Sequence[str], ranks: Sequence[int]) -> str:
    """Return the host file of an adaptive program, with the nodes of a job on which it is to have ranks."""
    return "".join(
        f"{node} slots={count}{'' if _is_plain(node) else f' host={ALIAS}{index}'}\n"
        for index, (node, count) in enumerate(zip(nodes, ranks, strict=True))
        if count
    )


def node_of(host: str, nodes: Sequence[str]) -> str:
    """Return the node of a job that mpirun knows as `host`; the host itself if it is no alias of these nodes."""
    position = host.removeprefix(ALIAS)
    is_alias = host.startswith(ALIAS) and position.isdecimal() and len(position) < 10 and int(position) < len(nodes)
    return nodes[int(position)] if is_alias else host


def _is_plain(node: str) -> bool:
    """Return whether mpirun takes the name of a node for the whole name of a host."""
    name = node.lower()
    misread = name == "localhost" or name.startswith(ALIAS) or _KEYWORD.fullmatch(name)
    return bool(_PLAIN.fullmatch(node)) and not misread
