# SPDX-License-Identifier: Apache-2.0
"""Home partitions lend each other nodes: what each changes in the free lists, alone and in any interleaving."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.live.cluster.lending import (
    EMPTY,
    MOST_LENT,
    MOST_LISTS,
    MOST_NAMES,
    FreeList,
    Situation,
    decide,
    free_list_of,
    reach,
    text_of,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

if TYPE_CHECKING:
    from collections.abc import Mapping


def has(idle: str = "", needs: int = 0, known: str = "", *, home: str = "p1", is_short: bool = False) -> Situation:
    """Return the situation of a home partition of four nodes of 8 cores."""
    return Situation(home, 4, 8, idle.split(), {*idle.split(), *known.split()}, needs, is_short)


def listed(*, wants: bool = False, cores: int = 8, **nodes: str) -> FreeList:
    """Return the free list of a home partition of four nodes."""
    return FreeList(4, cores, wants, nodes)


def test_a_free_list_is_published_when_it_has_changed() -> None:
    """A home partition that neither lends nor borrows publishes its size, once."""
    published = decide(has("a b"), {}).lists
    assert published == {"p1": listed()}
    assert decide(has("a b"), published).lists == {}
    assert free_list_of(text_of(listed(a="p2", b="")).encode()) == listed(a="p2", b="")
    for text in (b"", b"[]", b"{}", b'{"size": 1, "cores": 1, "wants": false, "nodes": [1]}'):
        with pytest.raises((AttributeError, KeyError, TypeError, ValueError)):
            free_list_of(text)


def test_idle_nodes_are_offered_while_others_ask_and_no_own_job_needs_them() -> None:
    """Offers stay until then, what is lent stays lent, and nothing is offered for nodes of another size."""
    asked = {"p1": listed(c="p3"), "p2": listed(wants=True)}
    offered = listed(a="", b="", c="p3")
    assert decide(has("a b"), asked).lists == {"p1": offered}
    assert decide(has("a b"), asked | {"p1": offered}).lists == {}
    assert decide(has("a b", is_short=True), asked | {"p1": offered}).lists == {"p1": listed(c="p3")}
    assert decide(has("a b"), {"p1": offered, "p2": listed()}).lists == {}
    assert decide(has("a"), {"p1": offered, "p2": listed()}).lists == {"p1": listed(a="", c="p3")}
    assert decide(has("a b"), {"p1": listed(), "p2": listed(wants=True, cores=4)}).lists == {}
    many = " ".join(f"n{number}" for number in range(MOST_LENT))
    assert len(decide(has(many), asked).lists["p1"].nodes) == MOST_LENT


def test_a_job_gets_all_the_nodes_that_it_lacks_or_none() -> None:
    """They come from those who offer most; without enough of them, the home partition asks for some."""
    offers = {
        "p1": listed(),
        "p2": listed(c=""),
        "p3": listed(d="", e="", f="p2"),
        "p4": listed(cores=4, g=""),
    }
    assert decide(has("a b", needs=6), offers).lists == {"p1": listed(wants=True)}
    found = decide(has("a b", needs=5), offers)
    assert found.lists == {"p2": listed(c="p1"), "p3": listed(d="p1", e="p1", f="p2")}
    assert (found.own, found.borrowed) == (["a", "b"], {"d": "p3", "e": "p3", "c": "p2"})
    assert decide(has("a b", needs=2), offers).lists == {}
    assert decide(has("a b", needs=3, known="d"), offers).borrowed == {"c": "p2"}


def test_a_home_partition_that_lacks_nodes_offers_its_own_as_well() -> None:
    """Two jobs that are too large for their home partitions cannot wait for each other; the first to act has all."""
    asked = {"p1": listed(wants=True), "p2": listed(wants=True)}
    first = decide(has("a b", needs=3), asked)
    assert first.lists == {"p1": listed(wants=True, a="", b="")}
    second = decide(has("c d", needs=3, home="p2"), asked | first.lists)
    assert second.lists == {"p2": listed(), "p1": listed(wants=True, a="p2", b="")}
    assert (second.own, second.borrowed) == (["c", "d"], {"a": "p1"})


def test_what_a_scheduler_does_not_know_is_given_back() -> None:
    """An earlier one has borrowed it, and died before it had stored that, or has removed it and died."""
    lists = {"p1": listed(), "p2": listed(c="p1", d="p1", e="p3"), "p3": listed(f="p2")}
    assert decide(has("a", known="c"), lists).lists == {"p2": listed(c="p1", e="p3")}
    many = {f"q{number}": FreeList(4, 8, False, {f"n{number}": "p1"}) for number in range(MOST_LISTS + 1)}
    assert len(decide(has("a"), many | {"p1": listed()}).lists) == MOST_LISTS


def test_how_far_a_job_can_reach_is_bounded() -> None:
    """It counts the nodes of the largest other home partitions, as far as they have nodes of the same size."""
    lists = {"p1": listed(), "p2": FreeList(5, 8), "p3": FreeList(5, 4), "p4": FreeList(2 * MOST_LENT, 8)}
    assert reach(lists, "p1", 8) == 5 + MOST_LENT
    assert reach({f"q{number}": FreeList(1, 8) for number in range(100)}, "p1", 8) == MOST_LISTS
    assert reach({f"q{number}": FreeList(999, 8) for number in range(100)}, "p1", 8) == 999 * (MOST_NAMES // 999)


class Home:
    """A home partition: its jobs, and what it sees of the lists, which may be old."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.own = [f"{name}-{number}" for number in range(size)]
        self.seen: dict[str, tuple[FreeList, int]] = {}
        self.knows, self.term = False, 1
        self.borrowed: set[str] = set()
        self.waiting: dict[int, int] = {}
        self.running: dict[int, list[str]] = {}

    @property
    def lists(self) -> Mapping[str, FreeList]:
        """The lists as this home partition sees them."""
        return {home: free for home, (free, _) in self.seen.items()}

    @property
    def used(self) -> set[str]:
        """The nodes on which jobs are."""
        return {node for nodes in self.running.values() for node in nodes}

    def situation(self) -> Situation:
        """Return what it has and needs: jobs are started in the order in which they came."""
        idle = [node for node in self.own if node not in self.used and not self._lent(node)]
        fits = [needs for needs in self.waiting.values() if needs <= len(self.own)]
        needs = next(iter(self.waiting.values()), 0)
        return Situation(self.name, len(self.own), 8, idle, {*self.own, *self.borrowed}, needs, bool(fits))

    def _lent(self, node: str) -> str:
        return self.lists.get(self.name, EMPTY).nodes.get(node, "")

    def schedule(self) -> None:
        """Start the first jobs on own nodes that are in no free list, as a policy does."""
        own = self.lists.get(self.name, EMPTY).nodes
        for job, needs in list(self.waiting.items()):
            free = [node for node in self.own if node not in self.used and node not in own]
            if needs > len(free) and needs <= len(self.own):
                return
            if needs <= len(free):
                del self.waiting[job]
                self.running[job] = free[:needs]


