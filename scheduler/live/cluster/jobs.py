# SPDX-License-Identifier: Apache-2.0
"""Jobs and nodes of a live cluster as values: their stored fields, and the names of their states."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.scheduler.interface import MALLEABLE, MOLDABLE, RIGID

if TYPE_CHECKING:
    from drom.scheduler.live.cluster.spec import Spec

PENDING, STARTING, RUNNING, ENDING = "pending", "starting", "running", "ending"
COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL = "completed", "failed", "cancelled", "timeout", "node_fail"
STATES = (PENDING, STARTING, RUNNING, ENDING, COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL)
CLASSES = {"rigid": RIGID, "moldable": MOLDABLE, "malleable": MALLEABLE}
"""The policy's numbers for the classes of jobs."""
FINAL = frozenset({COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL})
ON_NODES = frozenset({STARTING, RUNNING, ENDING})
REQUEUE = "requeue"
"""The verdict on a job that returns to the queue once it has ended; any other verdict is a final state."""


def how_it_ended(status: int) -> str:
    """Return how a program ended, in words: ``returned 3``, ``was ended by SIGKILL``."""
    if status >= 0:
        return f"returned {status}"
    known = -status in set(signal.Signals)
    return f"was ended by {signal.Signals(-status).name if known else f'signal {-status}'}"


class User(NamedTuple):
    """The user of a job: uid, gid and name on the scheduler's node."""

    uid: int
    gid: int
    name: str


@dataclass(slots=True)
class Job:
    """A job and its state. Times are unix seconds, None before they are known; `limit` is in seconds.

    `shares` are the cores planned for it, by name of node, in the order in which it got the nodes: the first one starts
    it. `devices` are the identities, from 0, of the counted resources that it has, by node and resource. `left` are the
    nodes that it has not left yet, `acknowledged` those that have reported that they started it. `sizes` are its cores
    by node according to its history. `verdict` is its state once it has left all nodes, if that is decided before. The
    last of its parts that have ended did so at the time `over`. `losses` counts its losses soon after its start since
    it was last released. `holder` is the name of the last user who held it. In an array of jobs it has
    an `index`, and `array` is the number of the array's first job. `notified` says whether this attempt was sent the
    signal that it asked for before its limit. `ranks` are the tasks that it is to have by node, if they may be more
    than its cores (0: they leave the node or have left it), and `wants` the fewest and most cores that its programs
    report that they can use; empty: as it was submitted. `awaited` are the nodes to which ranks are to come after its
    start, and from which these have not reported yet, with the time by which they must (0: they did not, so it joins no
    more nodes). `leaving` are the nodes on which what kept it there was ended, after its ranks had left. One of whole
    nodes that may leave some keeps those `needed` for the ranks that its programs report, and all once it `stays`, as
    its ranks did not leave one in time. While it shares all its nodes it keeps `needed_cores` of each for these ranks.

    A filler was saved `saves` times, and had run for `ran` seconds by then; the last saves took `save_times` ms. Its
    image is on node `image_on`, empty if its program keeps its own, and can be restored on nodes with CPUs of type
    `cpu`.
    """

    number: int
    spec: Spec
    user: User
    submitted: float
    state: str = PENDING
    reason: str = ""
    attempt: int = 0
    priority: int = 0
    held: bool = False
    started: float | None = None
    ended: float | None = None
    status: int | None = None
    limit: int = 0
    verdict: str = ""
    shares: dict[str, int] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    over: float | None = None
    cpu_seconds: float = 0.0
    max_rss: int = 0
    losses: int = 0
    holder: str = ""
    devices: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    array: int = 0
    index: int = 0
    saves: int = 0
    ran: float = 0.0
    save_times: list[int] = field(default_factory=list)
    image_on: str = ""
    cpu: str = ""
    notified: bool = False
    ranks: dict[str, int] = field(default_factory=dict)
    wants: list[int] = field(default_factory=list)
    awaited: dict[str, float] = field(default_factory=dict)
    leaving: list[str] = field(default_factory=list)
    needed: int = 0
    needed_cores: int = 1
    stays: bool = False

    @property
    def least(self) -> int:
        """The fewest cores that it can use now, if it has a range."""
        return self.wants[0] if self.wants else self.spec.least

    @property
    def most(self) -> int:
        """The most cores that it can use now, if it has a range."""
        return self.wants[1] if self.wants else self.spec.most

    @property
    def fewest_nodes(self) -> int:
        """The fewest nodes on which it can run now; 0 if it leaves none."""
        if not self.spec.leaves_nodes:
            return 0
        return self.spec.nodes if self.stays else max(self.spec.min_nodes, self.needed)

    @property
    def label(self) -> str:
        """Its number as users see it: ``12``, or ``12_3`` in an array."""
        return f"{self.array}_{self.index}" if self.array else str(self.number)

    @property
    def width(self) -> int:
        """The number of nodes of which it has cores; of its tasks, while these may be on any nodes and it has none."""
        return self.spec.nodes or sum(map(bool, self.shares.values())) or self.spec.ranks

    @property
    def tasks(self) -> int:
        """The number of its tasks on all nodes together."""
        return sum(self.ranks.values()) or self.spec.ranks

    def tasks_on(self, node: str) -> int:
        """Return the number of its tasks on one of its nodes."""
        if self.ranks:
            return self.ranks[node]
        return self.spec.tasks if self.spec.nodes else self.shares[node] // max(1, self.spec.threads)

    @property
    def is_final(self) -> bool:
        """Whether its state is final."""
        return self.state in FINAL

    @property
    def launcher(self) -> str:
        """The node that starts it; empty before it has nodes."""
        return next(iter(self.shares), "")


