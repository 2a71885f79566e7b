# SPDX-License-Identifier: Apache-2.0
"""What a job of a batch system uses of the cores of a node, and how that is written into a comment. Pure.

The comment of a job has a word for each node, ``drom:use:n1=held:3600+4,lent:120+2,borrowed:0+0,at:1732650000``: the
core-seconds until a time in seconds since 1970, and the cores since then. So a word stays true until the cores change.
Other words of the comment are kept.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

_NODE = r"[A-Za-z0-9_.-]{1,64}"
_WORD = re.compile(
    rf"(?:^|(?<=\s))drom:use:({_NODE})=held:(\d{{1,15}})\+(\d{{1,6}}),lent:(\d{{1,15}})\+(\d{{1,6}}),"
    r"borrowed:(\d{1,15})\+(\d{1,6}),at:(\d{1,12})(?=\s|$)",
    re.ASCII,
)


class CoreUse(NamedTuple):
    """Core-seconds, or cores: `held` by the job, `lent` by it to other jobs, and `borrowed`, held but not its own."""

    held: float = 0.0
    lent: float = 0.0
    borrowed: float = 0.0

    def plus(self, rate: CoreUse, seconds: float) -> CoreUse:
        """Return the core-seconds after some more seconds with as many cores as `rate` has."""
        return CoreUse(*(total + cores * seconds for total, cores in zip(self, rate, strict=True)))


class NodeUse(NamedTuple):
    """The core-seconds of a job on one node until `at`, in seconds since 1970, and its cores since then."""

    at: float
    total: CoreUse
    cores: CoreUse

    def until(self, time: float) -> CoreUse:
        """Return the core-seconds until a time, if the cores have not changed."""
        return self.total.plus(self.cores, max(0.0, time - self.at))


def read_uses(comment: str) -> dict[str, NodeUse]:
    """Return what a comment says of each node, by its name."""
    found = {}
    for name, *numbers in _WORD.findall(comment):
        held, holds, lent, lends, borrowed, borrows, at = map(float, numbers)
        found[name] = NodeUse(at, CoreUse(held, lent, borrowed), CoreUse(holds, lends, borrows))
    return found


def write_use(comment: str, node: str, use: NodeUse) -> str:
    """Return a comment with the word of a node replaced, or added at the end."""
    pairs = zip(CoreUse._fields, use.total, use.cores, strict=True)
    amounts = ",".join(f"{name}:{total:.0f}+{cores:.0f}" for name, total, cores in pairs)
    others = [word for word in comment.split() if not word.startswith(f"drom:use:{node}=")]
    return " ".join([*others, f"drom:use:{node}={amounts},at:{use.at:.0f}"])


def total_use(comment: str, nodes: Collection[str], time: float) -> CoreUse | None:
    """Return the core-seconds of a job on all nodes of its comment until a time; None if it names none.

    On nodes that it does not have any more, as after a requeue, it has used nothing since its last word there.
    """
    uses = read_uses(comment)
    ends = [use.until(time if node in nodes else use.at) for node, use in uses.items()]
    return CoreUse(*map(sum, zip(*ends, strict=True))) if ends else None