NUMBER = st.integers(0, 2)


class Lending(RuleBasedStateMachine):
    """Home partitions that act in any order on what they last saw, lose answers, and die."""

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[str, tuple[FreeList, int]] = {}
        self.revision = 0
        self.all: dict[str, Home] = {}
        self.jobs = count(1)
        self.late: list[tuple[Home, int, dict[str, int], Mapping[str, FreeList]]] = []
        """Writes on the way: by whom, in which term, the revisions that were seen, and what is written."""

    @initialize(sizes=st.lists(st.integers(1, 2), min_size=2, max_size=3))
    def start(self, sizes: list[int]) -> None:
        """Begin with some home partitions."""
        self.all = {f"p{number}": Home(f"p{number}", size) for number, size in enumerate(sizes)}

    def home(self, number: int) -> Home:
        """Return one of the home partitions."""
        return list(self.all.values())[number % len(self.all)]

    def swap(self, home: Home, lists: Mapping[str, FreeList]) -> bool:
        """Change lists if they are as a home partition has seen them."""
        return self.write(home, home.term, {one: home.seen.get(one, (EMPTY, 0))[1] for one in lists}, lists)

    def write(self, home: Home, term: int, seen: Mapping[str, int], lists: Mapping[str, FreeList]) -> bool:
        """Change lists that were last written at some revisions, for the scheduler of a term."""
        if term != home.term or any(self.store.get(one, (EMPTY, 0))[1] != at for one, at in seen.items()):
            return False
        self.revision += 1
        self.store |= {one: (free, self.revision) for one, free in lists.items()}
        return True

    @rule(number=NUMBER, share=st.floats(0.0, 1.0))
    def submit(self, number: int, share: float) -> None:
        """A job waits, which is no larger than the cluster."""
        total = sum(len(home.own) for home in self.all.values())
        self.home(number).waiting[next(self.jobs)] = 1 + int(share * (total - 1))

    @rule(number=NUMBER, sees_all=st.booleans())
    def act(self, number: int, sees_all: bool) -> None:
        """A home partition starts jobs, and writes free lists; it may not have seen what others have written."""
        home = self.home(number)
        home.seen = dict(self.store) if sees_all else home.seen
        self._act(home)

    @rule(number=NUMBER, is_late=st.booleans())
    def act_without_answer(self, number: int, is_late: bool) -> None:
        """A home partition gets no answer when it writes free lists, or dies before it has stored more."""
        home = self.home(number)
        home.seen = dict(self.store)
        self._act(home, lost="late" if is_late else "done")

    @rule()
    def arrive(self) -> None:
        """A write that had no answer arrives."""
        if self.late:
            self.write(*self.late.pop(0))

    def _act(self, home: Home, lost: str = "") -> None:
        if not home.knows:
            own = home.lists.get(home.name, EMPTY)
            home.knows = self.swap(home, {home.name: own})
            home.seen[home.name] = self.store.get(home.name, (EMPTY, 0))
        if not home.knows:
            return
        home.schedule()
        home.borrowed &= home.used
        wanted = decide(home.situation(), home.lists)
        if lost == "late":
            seen = {one: home.seen.get(one, (EMPTY, 0))[1] for one in wanted.lists}
            self.late.append((home, home.term, seen, wanted.lists))
            home.knows = False
        if lost == "late" or not (wanted.lists and self.swap(home, wanted.lists)):
            return
        if lost:
            home.knows = False
            return
        home.seen |= {one: self.store[one] for one in wanted.lists}
        if wanted.borrowed:
            job = next(iter(home.waiting))
            needs = home.waiting.pop(job)
            home.borrowed |= wanted.borrowed.keys()
            home.running[job] = [*wanted.own, *wanted.borrowed]
            assert len(home.running[job]) == needs

    @rule(number=NUMBER)
    def end(self, number: int) -> None:
        """The oldest job of a home partition ends."""
        running = self.home(number).running
        if running:
            del running[next(iter(running))]

    @rule(number=NUMBER)
    def die(self, number: int) -> None:
        """Another scheduler leads a home partition: it has what was stored, and old lists."""
        self.home(number).knows = False
        self.home(number).term += 1

    @invariant()
    def no_node_has_two_jobs(self) -> None:
        """Each node is used by one job; one of another home partition is lent to that of its job."""
        used = [node for home in self.all.values() for nodes in home.running.values() for node in nodes]
        assert len(used) == len(set(used))
        for home in self.all.values():
            own = self.store.get(home.name, (EMPTY, 0))[0].nodes
            assert not home.used & set(home.own) & own.keys()
            for node in home.used - set(home.own):
                assert self.store[node.partition("-")[0]][0].nodes[node] == home.name

    def teardown(self) -> None:
        """Every job gets its nodes after few steps, and then all nodes are back."""
        self.late.clear()
        for _ in range(4 * next(self.jobs)):
            for home in self.all.values():
                home.seen = dict(self.store)
                self._act(home)
            if not any(home.running for home in self.all.values()):
                continue
            for home in self.all.values():
                home.running.clear()
        for home in self.all.values():
            assert not home.waiting
            if home.seen:
                assert self.store[home.name][0]._replace(nodes={}) == FreeList(len(home.own), 8)
                assert not self.store[home.name][0].lent


Lending.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
test_any_interleaving = Lending.TestCase


def test_a_write_that_arrives_late_does_not_count() -> None:
    """An offer without an answer reaches the store after its scheduler has started a job on the node."""
    here = Lending()
    here.start([1, 1])
    here.act(1, sees_all=True)
    here.submit(0, 1.0)
    here.act(0, sees_all=True)
    here.act_without_answer(1, is_late=True)
    here.submit(1, 0.0)
    here.act(1, sees_all=True)
    assert here.home(1).running
    here.arrive()
    here.act(0, sees_all=True)
    here.no_node_has_two_jobs()
    here.teardown()
