# SPDX-License-Identifier: Apache-2.0
"""The model of many controllers on one store: what a job takes, no node held twice, and jobs that all end."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.server import agent_server, lender, shared_rows
from drom.scheduler.reproduction.controllers import events, model, turns, world
from drom.scheduler.reproduction.controllers.experiment import COSTS, OPTIONS
from drom.scheduler.reproduction.controllers.model import LARGE, MEDIUM, SMALL, Setup, simulate, sizes_of, world_of
from drom.scheduler.reproduction.controllers.world import (
    MONITOR,
    NOBODY,
    NONE,
    RANDOM,
    RICHEST,
    WHOLE,
    Costs,
    Options,
)
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from drom.scheduler.reproduction.controllers.world import World


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the loop as plain Python, which gives the same results."""
    monkeypatch.setattr(events, "compiled", lambda: events.run)


def sizes(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the nodes of jobs."""
    return np.array(values, np.int64)


def test_what_a_job_takes() -> None:
    """A job of two nodes has four turns: it is placed, it has started, its program has ended, its last node has left.

    The first of these stores the order as well, and each is a message to the store.
    """
    unit = 1e-6  # so that no turn has too much to do
    cpu = Costs(message=1, job=10, node=100, store=1000, store_job=1e4, store_node=1e5)
    costs = Costs(*(unit * cost for cost in cpu._replace(latency=1e6, start=1e6, launch=1e7, agent=1e8)))
    found = simulate(Setup(1, 2, 1), sizes(2), costs, Options(pick=NONE, watch=True))

    placed = 10 + 2 * 1 + 2 * 1000 + 1e4 + 2 * 1e6
    ended = 1e7 + 0.5 * 100 + 1 + 1000 + 0.5e5 + 1e6  # it has started before
    left = 1e8 + 0.5 * 100 + 1 + 1000 + 0.5e5 + 1e6
    assert found.seconds == pytest.approx(unit * (placed + ended + left))
    assert (found.messages, found.conflicts, found.releases) == (5, 0, 0)
    assert found.cpu == pytest.approx(unit * (10 + 200 + 5))


def test_a_turn_is_bounded() -> None:
    """Answers that take longer than a turn may are handled in several turns, each with a message to the store."""
    costs = Costs(node=2 * world.TURN / world.READ / 100, launch=9.0)
    options = Options(pick=NONE, watch=True)
    found = [simulate(Setup(1, 201, 1), sizes(size), costs, options).messages for size in (100, 101, 201)]
    assert found == [2 + 1 + 1 + 1, 2 + 2 + 1 + 1, 2 + 3 + 1 + 2]


def test_a_turn_has_so_many_answers_at_most() -> None:
    """Those of more nodes are handled in several turns, however little they take."""
    costs, options = Costs(store=1e-6, launch=9.0), Options(pick=NONE, watch=True)
    found = [simulate(Setup(1, 600, 1), sizes(size), costs, options).messages for size in (256, 257, 600)]
    assert found == [2 + 1 + 1 + 1, 2 + 2 + 1 + 1, 2 + 3 + 1 + 3]


@pytest.mark.parametrize(("beats", "left"), [(0, 44), (44, 300 - 218), (256, 300 - 128)])
def test_a_turn_reads_heartbeats_too(beats: int, left: int) -> None:
    """A turn handles fewer answers if heartbeats came while the last one went on."""
    w = world_of(Setup(1, 300, 1), sizes(299), Costs(), Options(pick=NONE), 1)
    w.phase[0], w.left[0], w.beats[0] = world.STARTED, 300, beats
    turns.arrive(w, [], world.REPORT, 0, 300, 0.0)
    assert w.left[0] == w.arrived[0] == left
    assert w.beats[0] == 0


def test_bounds_are_those_of_schedulers() -> None:
    """Turns and messages of the model have the bounds of `drom scheduler`."""
    assert (world.TURN, world.MOST) == (agent_server.TURN_SECONDS, agent_server.PER_TURN)
    assert world.ROWS == shared_rows.MOST_ROWS
    assert world.AGAIN == lender.AGAIN


@pytest.mark.parametrize(("rows", "messages"), [(0, 0), (1, 1), (100, 1), (101, 5), (200, 5), (201, 6)])
def test_a_large_change_takes_several_messages(rows: int, messages: int) -> None:
    """One of more rows than a message may have is announced by two, stored in parts, and its copy is deleted."""
    assert turns.messages_of(rows) == messages


def test_an_order_is_stored_by_itself() -> None:
    """All jobs of an order are placed in its turn; orders that wait for a turn have a message each."""
    options, costs = Options(pick=NONE, watch=True, spread=True), Costs(store=1.0, submit=1e-6)
    found = [simulate(Setup(1, 9, 4, order=order), sizes(1, 1, 1, 1), costs, options).messages for order in (4, 2, 1)]
    placed, ended = (1, 2, 2), 2  # the first order has a turn of its own, and so has the first answer
    assert found == [(orders + turns + ended) / 4 for orders, turns in zip((1, 2, 4), placed, strict=True)]


def test_answers_of_nodes_that_share_cores_arrive_in_parts() -> None:
    """A controller that has nothing else to do has a message to the store for each part."""
    costs, options = Costs(answer=1.0, latency=1e-3), Options(pick=NONE, watch=True)
    alone, shared = (simulate(Setup(1, 99, 1, cores=cores), sizes(99), costs, options).messages for cores in (0, 1))
    assert (alone, shared) == (2 + 1 + 1 + 1, 2 + world.SHARES + 1 + world.SHARES)


def test_nodes_that_share_a_core_answer_one_controller_after_the_other() -> None:
    """The answers to a request arrive while its nodes work, not while they still work on requests of others."""
    costs, options = Costs(answer=1.0, latency=1e-3, submit=1e-6), Options(pick=NONE, watch=True, spread=True)
    both = simulate(Setup(2, 9, 1, cores=1), sizes(9, 9), costs, options)
    assert both.seconds == pytest.approx(9 + 8, rel=0.01)  # half a second for each answer: to start, and to end
    apart = simulate(Setup(2, 9, 1, cores=2), sizes(9, 9), costs, options)
    assert apart.seconds == pytest.approx((9 + 8) / 2, rel=0.01)
    assert both.messages <= apart.messages


def test_nodes_of_others() -> None:
    """A job that lacks nodes looks, takes and gives back: messages to the store for each; without it is refused."""
    setup = Setup(2, 2, 1)
    found = simulate(setup, sizes(3, 1), COSTS, Options(watch=True, spread=True))

    alone = simulate(setup, sizes(2, 1), COSTS, Options(watch=True, spread=True))
    assert found.messages >= alone.messages + 3 / 2
    with pytest.raises(SchedulerError, match=r"^A job of 3 nodes does not fit: give partitions more nodes\.$"):
        simulate(setup, sizes(3, 1), COSTS, Options(pick=NONE))
    with pytest.raises(SchedulerError, match=r"^A job of 5 nodes does not fit"):
        simulate(setup, sizes(5, 1), COSTS, Options())


OURS = Options(pick=WHOLE, watch=True, spread=True)
FREE = Costs(latency=1e-3, launch=1.0, agent=0.1)
"""Costs with which one message to the store, a launch and an answer of a node are told apart by their times."""


def test_one_transaction_takes_all_nodes() -> None:
    """A job that lacks a node wants some, is offered one, takes it, is placed, and gives it back: a message for each.

    The node introduces itself before the job starts.
    """
    found = simulate(Setup(2, 2, 1), sizes(3, 1), FREE, OURS)
    first_list, offer = 2, 1  # the order and that it wants nodes; another home partition offers what it has
    taken, ends = 2, 1 + 1 + 1  # the transaction and the placement; started, ended, left
    returned, alone = 1, 2 + 1 + 1  # the other job: its order, its placement, started, ended
    assert found.messages * 2 == first_list + offer + taken + ends + returned + alone
    assert (found.conflicts, found.releases) == (0, 0)
    waited = simulate(Setup(2, 2, 1), sizes(2, 1), FREE, OURS)
    assert found.seconds - waited.seconds > FREE.agent


def test_no_node_is_lent_while_a_job_waits_for_nodes() -> None:
    """A home partition whose own jobs wait offers none, and its larger jobs hold up none of these."""
    setup = Setup(2, 2, 3)
    w, heap = world_of(setup, sizes(3, 2, 2, 2, 2, 2), FREE, OURS, 1), list[tuple[float, int, int, int, int]]()
    events.submit_all(w, heap)
    while heap:
        now, _, kind, who, more = heapq.heappop(heap)
        events.handle(w, heap, kind, who, more, now)
        if w.lists[:, 0].any():
            assert w.phase[3:].min() >= world.STARTED
    assert w.allocated[0] > w.allocated[1:].max()


def test_of_two_transactions_that_conflict_one_is_done() -> None:
    """The other one is tried again after a while, when its controller has seen the change."""
    setup = Setup(3, 2, 1)
    found = simulate(setup, sizes(3, 3, 1), FREE, OURS)
    assert found.conflicts > 0
    assert found.releases == 0
    assert found.seconds < 2 * (FREE.launch + 2 * FREE.agent) + 4 * lender.AGAIN + 0.1


def test_what_the_nodes_bound() -> None:
    """Nodes by the mean of what a job takes: its nodes times its launch, and the end of all but the first."""
    costs = Costs(launch=0.5, agent=0.25)
    assert model.bound(Setup(2, 3, 2), sizes(1, 1, 1, 1), costs) == 6 / 0.5
    assert model.bound(Setup(2, 3, 1), sizes(1, 3), costs) == 6 / ((0.5 + 3 * 0.75) / 2)
    assert simulate(Setup(1, 3, 9), sizes(*[3] * 9), costs, OURS).throughput <= 3 / (3 * 0.75)


def test_a_run_without_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of events has a bound."""
    monkeypatch.setattr(model, "EVENTS_PER_JOB", 2)
    with pytest.raises(SchedulerError, match=r"^The controllers do not finish"):
        simulate(Setup(1, 1, 3), sizes(1, 1, 1), COSTS, Options())


def amount_of(w: World, loan: int) -> int:
    """Return the nodes of some linked loans."""
    amount = 0
    while NOBODY < loan < len(w.lender):
        amount, loan = amount + int(w.amount[loan]), int(w.further[loan])
    return amount


def held(w: World) -> int:
    """Return how many nodes are free, offered, of jobs, or lent: lent ones also while their return is under way."""
    unused, loan = set(), int(w.unused[0])
    while loan < len(w.lender):
        unused.add(loan)
        loan = int(w.further[loan])
    lent = sum(int(w.amount[one]) for one in range(len(w.lender)) if one not in unused)
    not_yet = sum(amount_of(w, int(loan)) for loan in w.taken)  # of transactions that are under way
    return int(w.free.sum() + w.own.sum() + w.lists[:, 0].sum()) + lent - not_yet


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(OPTIONS)),
    st.integers(2, 5),
    st.lists(st.integers(1, 16), min_size=1, max_size=6),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_no_node_is_held_twice_and_every_job_ends(
    name: str, controllers: int, wanted: list[int], notify: bool, seed: int
) -> None:
    """Whatever the options are; in the end all nodes are free again where they belong."""
    setup = Setup(controllers, 4, len(wanted))
    given_sizes = np.resize(np.minimum(wanted, 4 * controllers), controllers * len(wanted))
    options = OPTIONS[name]._replace(notify=notify)
    w, heap = world_of(setup, given_sizes, COSTS, options, seed), list[tuple[float, int, int, int, int]]()
    events.submit_all(w, heap)
    while heap:
        now, _, kind, who, more = heapq.heappop(heap)
        events.handle(w, heap, kind, who, more, now)
        assert held(w) == 4 * controllers
        assert min(w.free.min(), w.lists.min()) >= 0

    assert (w.ended >= w.allocated).all()
    assert (w.allocated >= w.asked).all()
    assert w.asked.min() >= 0
    assert (w.free + w.lists[:, 0] == 4).all()
    assert (w.waiters == NOBODY).all()


