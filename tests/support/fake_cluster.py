# SPDX-License-Identifier: Apache-2.0
"""A live cluster without machines: its scheduler's state machine on a real queue, and nodes that keep to the protocol.

Nodes answer when they are told to, in the order of what they were sent; what is under way is lost with the scheduler.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drom.agent.execution import protocol as say
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster.cluster import Cluster
from drom.scheduler.live.cluster.jobs import Job, User
from drom.scheduler.live.cluster.placements import STARTED
from drom.scheduler.live.cluster.settings import Settings
from drom.scheduler.live.cluster.spec import Spec
from drom.scheduler.live.server.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from drom.scheduler.engine.compiler import Policy

CORES = 4
ANN = User(1000, 1000, "ann")
Size = tuple[int, int, dict[str, int]]
"""Cores, memory in bytes and counted resources of a node."""
SETTINGS = Settings(give_up=1e9, kill_wait=5.0)


@dataclass
class Attempt:
    """An attempt of a job as a node knows it; once it is over, with its status and when that was.

    `over_memory` is what the node says of one that needed too much memory. `signals` are those that did not end it,
    each with its receivers; `notified` says that one of them was to be sent once.
    """

    state: str
    cores: int
    memory: int = 0
    devices: dict[str, tuple[int, ...]] = field(default_factory=dict)
    ordered: deque[int] = field(default_factory=deque)
    status: int = 0
    ended: float = 0.0
    over_memory: str = ""
    saving: str = ""
    work: int = 0
    """What a filler has done, which its images keep."""
    save: int = 0
    """The number of a save that was ordered."""
    saved: int = 0
    """The number of the save that ended it."""
    signals: list[tuple[int, str]] = field(default_factory=list)
    notified: bool = False


@dataclass
class FakeNode:
    """A node: `inbox` is what it was sent, `outbox` what it says.

    `launched` is every attempt that it ever began, `begun` those of them whose program it was to begin.
    """

    name: str
    clock: Callable[[], float]
    cores: int = CORES
    inbox: deque[say.ToAgent] = field(default_factory=deque)
    outbox: deque[say.FromAgent] = field(default_factory=deque)
    known: dict[tuple[int, int], Attempt] = field(default_factory=dict)
    launched: set[tuple[int, int]] = field(default_factory=set)
    begun: set[tuple[int, int]] = field(default_factory=set)
    welcome: bool = False
    features: tuple[str, ...] = ()
    memory: int = 0
    resources: dict[str, int] = field(default_factory=dict)
    images: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The number of the save, and the work done by then, by job."""
    peers: dict[str, FakeNode] = field(default_factory=dict)
    cpu: str = "x86"
    can_release: bool = True
    """Whether ranks of adaptive jobs end here when they are ordered to."""
    can_spawn: bool = True
    """Whether ranks of adaptive jobs begin here when they are ordered to."""
    has_room: Callable[[say.Start], bool] = lambda _: True
    """Whether there is room for a filler that starts in a container."""
    wants: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """The fewest and most cores that ranks report when they begin, by attempt; others report a minimum of 1."""
    ranks: set[tuple[int, int]] = field(default_factory=set)
    """The adaptive attempts whose ranks are here."""

    def hello(self) -> say.Hello:
        """Say who it is."""
        known = tuple(say.Known(*key, one.state, one.cores) for key, one in self.known.items())
        self.welcome = False
        now, name = self.clock(), self.name
        has = self.cores, 1, self.memory, self.resources, self.features
        images = tuple(say.Kept(job, number) for job, (number, _) in self.images.items())
        ways = say.CONTAINER, say.PROGRAM
        about = name, name, "b", *has, False, now, known
        return say.Hello(say.PROTOCOL, "1", *about, saves=ways, cpu=self.cpu, images=images)

    @property
    def running(self) -> dict[tuple[int, int], Attempt]:
        """The attempts that hold cores."""
        return {key: one for key, one in self.known.items() if one.state == "running"}

    def read_all(self) -> None:
        """Deal with all messages that have come."""
        while self.inbox:
            self.read()

    def read(self) -> None:
        """Deal with the next message."""
        message = self.inbox.popleft()
        if isinstance(message, (say.Welcome, say.Who)):
            self.welcome = isinstance(message, say.Welcome)
            over = [key for key, known in self.known.items() if known.state == "ended"]
            self.outbox.extend(self._ended(key) for key in over if self.welcome)
            self.outbox.extend(self._wants(key) for key in self.ranks & self.running.keys() if self.welcome)
        elif isinstance(message, say.Start):
            self._start(message)
        elif isinstance(message, say.Offer):
            self._offer(message)
        elif isinstance(message, say.Discard):
            if self.images.get(message.job, (0, 0))[0] == message.generation:
                del self.images[message.job]
        elif isinstance(message, say.Occupy):
            self._occupy(message)
        elif isinstance(message, (say.Resize, say.Signal, say.Save, say.Forget)):
            self._obey(message)

    def refuse(self) -> bool:
        """Be too busy to start the job that the next message is about; return whether it is about one."""
        message = self.inbox[0]
        if not isinstance(message, say.Start) or (message.job, message.attempt) in self.known:
            return False
        self.inbox.popleft()
        self.outbox.append(say.Refused(message.job, message.attempt, "busy", "it is frozen."))
        return True

    def _start(self, message: say.Start) -> None:
        key = message.job, message.attempt
        work = self._restored(message)
        if key not in self.known and message.saving == say.CONTAINER and not self.has_room(message):
            self.outbox.append(say.Refused(*key, "room", "an image of 2 GiB does not fit: raise the quota."))
            return
        if key not in self.known and work is None:
            self.outbox.append(say.Refused(*key, "image", "there is no such image."))
            return
        if key not in self.known:
            assert key not in self.launched, f"{key} is started twice on {self.name}"
            self.launched.add(key)
            self.begun.update({key} if message.mode != "hold" else ())
            self.known[key] = Attempt("running", message.cores, message.memory, message.devices)
            self.known[key].saving, self.known[key].work = message.saving, work or 0
            if message.source:
                self.images[message.job] = message.image, work or 0
        runs = self.known[key].state == "running"
        self.outbox.append(say.Started(*key, 1, self.clock()) if runs else self._ended(key))
        if runs and message.rests and self.can_spawn:
            self.ranks.add(key)
            self.outbox.append(self._wants(key))

    def _restored(self, message: say.Start) -> int | None:
        """Return the work that is done when a job starts; None if its image cannot be had."""
        if not message.image or message.saving == say.PROGRAM:
            return 0
        there = self.peers[message.source.host] if message.source else self
        number, work = there.images.get(message.job, (0, 0))
        return work if number == message.image else None

    def _offer(self, message: say.Offer) -> None:
        source = say.Source(self.name, 1, "key", "secret")
        is_here = self.images.get(message.job, (0, 0))[0] == message.generation
        answer = (source, "") if is_here else (None, "it was removed.")
        self.outbox.append(say.Offered(message.job, message.generation, *answer))

    def work(self, *, ends: bool) -> None:
        """Carry out all orders for attempts; with `ends` all programs end."""
        for key in [key for key, one in self.running.items() if one.ordered]:
            self.follow(key)
        for key in [key for key, one in self.running.items() if one.save]:
            self.finish_save(key)
        for key in [key for key in self.running if ends and key in self.begun]:
            self.end(key, 0)

    def finish_save(self, key: tuple[int, int], *, succeeds: bool = True) -> None:
        """Save a filler that is to be saved, or fail to."""
        one = self.known[key]
        number, one.save = one.save, 0
        if not succeeds:
            self.outbox.append(say.NotSaved(*key, "it has an open connection."))
            return
        if one.saving == say.CONTAINER:
            self.images[key[0]] = number, one.work
        one.saved = number
        self.end(key, 0)

    def _occupy(self, message: say.Occupy) -> None:
        """Spawn the ranks of an adaptive job, or release them if it is to have none here; say which are here."""
        key = message.job, message.attempt
        if key not in self.running:
            return
        is_wanted = bool(dict(zip(message.nodes, message.ranks, strict=True)).get(self.name))
        if is_wanted and self.can_spawn:
            self.ranks.add(key)
        elif not is_wanted and self.can_release:
            self.ranks.discard(key)
        is_empty = not is_wanted and self.can_release and key not in self.begun
        self.outbox.append(self._wants(key) if key in self.ranks else say.Vacated(*key, is_empty))

    def _wants(self, key: tuple[int, int]) -> say.Wants:
        """Say how many cores the ranks of an attempt need and can use."""
        return say.Wants(*key, *self.wants.get(key, (1, 0)))

    def _ended(self, key: tuple[int, int]) -> say.Ended:
        """Say how an attempt has ended."""
        one = self.known[key]
        over = bool(one.over_memory)
        return say.Ended(*key, one.status, one.ended, 1.0, 0, one.over_memory, over_memory=over, saved=one.saved)

    def _obey(self, message: say.Resize | say.Signal | say.Save | say.Forget) -> None:
        key = message.job, message.attempt
        one = self.known.get(key)
        if one is None:
            return
        if isinstance(message, say.Resize):
            one.ordered.append(message.cores)
            one.cores = max(one.cores, message.cores)
        elif isinstance(message, say.Save):
            if one.state == "running":
                one.save = message.generation
        elif isinstance(message, say.Signal) and message.to == "all":
            self.end(key, -message.signal)
        elif isinstance(message, say.Signal):
            if not (message.once and one.notified):
                one.signals.append((message.signal, message.to))
            one.notified |= message.once
        else:
            del self.known[key]
            self.launched -= {key} - self.begun  # a job may come back to a node that it has left

    def end(self, key: tuple[int, int], status: int) -> None:
        """Let an attempt end."""
        one = self.known[key]
        if one.state == "running":
            one.state, one.status, one.ended = "ended", status, self.clock()
            self.ranks.discard(key)
            self.outbox.append(self._ended(key))

    def follow(self, key: tuple[int, int], *, obeys: bool = True) -> None:
        """Let an attempt have the size that it was last told to, or refuse to."""
        one = self.known[key]
        wanted = one.ordered[-1]
        one.ordered.clear()
        if obeys:
            one.cores = wanted
            self.outbox.append(say.Resized(*key, wanted))
        else:
            self.outbox.append(say.NotResized(*key, one.cores, "it would not"))


