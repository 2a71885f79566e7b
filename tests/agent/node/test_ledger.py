# SPDX-License-Identifier: Apache-2.0
"""The book of who is to hold each core and who owns it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from drom.agent.model.cores import Cores
from drom.agent.node.ledger import Ledger, Move, Owner, settle_owners
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Sequence

CORES = Cores((0b11, 0b1100, 0b110000))
SIX = Cores((1, 2, 4, 8, 16, 32))
NAMES: st.SearchStrategy[Owner] = st.sampled_from([None, "a", "b", "c", "d"])


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


def names(text: str) -> list[Owner]:
    """Return one owner per letter; a dot is nobody."""
    return [None if letter == "." else letter for letter in text]


def settled(owners: str, holders: str, alive: str = "abcd") -> str:
    """Return the owners that follow, as letters."""
    after = dict(enumerate(names(owners))) | settle_owners(names(owners), names(holders), set(alive).__contains__)
    return "".join(owner or "." for owner in after.values())


def test_a_job_that_moves_owns_where_it_is() -> None:
    """As many of its own that nobody is on are nobody's then; what it has lent, or has shrunk from, stays its own."""
    assert settled("aa....", "..aa..") == "..aa.."
    assert settled("aaaa..", "b...aa", "ab") == "a..aaa"
    assert settled("aa....", "......") == "aa...."


def test_a_free_core_belongs_to_who_takes_it() -> None:
    """A core that nobody owned is its first holder's; one that nobody holds stays nobody's."""
    assert settled("....", "aab.") == "aab."


def test_a_guest_borrows() -> None:
    """A guest on a shrunk job's cores leaves them the owner's."""
    assert settled("aaaa", "aabb") == "aaaa"


def test_the_guest_returns_what_it_borrowed() -> None:
    """When the guest has ended its cores are still the owner's."""
    assert settled("aaaa", "aa..", "a") == "aaaa"


def test_the_owner_ends_first() -> None:
    """D27: the holder of a dead owner's core owns it, and what nobody holds is nobody's."""
    assert settled("aaaa", "..bb", "b") == "..bb"


def test_the_owner_ends_and_another_moves_in() -> None:
    """A core of a dead owner that was lent on belongs to who holds it now."""
    assert settled("aabb", "ccbb", "bc") == "ccbb"


def test_two_that_changed_places_own_where_they_are() -> None:
    """A re-layout that swaps two jobs swaps the entitlement too: nobody lends and borrows at once."""
    assert settled("aabb", "bbaa") == "bbaa"


def test_a_debt_moves_on_to_the_core_that_is_left() -> None:
    """A lender that sits on the guest's own core swaps it for one it has lent: the guest still owes one."""
    assert settled("aab", "bba") == "baa"


@given(st.lists(st.tuples(NAMES, NAMES), max_size=12), st.sets(st.sampled_from("abcd")))
def test_counts_are_kept_and_nobody_lends_and_borrows(cores: list[tuple[Owner, Owner]], alive: set[str]) -> None:
    """A living job owns as many cores as before, and unowned ones it holds that are more than its own idle ones."""
    owners = [owner for owner, _ in cores]
    holders = [holder if holder in alive else None for _, holder in cores]

    now = list((dict(enumerate(owners)) | settle_owners(owners, holders, alive.__contains__)).values())

    taken = Counter(h for o, h in zip(owners, holders, strict=True) if o not in alive and h)
    idle = Counter(o for o, h in zip(owners, holders, strict=True) if o in alive and not h)
    assert Counter(o for o in now if o) == Counter(o for o in owners if o in alive) + (taken - idle)
    lends = {o for o, h in zip(now, holders, strict=True) if o and o != h}
    borrows = {h for o, h in zip(now, holders, strict=True) if h and o != h}
    assert not lends & borrows
    assert settle_owners(now, holders, alive.__contains__) == {}
