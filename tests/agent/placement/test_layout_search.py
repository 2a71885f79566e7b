# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import pytest
from drom.agent.model import layouts
from drom.agent.model.cores import Cores
from drom.agent.model.layouts import ANY, Layout
from drom.agent.placement.layout_search import place_layouts
from drom.agent.placement.ranks import NoPlacement, RankRequest
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Sequence

TWO = Cores.of([(n // 4, n // 4, 1 << n) for n in range(8)])
"""Two sockets of four cores."""
NUMA = Cores.of([(n // 4, n // 2, 1 << n) for n in range(8)])
"""Two sockets of two memory domains of two cores."""
COMPACT, SPREAD = Layout("compact"), Layout("spread")
STRICT_COMPACT, STRICT_SPREAD = Layout("compact", strict=True), Layout("spread", strict=True)


def request(name: str, cores: int, now: int = 0, layout: Layout = ANY, *, fixed: int = 0, rank: int = 0) -> RankRequest:
    """Return the request of a task that has `now` and is to keep it."""
    return RankRequest((name, rank), cores, now, now, fixed, target=now, layout=layout)


def masks(requests: Sequence[RankRequest], cores: Cores = TWO) -> dict[str, int]:
    """Return the masks by job and rank."""
    answer = place_layouts(requests, cores)
    assert isinstance(answer, dict), answer
    return {f"{name}{rank or ''}": mask for (name, rank), mask in answer.items()}


def per_socket(mask: int, cores: Cores = TWO) -> list[int]:
    """Return the cores of a mask by socket."""
    return [sum(1 for n in cores.numbers(mask) if cores.socket_of[n] == s) for s in range(len(cores.sizes))]


class TestCompact:
    """Each task on as few sockets as its cores need."""

    def test_a_new_job_takes_the_socket_nobody_uses(self) -> None:
        """Beside a job in socket 0 a new one starts at the other end."""
        assert masks([request("a", 2, 0b0011), request("b", 3, 0, COMPACT)]) == {"b": 0b11100000}

    def test_stays_where_it_is(self) -> None:
        """A job that keeps its count keeps its very cores, whoever comes."""
        assert masks([request("a", 3, 0b1101, COMPACT), request("b", 4, 0, COMPACT)])["a"] == 0b1101

    def test_grows_in_its_socket(self) -> None:
        """Cores are added beside those it has."""
        assert masks([request("a", 3, 0b0110, COMPACT)]) == {"a": 0b0111}

    def test_shrinks_into_one_socket(self) -> None:
        """A job of two sockets that now fits one leaves the other."""
        assert masks([request("a", 4, 0b00111111, COMPACT)]) == {"a": 0b1111}

    def test_tasks_of_a_job_go_together(self) -> None:
        """Tasks are compact each, and prefer the socket of their job."""
        tasks = [request("b", 2, 0, COMPACT, rank=rank) for rank in (0, 1)]

        assert per_socket(sum(masks([request("a", 2, 0b11), *tasks]).values())) == [0, 4]

    def test_makes_do_with_two_sockets(self) -> None:
        """Where no socket has room for it, best effort spills over as few as it can."""
        rigid = [request("a", 2, fixed=0b11), request("c", 2, fixed=0b110000)]

        assert per_socket(masks([*rigid, request("b", 3, 0, COMPACT)])["b"]) in ([1, 2], [2, 1])

    def test_strict_refuses_to_spill(self) -> None:
        """Where no socket has room for it, strict says so, with numbers."""
        rigid = [request("a", 2, fixed=0b11), request("c", 1, fixed=0b010000)]

        assert place_layouts([*rigid, request("b", 4, 0, STRICT_COMPACT)], TWO) == NoPlacement(
            "compact! of job b needs 4 CPUs in one socket: it can have 2 in socket 0, 3 in socket 1.", "b"
        )

    def test_strict_jobs_make_room_for_each_other(self) -> None:
        """A search finds the one way in which all strict jobs fit."""
        found = masks(
            [
                request("a", 1, 0b0001, STRICT_COMPACT),
                request("b", 2, 0b00110000, STRICT_COMPACT),
                request("c", 1, 0, STRICT_COMPACT),
                request("d", 4, 0, STRICT_COMPACT),
            ]
        )

        assert {name: max(per_socket(mask)) for name, mask in found.items()} == {"a": 1, "b": 2, "c": 1, "d": 4}

    def test_takes_few_memory_domains(self) -> None:
        """In its socket it fills a memory domain before it begins another."""
        assert masks([request("a", 1, 0b0001), request("b", 2, 0, COMPACT)], NUMA)["b"] in (0b110000, 0b11000000)

    def test_a_strict_job_left_otherwise_does_not_block_the_node(self) -> None:
        """A strict job that lies otherwise already is put right where that can be, and makes do where not."""
        strict = request("a", 2, 0b00010001, STRICT_COMPACT)
        rigid = request("c", 3, fixed=0b11100000)

        assert masks([strict])["a"] == 0b0011
        assert place_layouts([strict, rigid, request("d", 3, fixed=0b1110)], TWO) == {("a", 0): 0b00010001}


class TestSpread:
    """A job's cores equally over all sockets."""

    def test_a_task_gets_as_many_of_each_socket(self) -> None:
        """Four cores are two of each."""
        assert masks([request("a", 4, 0, SPREAD)]) == {"a": 0b11001100}

    def test_tasks_of_a_job_get_a_socket_each(self) -> None:
        """A job of two tasks lies on both sockets, each task on one."""
        found = masks([request("a", 2, 0, SPREAD, rank=rank) for rank in (0, 1)])

        assert sorted(map(per_socket, found.values())) == [[0, 2], [2, 0]]

    def test_odd_tasks_are_split(self) -> None:
        """Three tasks of two cores on two sockets are three cores on each."""
        found = masks([request("a", 2, 0, STRICT_SPREAD, rank=rank) for rank in (0, 1, 2)])

        assert per_socket(sum(found.values())) == [3, 3]
        assert sorted(map(per_socket, found.values())) == [[0, 2], [1, 1], [2, 0]]

    def test_tasks_of_an_unchanged_job_stay(self) -> None:
        """Tasks that are split over sockets stay so while their job lies as asked."""
        tasks = [request("a", 3, 0b00010011, SPREAD), request("a", 3, 0b01100100, SPREAD, rank=1)]

        assert masks([*tasks, request("b", 2)]) == {"a": 0b00010011, "a1": 0b01100100}

    def test_is_divided_over_memory_domains_too(self) -> None:
        """One core of each memory domain where four domains have four cores for it."""
        found = masks([request("a", 4, 0, SPREAD)], NUMA)["a"]

        assert [(found >> 2 * domain & 3).bit_count() for domain in range(4)] == [1, 1, 1, 1]

    def test_shrinks_by_memory_domain(self) -> None:
        """What is given up leaves the rest spread."""
        assert masks([request("a", 4, 0xFF, SPREAD)], NUMA) == {"a": 0b01010101}

    def test_strict_refuses_an_uneven_answer(self) -> None:
        """Three and one is not even; best effort takes it."""
        rigid = request("r", 3, fixed=0b01110000)

        assert per_socket(masks([rigid, request("a", 4, 0, SPREAD)])["a"]) == [3, 1]
        assert place_layouts([rigid, request("a", 4, 0, STRICT_SPREAD)], TWO) == NoPlacement(
            "spread! of job a needs 4 CPUs divided equally over 2 sockets: it can have 4 in socket 0, 1 in socket 1.",
            "a",
        )

    def test_takes_cores_that_are_given_up(self) -> None:
        """A neighbour that shrinks loses what it gives up, not what it keeps."""
        assert masks([request("a", 6, 0xFF), request("b", 2, 0, SPREAD)]) == {"b": 0b10001000}


class TestPerSocket:
    """N cores of a job on each of as few sockets as it needs."""

    def test_counts_the_whole_job(self) -> None:
        """Two tasks of one core with per-socket=1 lie on two sockets."""
        found = masks([request("a", 1, 0, Layout("per_socket", 1), rank=rank) for rank in (0, 1)])

        assert per_socket(sum(found.values())) == [1, 1]

    def test_uses_as_few_sockets_as_it_needs(self) -> None:
        """Two cores with per-socket=2 lie on one socket."""
        assert per_socket(masks([request("a", 2, 0, Layout("per_socket", 2))])["a"]) == [0, 2]

    def test_strict_says_what_is_missing(self) -> None:
        """The sentence names N and the room."""
        rigid = request("r", 4, fixed=0b11110000)

        assert place_layouts([rigid, request("a", 3, 0, Layout("per_socket", 2, strict=True))], TWO) == NoPlacement(
            "per-socket=2! of job a needs 3 CPUs in 2 sockets, at most 2 in each: "
            "it can have 4 in socket 0, 0 in socket 1.",
            "a",
        )

    def test_counts_a_pinned_task_and_judges_it_not(self) -> None:
        """A task with an exact mask takes its socket's share, and strictness ends where it is in the way."""
        pinned = request("a", 2, 0b11, Layout("per_socket", 1, strict=True), fixed=0b11)

        found = masks([pinned, request("a", 1, 0, Layout("per_socket", 1, strict=True), rank=1)])
        assert per_socket(found["a1"]) == [0, 1]


def test_only_layouts_are_arranged() -> None:
    """Jobs without a layout and exact masks are left to the kernel."""
    assert place_layouts([request("a", 2), request("b", 1, layout=COMPACT, fixed=1)], TWO) == {}


def test_best_effort_can_be_left_out() -> None:
    """The last resort arranges only what is strict."""
    requests = [request("a", 2, layout=SPREAD), request("b", 1, layout=STRICT_COMPACT)]

    assert place_layouts(requests, TWO, best_effort=False).keys() == {("b", 0)}  # type: ignore[union-attr]


MACHINES = [TWO, NUMA, Cores.of([(n % 3, n % 3, 1 << n) for n in range(7)]), Cores((1, 2, 4))]
LAYOUTS = [ANY, COMPACT, SPREAD, *(Layout("per_socket", n) for n in (1, 2))]


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Cores, list[RankRequest]]:
    """Draw a machine and requests that fit it: new, running or fixed, of jobs with any layout."""
    cores = draw(st.sampled_from(MACHINES))
    pool = draw(st.permutations(list(cores)))
    requests, left = [], len(pool)
    for job in range(draw(st.integers(1, 4))):
        layout = replace(draw(st.sampled_from(LAYOUTS)), strict=draw(st.booleans()))
        for rank in range(draw(st.sampled_from([1, 1, 2]))):
            had = draw(st.integers(0, 3))
            now, pool = sum(pool[:had]), pool[had:]
            pinned = bool(now) and draw(st.integers(0, 4)) == 0
            count = cores.count(now) if pinned else draw(st.integers(1, 4))
            if count <= left:
                requests.append(request(f"j{job}", count, now, layout, fixed=now if pinned else 0, rank=rank))
                left -= count
    return cores, requests


def possible(requests: Sequence[RankRequest], cores: Cores) -> bool:
    """Say, by trying all, whether the strict groups that lie as asked today or are new all can."""
    groups: dict[object, list[RankRequest]] = {}
    for one in requests:
        if one.layout.strict and one.layout.kind != "default":
            groups.setdefault(one.key if one.layout.kind == "compact" else one.key[0], []).append(one)
    room = list(cores.sizes)
    for one in requests:
        room = [a - b for a, b in zip(room, per_socket(one.fixed, cores), strict=True)]
    bound = []
    for group in groups.values():
        now = [sum(part) for part in zip(*(per_socket(one.target, cores) for one in group), strict=True)]
        if not any(one.fixed for one in group) and layouts.is_satisfied(group[0].layout, now, cores.sizes):
            bound.append((group[0].layout, sum(one.cores for one in group)))
    return fits(bound, room, cores)


def fits(groups: Sequence[tuple[Layout, int]], room: Sequence[int], cores: Cores) -> bool:
    """Say whether some amounts of every group lie as asked together."""
    if not groups:
        return True
    (layout, count), *rest = groups
    return any(
        sum(way) == count
        and layouts.is_satisfied(layout, way, cores.sizes)
        and fits(rest, [free - amount for free, amount in zip(room, way, strict=True)], cores)
        for way in product(*(range(free + 1) for free in room))
    )


@settings(max_examples=400, deadline=None)
@given(nodes())
def test_finds_an_answer_just_when_there_is_one(node: tuple[Cores, list[RankRequest]]) -> None:
    """Masks are disjoint, of the right size and off the fixed ones; there are none only if none can hold."""
    cores, requests = node
    answer = place_layouts(requests, cores)
    if isinstance(answer, NoPlacement):
        assert answer.reason.endswith(".")
        assert not possible(requests, cores)
        return
    assert possible(requests, cores)
    laid_out = [one for one in requests if one.layout.kind != "default" and not one.fixed]
    assert answer.keys() == {one.key for one in laid_out}
    taken = sum(one.fixed for one in requests)
    for one in laid_out:
        assert cores.count(answer[one.key]) == one.cores
        assert not answer[one.key] & taken
        taken |= answer[one.key]


@settings(max_examples=400, deadline=None)
@given(nodes())
def test_its_own_answer_is_left_as_it_is(node: tuple[Cores, list[RankRequest]]) -> None:
    """Asked again once everybody is where it said, it moves nobody, whether all lie as asked or make do."""
    cores, requests = node
    answer = place_layouts(requests, cores)
    if isinstance(answer, NoPlacement):
        return
    settled = [
        replace(one, held=answer[one.key], target=answer[one.key])
        if one.key in answer
        else replace(one, held=one.fixed, target=one.fixed)
        for one in requests
    ]

    assert place_layouts(settled, cores) == answer


def test_what_makes_do_stays_where_it_is_as_good() -> None:
    """A spread job of which one task may not move stays in the socket it has, though another is as good and freer."""
    cores = Cores.of([(0, 0, 1), (0, 0, 8), (0, 0, 64), (1, 1, 2), (1, 1, 16), (2, 2, 4), (2, 2, 32)])
    fixed, free = request("a", 1, 2, SPREAD, fixed=2), request("a", 2, 20, SPREAD, rank=1)
    other = request("b", 3, 73, fixed=73)

    assert place_layouts([other, fixed, free], cores) == {("a", 1): 20}


@pytest.mark.parametrize("strict", [True, False])
def test_a_thousand_tasks_are_no_recursion(strict: bool) -> None:
    """Many strict groups are searched without nesting calls."""
    cores = Cores.of([(n // 256, n // 256, 1 << n) for n in range(1024)])
    requests = [request("a", 1, layout=replace(COMPACT, strict=strict), rank=rank) for rank in range(1024)]

    assert sum(masks(requests, cores).values()) == cores.all
