# SPDX-License-Identifier: Apache-2.0
"""The book of who is to hold each core and who owns it."""

from __future__ import annotations

from agent.cores import Cores
from agent.ledger import Ledger, Move

CORES = Cores((0b11, 0b1100, 0b110000))


def ledger(*moves: Move) -> Ledger:
    """Return a settled ledger of three cores of two threads."""
    made = Ledger(CORES)
    made.move(moves)
    made.settle({move.job for move in moves}.__contains__)
    return made


def test_cores_change_hands_in_one_step() -> None:
    """It does not matter whether who gives or who takes is named first."""
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
