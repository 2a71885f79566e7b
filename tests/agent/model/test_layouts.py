# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
from drom.agent.model.layouts import (
    ANY,
    Layout,
    distance,
    exact_amounts,
    is_satisfied,
    most,
    nearest_amounts,
    sockets_needed,
)
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Sequence

COMPACT, SPREAD = Layout("compact"), Layout("spread")
LAYOUTS = [COMPACT, SPREAD, *(Layout("per_socket", n) for n in (1, 2, 3))]


def every_way(count: int, room: Sequence[int]) -> list[tuple[int, ...]]:
    """Return every way to take `count` cores from sockets with this room."""
    return [way for way in product(*(range(free + 1) for free in room)) if sum(way) == count]


def squares(way: Sequence[int]) -> int:
    """Return what is least for the most equal way."""
    return sum(amount * amount for amount in way)


def used(way: Sequence[int]) -> int:
    """Return the sockets in use."""
    return sum(amount > 0 for amount in way)


def best(layout: Layout, count: int, sizes: Sequence[int]) -> set[tuple[int, ...]]:
    """Return every way that lies as asked, by trying all: the most equal ones, or those in the fewest sockets."""
    if layout.kind == "spread":
        found, price = every_way(count, sizes), squares
    else:
        found, price = every_way(count, [min(size, layout.limit) for size in sizes]), used
    return {way for way in found if price(way) == min(map(price, found))}


@st.composite
def places(draw: st.DrawFn) -> tuple[Layout, int, list[int], list[int], list[int]]:
    """Draw a layout, a count, the room and size of each socket, and an order of preference."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    room = [draw(st.integers(0, size)) for size in sizes]
    count = draw(st.integers(1, max(1, sum(sizes))))
    return draw(st.sampled_from(LAYOUTS)), count, room, sizes, draw(st.permutations(range(len(sizes))))


class TestLayout:
    """What was asked for, as text and as numbers."""

    @pytest.mark.parametrize(
        ("layout", "text"),
        [
            (ANY, "default"),
            (Layout("compact", strict=True), "compact!"),
            (Layout("spread"), "spread"),
            (Layout("per_socket", 3, strict=True), "per-socket=3!"),
        ],
    )
    def test_reads_as_on_the_command_line(self, layout: Layout, text: str) -> None:
        """Its text is the value of --distribution."""
        assert str(layout) == text

    def test_per_socket_caps_a_job(self) -> None:
        """A per-socket job gets N cores of each socket at most, any other the whole node."""
        assert [most(layout, [4, 4, 1]) for layout in (ANY, COMPACT, Layout("per_socket", 2))] == [9, 9, 5]

    def test_span_counts_the_largest_sockets(self) -> None:
        """As few sockets as hold the cores; all of them where they do not."""
        assert [sockets_needed(count, [2, 4, 1]) for count in (0, 4, 5, 7, 9)] == [0, 1, 2, 3, 3]


class TestIsAsAsked:
    """What a layout demands of the amounts per socket."""

    @pytest.mark.parametrize(
        ("layout", "amounts", "yes"),
        [
            (ANY, [3, 1], True),
            (COMPACT, [4, 0], True),
            (COMPACT, [3, 1], False),
            (COMPACT, [3, 3], True),
            (SPREAD, [2, 2], True),
            (SPREAD, [3, 2], True),
            (SPREAD, [3, 1], False),
            (Layout("per_socket", 1), [1, 1], True),
            (Layout("per_socket", 2), [1, 1], False),
            (Layout("per_socket", 1), [2, 0], False),
        ],
    )
    def test_on_two_sockets_of_four(self, layout: Layout, amounts: list[int], yes: bool) -> None:
        """Up to four cores compact is one socket; spread differs by one; per-socket=N fills socket by socket."""
        assert is_satisfied(layout, amounts, [4, 4]) is yes

    def test_a_full_small_socket_may_have_less(self) -> None:
        """Spread is as equal as the sockets' sizes allow."""
        assert is_satisfied(SPREAD, [1, 3, 3], [1, 4, 4])
        assert not is_satisfied(SPREAD, [1, 4, 2], [1, 4, 4])

    @given(places())
    def test_is_what_trying_all_finds_best(self, place: tuple[Layout, int, list[int], list[int], list[int]]) -> None:
        """Amounts lie as asked just when no others are more equal, or use fewer sockets within the limit."""
        layout, count, _, sizes, _ = place
        wanted = best(layout, count, sizes)

        if wanted:
            assert {way for way in every_way(count, sizes) if is_satisfied(layout, way, sizes)} == wanted