class FakeCluster:
    """A scheduler's state machine with its queue in `folder`, and its nodes."""

    def __init__(
        self, folder: Path, policy: Policy, nodes: int, settings: Settings = SETTINGS, sizes: Sequence[Size] = ()
    ) -> None:
        self.folder, self.policy, self.settings, self.now = folder, policy, settings, 1000.0
        self.nodes = {name: FakeNode(name, lambda: self.now) for name in (f"n{i}" for i in range(nodes))}
        for node in self.nodes.values():
            node.peers = self.nodes
        for node, size in zip(self.nodes.values(), sizes, strict=False):
            node.cores, node.memory, node.resources = size
        self.store = Store(folder)
        self.open()

    def open(self) -> None:
        """Begin, with what an earlier scheduler wrote down."""
        self.warnings: list[tuple[str, dict[str, object]]] = []
        self.cluster = Cluster(self.policy, self.settings, self.store.state, former=self.store.job)
        self.cluster.restore(self.store.nodes(), self.store.living(), self.store.next_number, self.now)

    def crash(self) -> None:
        """Kill the scheduler: what was on the way is lost, and another one begins."""
        self.store.close()
        for node in self.nodes.values():
            node.inbox.clear()
            node.outbox.clear()
            node.welcome = False
        self.store = Store(self.folder)
        self.open()

    def join(self, node: FakeNode) -> None:
        """Let a node say hello."""
        node.outbox.clear()
        node.inbox.clear()
        self.cluster.agents.hello(node.hello(), self.now)
        self.send()

    def submit(self, spec: Spec) -> Job | None:
        """Submit a job; None if it was refused."""
        try:
            job = self.cluster.submit(spec, ANN, self.now)
        except SchedulerError:
            return None
        self.send()
        return job

    def submit_and_settle(self, spec: Spec) -> Job:
        """Submit a job, and let everything happen that follows from it. Raises SchedulerError if it is refused."""
        job = self.cluster.submit(spec, ANN, self.now)
        self.send()
        self.settle()
        return job

    def turn(self, seconds: float = 0.0) -> None:
        """Let time pass, and do what is due."""
        self.now += seconds
        for node in self.nodes.values():
            if node.welcome and not self.cluster.members.alive(node.name, self.now):
                node.inbox.append(say.Who())
        self.cluster.turn(self.now)
        while self.cluster.queue.is_behind:
            self.cluster.turn(self.now)
        self.send()

    def send(self, *, survives: bool = True) -> None:
        """Write down what has happened, then send."""
        outbox = self.cluster.outbox
        self.store.save(outbox)
        if survives:
            for name, message in outbox.messages:
                self.nodes[name].inbox.append(say.to_agent(say.encode(message)))
        self.warnings += outbox.warnings
        outbox.clear()

    def hear(self, node: FakeNode) -> None:
        """Let the scheduler hear the next message of a node."""
        self.cluster.agents.on_message(node.name, say.from_agent(say.encode(node.outbox.popleft())), self.now)
        self.send()

    def release_lost(self) -> None:
        """Let those jobs go on that are held as they were lost too often."""
        for job in [job for job in self.cluster.jobs.values() if job.held and job.losses]:
            self.cluster.hold(job.number, self.now, "ann", held=False)

    def settle(self, *, ends: bool = False) -> None:
        """Let everybody do what they can until nothing happens any more; with `ends` all jobs end."""
        for _ in range(2000):
            busy = False
            if ends:
                self.release_lost()
            for node in self.nodes.values():
                busy = busy or bool(node.inbox) or not node.welcome
                node.read_all()
                if not node.welcome:
                    self.join(node)
                node.work(ends=ends)
                while node.outbox:
                    self.hear(node)
                    busy = True
            self.turn(0.0 if busy else 1.0)
            over = not self.store.living() if ends else not busy
            if over and not any(node.inbox or node.outbox for node in self.nodes.values()):
                return
        raise AssertionError("the cluster does not come to rest")

    def check_cores(self) -> None:
        """Assert that no core was given twice, no memory, and nothing that is counted."""
        for node in self.nodes.values():
            there = node.running.values()
            assert sum(one.cores for one in there) <= node.cores, node
            assert not node.memory or sum(one.memory for one in there) <= node.memory, node
            for name in {name for one in there for name in one.devices}:
                given = [device for one in there for device in one.devices.get(name, ())]
                assert len(given) == len(set(given)), node
                assert set(given) <= set(range(node.resources.get(name, 0))), node

    def check(self) -> None:
        """Assert what always holds while no node is given up."""
        self.check_cores()
        attempts: dict[int, set[int]] = {}
        for node in self.nodes.values():
            for number, attempt in node.running:
                attempts.setdefault(number, set()).add(attempt)
        assert all(len(found) == 1 for found in attempts.values()), attempts
        jobs = self.cluster.jobs.values()
        for name, node in self.nodes.items():
            told = [job.sizes[name] for job in jobs if name in job.left and name in job.acknowledged]
            assert sum(told) <= node.cores, f"the history has {told} cores of {name}"
        nodes = self.cluster.nodes.values()
        parts = [part for node in nodes for part in self.cluster.placements.on(node.index)]
        there = {(part.job.number, part.node.name): part.state == STARTED for part in parts}
        assert there == {(job.number, name): name in job.acknowledged for job in jobs for name in job.left}


def submitted(here: FakeCluster, **asked: object) -> Job:
    """Submit a job of a minute, and let it start if it can. Raises SchedulerError if it is refused."""
    return here.submit_and_settle(Spec(**{"command": ("true",), "folder": "/", "time": 60, **asked}))  # type: ignore[arg-type]