@pytest.mark.parametrize("name", OPTIONS)
def test_the_same_seed_gives_the_same_result(name: str) -> None:
    """Another seed gives another one."""
    setup = Setup(4, 50, 5)
    first, again, other = (
        simulate(setup, sizes_of(LARGE, setup, seed), COSTS, OPTIONS[name], seed) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_what_options_do() -> None:
    """Watches save messages, a place for all submissions limits, and probes cost messages; small jobs need nobody."""
    setup = Setup(10, 50, 20)
    ours = Options(watch=True, spread=True)  # with the paper's algorithm

    def run(options: Options) -> model.Result:
        return simulate(setup, sizes_of(LARGE, setup, 1), COSTS, options)

    plain = run(ours)
    assert run(ours._replace(watch=False)).throughput < plain.throughput
    assert run(ours._replace(pick=RICHEST, probes=4)).messages > plain.messages
    assert run(ours._replace(pick=MONITOR)).allocate < plain.allocate
    assert run(ours._replace(pick=WHOLE)).messages < plain.messages
    small = [simulate(setup, sizes_of(SMALL, setup, 1), COSTS, ours._replace(pick=pick)) for pick in (NONE, RANDOM)]
    assert small[0] == small[1]
    one_place = simulate(setup, sizes_of(SMALL, setup, 1), COSTS, ours._replace(spread=False))
    assert one_place.seconds > small[0].seconds


def test_a_machine_that_all_share_is_slower() -> None:
    """On it the nodes' work counts too."""
    setup, costs = Setup(4, 50, 10), COSTS._replace(answer=0.3e-3, start=0.0, launch=0.0, agent=0.0)
    work = sizes_of(MEDIUM, setup, 1)
    own, shared = (simulate(one, work, costs, Options(pick=NONE)) for one in (setup, setup._replace(cores=2)))
    assert shared.throughput < own.throughput
    assert shared.cpu == pytest.approx(own.cpu, rel=0.2)