class TestWays:
    """Every way as asked, the preferred ones first."""

    def test_come_in_the_order_of_preference(self) -> None:
        """The preferred socket comes first, and is filled first."""
        assert list(exact_amounts(COMPACT, 3, [3, 4, 4], [4, 4, 4], [2, 0, 1])) == [[0, 0, 3], [3, 0, 0], [0, 3, 0]]
        assert next(exact_amounts(COMPACT, 6, [4, 4], [4, 4], [1, 0])) == [2, 4]
        assert list(exact_amounts(SPREAD, 3, [4, 4], [4, 4], [1, 0])) == [[1, 2], [2, 1]]
        assert list(exact_amounts(Layout("per_socket", 2), 3, [2, 1], [4, 4], [1, 0])) == [[2, 1]]

    def test_are_found_at_once_among_very_many_sockets(self) -> None:
        """Sockets without room cost no search: a virtual machine may have as many sockets as CPUs."""
        sizes, full = [1] * 600, [0] * 580 + [1] * 20
        assert next(exact_amounts(COMPACT, 20, full, sizes, range(600))) == full
        assert next(exact_amounts(COMPACT, 590, sizes, sizes, range(600))) == [1] * 590 + [0] * 10
        assert list(exact_amounts(COMPACT, 21, full, sizes, range(600))) == []
        assert list(exact_amounts(SPREAD, 300, [0, *[4] * 99], [4] * 100, range(100))) == []

    @given(places())
    def test_are_all_there_are(self, place: tuple[Layout, int, list[int], list[int], list[int]]) -> None:
        """They are, once each, the best ways on the whole machine that fit the room."""
        layout, count, room, sizes, order = place
        found = [tuple(way) for way in exact_amounts(layout, count, room, sizes, order)]

        assert len(found) == len(set(found))
        assert set(found) == {way for way in best(layout, count, sizes) if way in set(every_way(count, room))}


class TestMakeDo:
    """The nearest way where there is none as asked."""

    @given(places())
    def test_is_nearest(self, place: tuple[Layout, int, list[int], list[int], list[int]]) -> None:
        """Spread is as equal as the room allows; the others use few sockets, and exceed N only if they must."""
        layout, count, room, _, order = place
        if sum(room) < count:
            return
        way = tuple(nearest_amounts(layout, count, room, [0] * len(room), order))

        assert way in every_way(count, room)
        if layout.kind == "spread":
            assert squares(way) == min(map(squares, every_way(count, room)))
        else:
            limit = max(layout.limit, min(max(other) for other in every_way(count, room)))
            within = [other for other in every_way(count, room) if max(other) <= limit]
            assert max(way) <= limit
            assert used(way) == min(map(used, within))

    @given(places(), st.data())
    def test_no_way_is_nearer(
        self, place: tuple[Layout, int, list[int], list[int], list[int]], data: st.DataObject
    ) -> None:
        """Whatever the group has besides."""
        layout, count, room, _, order = place
        if sum(room) < count:
            return
        there = data.draw(st.lists(st.integers(0, 3), min_size=len(room), max_size=len(room)))
        way = nearest_amounts(layout, count, room, there, order)

        assert distance(layout, way, there) == min(distance(layout, other, there) for other in every_way(count, room))

    def test_counts_what_may_not_move(self) -> None:
        """Cores of the job that stay where they are count for spread and per-socket."""
        assert nearest_amounts(SPREAD, 2, [3, 4], [1, 0], [0, 1]) == [1, 1]
        assert nearest_amounts(SPREAD, 3, [3, 4], [1, 0], [0, 1]) == [1, 2]
        assert nearest_amounts(Layout("per_socket", 1), 1, [3, 4], [1, 0], [0, 1]) == [0, 1]
