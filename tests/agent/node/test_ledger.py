# SPDX-License-Identifier: Apache-2.0
"""The book of who is to hold each core and who owns it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.agent.model.cores import Cores
from drom.agent.node.ledger import Ledger, Move
from drom.agent.node.ownership import settle_owners
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drom.agent.node.ownership import Owner

CORES = Cores((0b11, 0b1100, 0b110000))
SIX = Cores((1, 2, 4, 8, 16, 32))


def ledger(*moves: Move) -> Ledger:
    """Return a settled ledger of three cores of two threads."""
    made = Ledger(CORES)
    made.move(moves)
    made.settle({move.job for move in moves}.__contains__)
    return made


def test_cores_change_hands_in_one_step() -> None:
    """The result does not depend on whether the giver or the taker is named first."""
    for order in (1, -1):
        made = ledger(Move("a", 0, 0b1111))
        made.move([Move("a", 0b1111, 0b11), Move("b", 0, 0b1100)][::order])

        assert (made.holders, made.planned) == (["a", "b", None], 0b1111)


def test_ranks_of_a_job_exchange_cores() -> None:
    """A core that passes from one rank to another of the same job stays with the job."""
    for order in (1, -1):
        made = ledger(Move("a", 0, 0b11), Move("a", 0, 0b1100))
        made.move([Move("a", 0b11, 0b1100), Move("a", 0b1100, 0b110000)][::order])

        assert made.holders == [None, "a", "a"]


def test_a_part_of_a_core_keeps_the_core() -> None:
    """Who is left with one thread of a core still holds it."""
    made = ledger(Move("a", 0, 0b11))
    made.move([Move("a", 0b11, 0b01)])

    assert (made.holders, made.planned) == (["a", None, None], 0b01)


def test_a_core_is_owned_by_who_took_it_first() -> None:
    """A guest borrows: the owner changes only when the old one has ended, and those who own others now are named."""
    made = ledger(Move("a", 0, 0b1111))
    made.move([Move("a", 0b1111, 0b11), Move("b", 0, 0b111100)])

    assert made.settle({"a", "b"}.__contains__) == {"b"}
    assert (made.owners, made.owned) == (["a", "a", "b"], {"a": 0b1111, "b": 0b110000})
    made.move([Move("a", 0b11, 0)])
    assert made.settle({"b"}.__contains__) == {"b"}
    assert (made.owners, made.owned) == ([None, "b", "b"], {"b": 0b111100})


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 63)), max_size=12))
def test_the_ledger_settles_as_if_all_cores_were_looked_at(events: list[tuple[str, int]]) -> None:
    """Whatever jobs take, pass on and leave behind: the owners are those that the whole book would lead to."""
    book = Ledger(SIX)
    holds = dict.fromkeys("abcd", 0)
    for job, wanted in events:
        before = dict(holds)
        holds = {other: mask & ~wanted for other, mask in holds.items()} | {job: wanted}
        book.move([Move(name, before[name], holds[name]) for name in holds if holds[name] != before[name]])
        alive = {name for name, mask in holds.items() if mask}.__contains__
        expected = dict(enumerate(book.owners)) | settle_owners(book.owners, book.holders, alive)

        changed = book.settle(alive)

        assert dict(enumerate(book.owners)) == expected
        assert book.owned == {name: masks_of(book.owners, name) for name in book.owners if name}
        assert book.held == {name: masks_of(book.holders, name) for name in book.holders if name}
        assert all(map(alive, changed))


def masks_of(names: Sequence[Owner], name: str) -> int:
    """Return the cores at which a name stands."""
    return sum(core for core, there in zip(SIX, names, strict=True) if there == name)
