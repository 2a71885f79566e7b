# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from drom.agent.model.cores import Cores
from drom.agent.model.layouts import Layout
from drom.agent.placement.ranks import NoPlacement, PlacementKernel, RankKey, RankRequest
from drom.agent.placement.reachable import NEEDS_SWAP, place, place_in_place
from drom.agent.placement.transitions import TaskState, is_reachable
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Sequence


FOUR = Cores((1, 2, 4, 8))
STRICT = Layout("compact", strict=True)
TWO_THREADS = Cores((0b0011, 0b1100))


def request(name: str, cores: int, held: int = 0, *, fixed: int = 0, floor: int = 1) -> RankRequest:
    """Return the request of a job of one task that has acknowledged what it holds."""
    return RankRequest((name, 0), cores, held, held, fixed, floor)


def masks(answer: dict[RankKey, int] | NoPlacement | None) -> dict[str, int]:
    """Return the masks by job."""
    assert isinstance(answer, dict)
    return {name: mask for (name, _), mask in answer.items()}


def answering(**by_job: int) -> PlacementKernel:
    """Return a kernel that always gives these masks."""
    return lambda _: {(name, 0): mask for name, mask in by_job.items()}


class TestStay:
    """The answer in which nobody moves."""

    def test_who_shrinks_keeps_part_of_its_own(self) -> None:
        """A shrink keeps the first cores, and a newcomer starts from the other end."""
        assert masks(place_in_place([request("a", 2, 0b1111), request("b", 1)], FOUR)) == {"a": 0b0011, "b": 0b1000}

    def test_who_grows_keeps_all_of_its_own(self) -> None:
        """A grow adds free cores."""
        assert masks(place_in_place([request("a", 3, 0b1001)], FOUR)) == {"a": 0b1011}

    def test_cores_are_whole(self) -> None:
        """All hardware threads of a core go together."""
        assert masks(place_in_place([request("a", 1, 0b1111), request("b", 1)], TWO_THREADS)) == {
            "a": 0b0011,
            "b": 0b1100,
        }

    def test_a_fixed_request_keeps_its_mask(self) -> None:
        """A pin may name one thread of a core, and nobody else gets the other."""
        requests = [request("a", 1, 0b0011), request("b", 1, fixed=0b0001)]

        assert masks(place_in_place(requests, TWO_THREADS)) == {"a": 0b1100, "b": 0b0001}

    def test_too_many_cores_are_none(self) -> None:
        """Counts that do not fit have no answer."""
        assert place_in_place([request("a", 3, 0b0111), request("b", 2)], FOUR) is None

    @given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=4), st.permutations(range(8)))
    def test_is_disjoint_and_reachable(self, wishes: list[tuple[int, bool]], order: Sequence[int]) -> None:
        """Whenever the counts fit, the masks are disjoint, have the counts, and can be reached."""
        cores, free, requests = Cores(tuple(1 << c for c in range(8))), list(order), []
        for n, (count, started) in enumerate(wishes):
            held = sum(1 << free.pop() for _ in range(min(len(free), 2))) if started else 0
            requests.append(request(f"j{n}", count, held))
        answer = place_in_place(requests, cores)
        if answer is None:
            assert sum(s.cores for s in requests) > 8
            return
        assert sum(answer.values()).bit_count() == sum(s.cores for s in requests)
        assert is_reachable({s.key: TaskState(s.held, s.granted, answer[s.key], s.floor) for s in requests})


class TestPlaceReachably:
    """The kernel first, and a way out."""

    def test_the_kernels_answer_counts(self) -> None:
        """An answer that can be reached is taken as it is."""
        assert masks(place([request("a", 1, 1)], FOUR, answering(a=8))) == {"a": 8}

    def test_a_swap_that_nobody_can_perform_is_not_taken(self) -> None:
        """When the kernel asks two one-core tasks to change places both stay."""
        requests = [request("a", 1, 1), request("b", 1, 2)]

        assert masks(place(requests, Cores((1, 2)), answering(a=2, b=1))) == {"a": 1, "b": 2}

    def test_without_the_kernels_answer_everybody_stays(self) -> None:
        """A kernel that finds nothing leaves the fallback."""
        assert masks(place([request("a", 1, 2)], FOUR, lambda _: None)) == {"a": 2}

    def test_a_layout_counts_before_the_kernel(self) -> None:
        """Jobs with a layout are fixed for the kernel, which sees them so."""
        cores = Cores.of([(n // 2, n // 2, 1 << n) for n in range(4)])
        seen: list[RankRequest] = []

        def kernel(requests: Sequence[RankRequest]) -> dict[RankKey, int] | None:
            seen.extend(requests)
            return {s.key: s.fixed or 0b0101 for s in requests}

        requests = [replace(request("a", 2), layout=Layout("spread")), request("b", 2)]
        assert masks(place(requests, cores, kernel)) == {"a": 0b1010, "b": 0b0101}
        assert [s.fixed for s in seen] == [0b1010, 0]

    def test_a_strict_layout_without_room_is_refused(self) -> None:
        """The reason is the layout's."""
        cores = Cores.of([(n // 2, n // 2, 1 << n) for n in range(4)])
        requests = [request("r", 1, 1, fixed=1), request("s", 1, 4, fixed=4), replace(request("a", 2), layout=STRICT)]
        answer = place(requests, cores, lambda _: None)

        assert isinstance(answer, NoPlacement)
        assert answer.job == "a"

    def test_best_effort_gives_way_where_it_cannot_be_reached(self) -> None:
        """Two full sockets cannot be mixed by disjoint grants: the one that would like to spread stays."""
        cores = Cores.of([(n // 2, n // 2, 1 << n) for n in range(4)])
        requests = [
            replace(request("a", 2, 0b0011, floor=2), layout=Layout("spread")),
            request("b", 2, 0b1100, floor=2),
        ]

        assert masks(place(requests, cores, lambda _: None)) == {"a": 0b0011, "b": 0b1100}

    def test_threads_are_kept_together(self) -> None:
        """Where threads are handed out the kernel's answer is exchanged into whole cores."""
        wholes = [(0, 0, 0b0101), (0, 0, 0b1010)]
        cores = Cores.of([(0, 0, 1 << n) for n in range(4)], wholes)

        answer = place([request("a", 2), request("b", 2)], cores, answering(a=0b0011, b=0b1100))
        assert sorted(masks(answer).values()) == [0b0101, 0b1010]

    def test_pins_that_cannot_be_reached_are_refused(self) -> None:
        """Two one-core tasks pinned to each other's core cannot be placed at all."""
        requests = [request("a", 1, 1, fixed=2), request("b", 1, 2, fixed=1)]

        assert place(requests, Cores((1, 2)), lambda _: None) == NEEDS_SWAP