def saving(way: str) -> str:
    """Return the feature of nodes that can save fillers in a way. No feature that a user may name has such a form."""
    return f"save fillers by {way}"


ROOM = "have room for containers"
"""The feature of nodes where a filler can start in a container now."""


def restoring(cpu: str) -> str:
    """Return the feature of nodes that can restore images that were saved on a type of CPU."""
    return f"restore images of {cpu}"


@dataclass(slots=True)
class Node:
    """A node as its agent describes it. `index` is its place in the policy's arrays; memory is in bytes (0: unknown).

    With `limits_memory` jobs get no more memory there than they ask for.

    `heard` is the time of its agent's last message (None: none since this scheduler started), `skew` the seconds by
    which its clock is ahead. `drained` is the reason why no job may start there; empty if jobs may. `busy` is the
    reason why it recently could not start one: it gets none until `again`, after a `pause` in seconds that grows until
    it starts one. `partitions` are the names of those to which it belongs. It `saves` fillers in these ways, and
    restores those that were saved on a `cpu` of its type. `full` is the reason why no filler starts there in a
    container for a while.

    A node that was borrowed belongs to the home partition `home`. One of this home partition that is `lent` (None: it
    is not) is with the home partition of that name; if that is empty, it is offered to all others.
    """

    name: str
    index: int
    cores: int
    cpus_per_core: int = 1
    memory: int = 0
    resources: dict[str, int] = field(default_factory=dict)
    features: list[str] = field(default_factory=list)
    host: str = ""
    boot: str = ""
    emulated: bool = False
    drained: str = ""
    heard: float | None = None
    gone_since: float | None = None
    down: bool = False
    skew: float = 0.0
    busy: str = ""
    pause: float = 0.0
    again: float | None = None
    partitions: list[str] = field(default_factory=list)
    limits_memory: bool = False
    saves: list[str] = field(default_factory=list)
    cpu: str = ""
    full: str = ""
    home: str = ""
    lent: str | None = None

    @property
    def can(self) -> set[str]:
        """Its features, and in the same form what it can do for fillers."""
        room = () if self.full else (ROOM,)
        return {*self.features, *map(saving, self.saves), restoring(self.cpu), *room}

    @property
    def speaks(self) -> bool:
        """Whether its agent has sent a message recently."""
        return not (self.down or self.lent) and self.heard is not None and self.gone_since is None

    @property
    def state(self) -> str:
        """One of up, drained, busy, lent, gone (its agent is silent), down (so long that its jobs were given up)."""
        if self.lent:
            return "lent"
        if self.down:
            return "down"
        if not self.speaks:
            return "gone"
        return "drained" if self.drained else "busy" if self.busy else "up"

    def to_json(self) -> dict[str, Any]:
        """Return all fields, and the state, as JSON values."""
        return {name: getattr(self, name) for name in _OF_NODE} | {"state": self.state}


_OF_NODE = tuple(item.name for item in fields(Node) if item.name != "lent")


class Entry(NamedTuple):
    """An entry of a job's history: the time `at` which an event `what` happened, with its `detail` as a JSON object."""

    job: int
    at: float
    what: str
    detail: dict[str, Any]
