# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections import Counter

from drom.agent.node.ownership import Owner, settle_owners
from hypothesis import given
from hypothesis import strategies as st

NAMES: st.SearchStrategy[Owner] = st.sampled_from([None, "a", "b", "c", "d"])


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
