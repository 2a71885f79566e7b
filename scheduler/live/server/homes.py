# SPDX-License-Identifier: Apache-2.0
"""The home partitions that one process leads: its own, and those that have no scheduler of their own at present.

Messages of agents and orders of users reach the home partition that they concern, if it is led here.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from drom.agent.errors import ControlError, ElsewhereError, NotYetError
from drom.agent.execution import protocol as say
from drom.agent.text import NODE
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster import home_rules
from drom.scheduler.live.cluster.homes import adopters, first_job, home_of
from drom.scheduler.live.cluster.lending import EMPTY
from drom.scheduler.live.cluster.paging import SCHEMA_VERSION
from drom.scheduler.live.server.etcd import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from drom.agent.model.caller import Caller
    from drom.agent.observe.log import Log
    from drom.scheduler.live.cluster.home_rules import HomeRule
    from drom.scheduler.live.cluster.homes import Present
    from drom.scheduler.live.server.agent_server import AgentMessage, AgentServer, Peer
    from drom.scheduler.live.server.directory import Directory
    from drom.scheduler.live.server.free_lists import FreeLists
    from drom.scheduler.live.server.node_homes import NodeHomes
    from drom.scheduler.live.server.shared_rows import SharedRows
    from typing_extensions import Self

RETRY = 1.0
"""Seconds until the directory is asked again after a failure."""
MOST_PUT_OFF = 10_000
"""Most connections of agents that are remembered while other schedulers lead their home partitions."""


class Scheduler(Protocol):
    """The scheduler of one home partition."""

    @property
    def leads(self) -> bool:
        """Whether it leads."""

    @property
    def messages(self) -> int:
        """The number of messages to etcd for its queue."""

    def beside(self, home: str, rows: SharedRows, first_job: int) -> Self:
        """Return a scheduler of another home partition in this process. Raises SchedulerError."""

    def advance(self) -> bool:
        """Begin to lead, or follow the scheduler that does; return whether this one has begun to lead."""

    def receive(self, said: AgentMessage) -> None:
        """Handle a message of an agent."""

    def answer(self, order: dict[str, Any], caller: Caller) -> Any:  # noqa: ANN401 - a JSON value
        """Answer an order of a user. Raises ControlError."""

    def admit(self, order: dict[str, Any], caller: Caller) -> None:
        """Raise NotYetError if another scheduler is to answer the order, as far as is known."""

    def close(self) -> None:
        """Give up the lease, so that another scheduler can lead."""


S = TypeVar("S", bound=Scheduler)


class Homes(Generic[S]):
    """The schedulers of home partitions in this process, of which `own` serves its sockets.

    `rules` returns those by which new nodes get home partitions.
    """

    def __init__(
        self,
        own: S,
        desk: AgentServer,
        directory: Directory,
        log: Log,
        rules: Callable[[], Sequence[HomeRule]] = tuple,
    ) -> None:
        self._own, self._desk, self._directory, self._log, self._rules = own, desk, directory, log, rules
        self._servers = {directory.home: own}
        self._homes_of: dict[str, str] = {}
        """The home partitions of nodes that were welcomed."""
        self._put_off: dict[Peer, tuple[str, str]] = {}
        """Connections of agents that others lead, with their nodes and home partitions: asked for a Hello later."""
        self._again = 0.0
        """When the directory may be asked again (CLOCK_MONOTONIC)."""
        self._told = ""
        self._past_messages = 0
        """Messages to etcd for home partitions that were given back."""

    # --- which home partitions are led here -----------------------------------------------------------------------

    @property
    def fd(self) -> int:
        """A descriptor that is readable when `advance` has something to do."""
        return self._directory.fd

    @property
    def messages(self) -> int:
        """The number of messages to etcd, except those for the home partition of this process."""
        present = sum(one.messages for one in self.adopted.values())
        return self._directory.etcd.messages + self._past_messages + present

    @property
    def adopted(self) -> dict[str, S]:
        """The schedulers of the home partitions that were adopted, or are to be."""
        return {home: one for home, one in self._servers.items() if one is not self._own}

    @property
    def _leads(self) -> list[str]:
        """The home partitions that are led here, first that of this process."""
        return [home for home, one in self._servers.items() if one.leads]

    def advance(self) -> None:
        """Follow the directory: adopt home partitions that have no scheduler of their own, and give others back."""
        if time.monotonic() < self._again:
            return
        why = ""
        try:
            self._directory.advance()
            self._directory.announce(self._leads)
            self._settle()
        except (StoreError, SchedulerError) as error:
            why = f"no home partition can be taken over: {str(error).rstrip('.')}."
            self._again = time.monotonic() + RETRY
        if why and not self._told:
            self._log("queue_stuck", reason=why)
        elif self._told and not why:
            self._log("queue_unstuck")
        self._told = why

    def _settle(self) -> None:
        """Lead what falls to this scheduler."""
        directory = self._directory
        if directory.me is None:
            return
        mine = {home for home, key in adopters(directory.homes, directory.present).items() if key == directory.me}
        for home, server in self.adopted.items():
            if home not in mine:
                led = server.leads
                server.close()
                self._past_messages += server.messages
                del self._servers[home]
                if led:
                    self._log("home_returned", home=home)
        for home in mine - self._servers.keys():
            self._servers[home] = self._own.beside(home, directory.rows(home), first_job(directory.homes[home]))
        for home, server in self.adopted.items():
            if server.advance():
                self._log("home_adopted", home=home)
                self.call([node for node, of in self._put_off.values() if self._place_of(node, of) == home])

    def close(self) -> None:
        """Leave the directory, and what was adopted."""
        for server in self.adopted.values():
            server.close()
        self._directory.close()

    # --- nodes that are lent --------------------------------------------------------------------------------------

    @property
    def free(self) -> FreeLists:
        """The free lists of all home partitions."""
        return self._directory.free

    @property
    def nodes(self) -> NodeHomes:
        """The home partitions of all nodes."""
        return self._directory.nodes

    def forget(self, node: str) -> None:
        """Remove the home partition of a node. Raises ControlError."""
        try:
            self.nodes.remove(node)
        except StoreError as error:
            raise ControlError(f"the node was not removed: {error}.") from error

    def call(self, nodes: Collection[str]) -> None:
        """Ask the agents of nodes to introduce themselves."""
        if not nodes:
            return
        wanted = {*nodes}
        put_off = {peer for peer, (node, _) in self._put_off.items() if node in wanted}
        for peer in put_off | {*filter(None, map(self._desk.peer_of, wanted))}:
            self._put_off.pop(peer, None)
            self._desk.answer(peer, say.Who())

    def _place_of(self, node: str, home: str) -> str:
        """Return the home partition that has a node of `home` now: that one, or the one that has borrowed it."""
        return self.free.seen.get(home, EMPTY).nodes.get(node) or home

    # --- agents and users -----------------------------------------------------------------------------------------

    def receive(self, said: AgentMessage) -> None:
        """Pass a message of an agent to the home partition of its node."""
        message = said.message
        if not isinstance(message, say.Hello):
            home = self._homes_of.get(self._desk.name_of(said.peer) or "", "")
            self._servers.get(home, self._own).receive(said)
            return
        try:
            message = replace(message, home=self._home_of(message, said.why_not(message.node)))
        except SchedulerError as error:
            self._desk.reject(said.peer, message.node, str(error))
            return
        if (home := self._place_of(message.node, message.home)) in self._servers:
            self._servers[home].receive(said._replace(message=message))
            if self._desk.name_of(said.peer) == message.node:
                self._homes_of[message.node] = home
        else:
            self._turn_away(said.peer, message, home)

    def _home_of(self, hello: say.Hello, why_not: str) -> str:
        """Return the home partition of a node, which a new one gets for good. Raises SchedulerError."""
        node, nodes = hello.node, self.nodes
        if why_not:
            raise SchedulerError(why_not)
        if not re.fullmatch(NODE, node):
            return self._directory.home  # which refuses it
        if node not in nodes.seen:
            self._settle_home(node, home_rules.choose(node, hello.home, self._rules(), self._directory.homes))
        home = nodes.seen[node]
        if hello.home not in ("", home):
            raise SchedulerError(home_rules.other_home(node, home, hello.home))
        if not hello.home and home in self._servers and (reason := home_rules.why_not_moved(node, home, self._rules())):
            self._log("home_kept", node=node, home=home, reason=reason)
        return home

    def _settle_home(self, node: str, homes: Sequence[str]) -> None:
        """Give a new node one of these home partitions, unless another scheduler was faster. Raises SchedulerError."""
        if time.monotonic() < self._again:
            raise SchedulerError("the store does not answer at present: try again in a moment.")
        try:
            if self.nodes.settle(node, homes):
                self._log("home_chosen", node=node, home=self.nodes.seen[node])
        except StoreError as error:
            self._again = time.monotonic() + RETRY
            raise SchedulerError(f"no home partition can be given to node {node}: {error}.") from error

    def _turn_away(self, peer: Peer, hello: say.Hello, home: str) -> None:
        """Refer an agent to the scheduler that leads the home partition that has its node."""
        try:
            reason = str(self._where(home))
        except ControlError as error:
            reason = str(error)
        else:
            if len(self._put_off) < MOST_PUT_OFF:
                self._put_off[peer] = hello.node, hello.home
        self._desk.answer(peer, say.No(reason))

    def _where(self, home: str) -> NotYetError:
        """Return the error that says where a home partition is led. Raises ControlError for one that does not exist."""
        if home not in self._directory.homes:
            raise ControlError(home_rules.no_home(home, self._directory.homes))
        leader = self._leader(home)
        if not leader:
            return NotYetError(f"no scheduler leads home partition {home} at present: try again in a moment.")
        return ElsewhereError(f"home partition {home} is led by the scheduler on {leader.name}: ask that one.")

    def _leader(self, home: str) -> Present | None:
        return next((one for one in self._directory.present.values() if home in one.leads), None)

    def answer(self, order: dict[str, Any], caller: Caller) -> Any:  # noqa: ANN401 - a JSON value
        """Answer an order of a user. Raises ControlError with a sentence.

        To an order that concerns all home partitions the answer is a list of these, each of which is then asked.
        """
        home = self._home(order)
        if home is None and order["order"] == "homes":
            if order.get("certain") is True:
                self._own.admit(order, caller)
            return {"schema_version": SCHEMA_VERSION, "homes": self._rows()}
        if home is None:
            return {"schema_version": SCHEMA_VERSION, "ask_homes": self._directory.homes}
        if home not in self._servers:
            raise self._where(home)
        return self._servers[home].answer(order, caller)

    def _home(self, order: dict[str, Any]) -> str | None:
        """Return the home partition that an order concerns; None if it concerns all. Raises ControlError."""
        if home := order.get("home"):
            self._where(str(home))
            return str(home)
        job = _first_dependency(order) if order["order"] == "submit" else order.get("array", order.get("job"))
        if job is None and order["order"] == "submit":
            return next(iter(self._leads), self._directory.home)
        if job is None:
            return None
        found = home_of(job, self._directory.homes) if type(job) is int else self._directory.home
        if found is None:
            raise ControlError(f"there is no job {job}: see drom queue --all.")
        return found

    def _rows(self) -> list[dict[str, Any]]:
        leaders = {home: self._leader(home) for home in self._directory.homes}
        return [
            {"home": home, "led_by": one and one.name, "leader_home": one and one.home} for home, one in leaders.items()
        ]


def _first_dependency(order: dict[str, Any]) -> object:
    """Return the first job for which the first job of an order waits, None if there is none."""
    try:
        return order["jobs"][0]["after"][0][1]
    except (KeyError, IndexError, TypeError):
        return None
