# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from drom.agent.placement.transitions import TaskState, is_reachable, next_grants
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Mapping


def at(now: int, target: int, floor: int = 1) -> TaskState:
    """Return a task that has acknowledged `now` and shall have `target`."""
    return TaskState(now, now, target, floor)


def acknowledged(tasks: Mapping[str, TaskState], grants: Mapping[str, int]) -> dict[str, TaskState]:
    """Return the standings once these grants have been published and acknowledged."""
    return {k: TaskState(grants[k], grants[k], s.target, s.floor) if k in grants else s for k, s in tasks.items()}


def steps(tasks: Mapping[str, TaskState]) -> list[dict[str, int]]:
    """Return every step until nothing is left to publish, each acknowledged at once."""
    found = []
    now = dict(tasks)
    while grants := next_grants(now):
        found.append(grants)
        now = acknowledged(now, grants)
    return found


class TestStories:
    """Moves that a node makes every day."""

    def test_a_guest_takes_the_second_socket(self) -> None:
        """H2: of a mate's two ranks the first shrinks, the second moves over, and only then the guest starts."""
        tasks = {"rank0": at(0x0F, 0x03), "rank1": at(0xF0, 0x0C), "guest": at(0, 0xF0)}

        assert steps(tasks) == [{"rank0": 0x03}, {"rank1": 0x0C}, {"guest": 0xF0}]

    def test_everybody_returns_when_the_guest_has_ended(self) -> None:
        """The second rank goes home first, and the first one takes what it left."""
        tasks = {"rank0": at(0x03, 0x0F), "rank1": at(0x0C, 0xF0)}

        assert steps(tasks) == [{"rank1": 0xF0}, {"rank0": 0x0F}]

    def test_a_floor_makes_a_move_grow_first(self) -> None:
        """A task that may not go below two cores keeps what it has while it gets its new ones one by one."""
        tasks = {"a": at(0b00011, 0b01100, floor=2), "b": at(0b01000, 0b10000)}

        assert steps(tasks) == [{"a": 0b00111, "b": 0b10000}, {"a": 0b01100}]

    def test_one_core_cannot_be_swapped(self) -> None:
        """Two tasks of one core each have no disjoint way to change places."""
        tasks = {"a": at(1, 2), "b": at(2, 1)}

        assert next_grants(tasks) == {}
        assert not is_reachable(tasks)

    def test_two_cores_exchange_one(self) -> None:
        """Two tasks of two cores exchange one: both shrink to what stays theirs, then both grow."""
        tasks = {"a": at(0b0011, 0b0110), "b": at(0b1100, 0b1001)}

        assert steps(tasks) == [{"a": 0b0010, "b": 0b1000}, {"a": 0b0110, "b": 0b1001}]
        assert is_reachable(tasks)

    def test_a_free_core_lets_a_swap_begin(self) -> None:
        """A swap of sockets works as soon as one task finds part of its target free."""
        tasks = {"a": at(0b0011, 0b11100), "b": at(0b1100, 0b0011)}

        assert steps(tasks)[0] == {"a": 0b10000}
        assert is_reachable(tasks)

    def test_a_new_task_waits_for_its_whole_target(self) -> None:
        """A program that has not started gets all of its target or nothing."""
        tasks = {"new": at(0, 0b11), "old": at(0b110, 0b100)}

        assert next_grants(tasks) == {"old": 0b100}
        assert next_grants(acknowledged(tasks, {"old": 0b100})) == {"new": 0b11}

    def test_a_grant_on_its_way_keeps_what_it_held(self) -> None:
        """CPUs that are asked back and not yet acknowledged go to nobody."""
        tasks = {"old": TaskState(0b11, 0b01, 0b01), "new": at(0, 0b10)}

        assert next_grants(tasks) == {}

    def test_a_newer_target_supersedes_a_grant_not_yet_applied(self) -> None:
        """A task asked to shrink that is to grow again is told so at once: it still holds the CPUs."""
        tasks = {"a": TaskState(0b1111, 0b0011, 0b0111)}

        assert next_grants(tasks) == {"a": 0b0111}

    def test_nothing_to_do_is_no_step(self) -> None:
        """Tasks that have their targets are left alone."""
        assert next_grants({"a": at(0b01, 0b01), "b": at(0b10, 0b10)}) == {}
        assert next_grants({}) == {}


@st.composite
def plans(draw: st.DrawFn) -> dict[str, TaskState]:
    """Draw tasks on eight CPUs with disjoint held sets and disjoint targets."""
    holders = draw(st.lists(st.integers(0, 4), min_size=8, max_size=8))
    targets = draw(st.lists(st.integers(0, 4), min_size=8, max_size=8))
    tasks = {}
    for task in range(1, 5):
        held = sum(1 << c for c, who in enumerate(holders) if who == task)
        target = sum(1 << c for c, who in enumerate(targets) if who == task)
        if target:
            granted = held & draw(st.integers(0, 255)) or held
            floor = draw(st.integers(1, max(1, min(granted.bit_count(), target.bit_count()))))
            tasks[f"t{task}"] = TaskState(held, granted, target, floor)
    return tasks


@given(plans(), st.data())
def test_held_sets_never_meet(tasks: dict[str, TaskState], data: st.DataObject) -> None:
    """Whoever acknowledges when: no two tasks ever hold one CPU, and nobody is granted less than its floor."""
    grants: dict[str, list[int]] = {k: [s.held, s.granted] if s.held else [] for k, s in tasks.items()}
    for _ in range(30):
        held = dict.fromkeys(tasks, 0)
        for k, masks in grants.items():
            for mask in masks:
                held[k] |= mask
        assert not any(held[a] & held[b] for a, b in combinations(tasks, 2))
        now = {k: TaskState(held[k], grants[k][-1] if grants[k] else 0, s.target, s.floor) for k, s in tasks.items()}
        for k, mask in next_grants(now).items():
            assert mask.bit_count() >= min(tasks[k].floor, tasks[k].target.bit_count())
            grants[k].append(mask)
        late = [k for k in tasks if len(grants[k]) > 1]
        if not late:
            break
        k = data.draw(st.sampled_from(late))
        del grants[k][: data.draw(st.integers(1, len(grants[k]) - 1))]


@given(plans())
def test_what_is_called_reachable_is_reached(tasks: dict[str, TaskState]) -> None:
    """A plan is reachable just when acknowledging every step ends with every target granted."""
    now = acknowledged(tasks, {k: s.granted for k, s in tasks.items()})
    for _ in range(20):
        now = {
            k: TaskState(g, g, s.target, s.floor) if (g := next_grants(now).get(k)) is not None else s
            for k, s in now.items()
        }

    assert next_grants(now) == {}
    assert is_reachable(tasks) == all(s.granted == s.target for s in now.values())
