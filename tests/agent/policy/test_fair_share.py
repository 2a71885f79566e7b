# SPDX-License-Identifier: Apache-2.0
"""The rules of who gets how many cores, one by one, in the words of the policy's docstring."""

from __future__ import annotations

from dataclasses import replace

from drom.agent.policy.fair_share import (
    JobCores,
    Wait,
    admit,
    equal_shares,
    grow,
    hold,
    max_min_fair,
    return_to_owners,
    shrink_to,
    split,
)
from hypothesis import given
from hypothesis import strategies as st


def job(
    name: str, cores: int = 0, *, least: int = 1, most: int = 48, tasks: int = 1, user: int = 1, fixed: bool = False
) -> JobCores:
    """Return a job that can use 1 to 48 cores unless told otherwise."""
    return JobCores(name, user, tasks, least, most, cores, fixed)


@st.composite
def towns(draw: st.DrawFn) -> tuple[list[JobCores], int]:
    """Draw running jobs that fit a node, and the node's cores."""
    running = []
    for n in range(draw(st.integers(0, 5))):
        tasks = draw(st.integers(1, 3))
        least = tasks * draw(st.integers(1, 3))
        most = draw(st.integers(least, 30))
        cores = draw(st.integers(least, most))
        running.append(
            job(
                f"j{n}",
                cores,
                least=least,
                most=most,
                tasks=tasks,
                user=draw(st.integers(1, 3)),
                fixed=draw(st.booleans()),
            )
        )
    return running, sum(j.cores for j in running) + draw(st.integers(0, 20))


class TestFill:
    """Dividing whole things as equally as limits allow."""

    @given(st.integers(0, 60), st.lists(st.integers(0, 20), max_size=8))
    def test_is_max_min_fair(self, amount: int, limits: list[int]) -> None:
        """All is given or all are full, and whoever is not full has at most one less than anybody."""
        given_ = max_min_fair(amount, limits)

        assert sum(given_) == min(amount, sum(limits))
        assert all(0 <= got <= limit for got, limit in zip(given_, limits, strict=True))
        hungry = [got for got, limit in zip(given_, limits, strict=True) if got < limit]
        assert not hungry or max(given_) <= min(hungry) + 1

    def test_earlier_places_get_the_remainder(self) -> None:
        """What cannot be divided goes to the first who can use it."""
        assert max_min_fair(5, [3, 3, 3]) == [2, 2, 1]
        assert max_min_fair(7, [1, 9, 9]) == [1, 3, 3]
        assert max_min_fair(8, [1, 9, 9]) == [1, 4, 3]


class TestEqualShares:
    """What each job is entitled to."""

    def test_equal_among_users_then_among_a_users_jobs(self) -> None:
        """Three jobs of one user share what the one job of another has alone."""
        jobs = [job("a", user=1), job("b", user=1), job("c", user=1), job("d", user=2)]

        assert equal_shares(jobs, 48) == {"a": 8, "b": 8, "c": 8, "d": 24}

    def test_what_a_job_cannot_use_is_shared_by_the_others(self) -> None:
        """A share is capped by what was asked, and the rest goes to who can use it."""
        assert equal_shares([job("a", most=4), job("b"), job("c")], 48) == {"a": 4, "b": 22, "c": 22}

    def test_a_fixed_job_counts_for_what_it_has(self) -> None:
        """A job that neither lends nor grows is entitled to what it has."""
        assert equal_shares([job("a", 10, fixed=True), job("b", user=2)], 48) == {"a": 10, "b": 38}


class TestAdmit:
    """An arrival."""

    def test_alone_it_gets_what_it_asks(self) -> None:
        """On an empty node an arrival gets its maximum."""
        assert admit(job("a", most=6), [], 8, 0.5) == {"a": 6}

    def test_free_cores_come_first(self) -> None:
        """Nobody lends while free cores satisfy the arrival."""
        assert admit(job("b", most=4), [job("a", 4)], 8, 0.5) == {"a": 4, "b": 4}

    def test_free_cores_beyond_the_share_are_taken_too(self) -> None:
        """Idle cores are given though the share is smaller."""
        assert admit(job("c"), [job("a", 2, most=2), job("b", 2, most=2)], 12, 0.5) == {"a": 2, "b": 2, "c": 8}

    def test_an_arrival_gets_its_equal_share(self) -> None:
        """Two alike jobs have half the node each."""
        assert admit(job("b"), [job("a", 48)], 48, 0.5) == {"a": 24, "b": 24}

    def test_the_largest_lends_first(self) -> None:
        """Cores come from the job that has most left."""
        running = [job("a", 10), job("b", 30), job("c", 8)]

        assert admit(job("d", most=10), running, 48, 0.5) == {"a": 10, "b": 20, "c": 8, "d": 10}

    def test_sharing_factor_holds_for_each_victim(self) -> None:
        """Nobody loses more than its part of what it has."""
        assert admit(job("c"), [job("a", 8), job("b", 8)], 16, 0.25) == {"a": 6, "b": 6, "c": 4}

    def test_the_sharing_factor_is_taken_as_written(self) -> None:
        """0.29 of 100 cores are 29, although the nearest number of a computer to 0.29 is less."""
        assert admit(job("b", most=100), [job("a", 100, most=100)], 100, 0.29) == {"a": 71, "b": 29}

    def test_nobody_lends_below_its_own_share(self) -> None:
        """Jobs that have no more than their share keep it when the arrival's minimum is met."""
        assert admit(job("d"), [job("a", 8), job("b", 4), job("c", 4)], 16, 1.0) == {"a": 4, "b": 4, "c": 4, "d": 4}

    def test_nobody_lends_below_its_minimum(self) -> None:
        """A minimum above the share is kept."""
        assert admit(job("b"), [job("a", 8, least=6)], 8, 1.0) == {"a": 6, "b": 2}

    def test_for_a_minimum_jobs_go_below_their_share(self) -> None:
        """An arrival whose minimum is above its share gets just the minimum."""
        assert admit(job("b", least=6), [job("a", 8)], 8, 1.0) == {"a": 2, "b": 6}

    def test_the_sharing_factor_holds_for_a_minimum_too(self) -> None:
        """Where the minimum needs more than victims may lend, the arrival waits with a sentence."""
        answer = admit(job("b", least=6), [job("a", 8)], 8, 0.5)

        assert answer == Wait("needs at least 6 CPUs: 0 free, running jobs may lend 4.")

    def test_fixed_jobs_lend_nothing(self) -> None:
        """Beside a rigid job an arrival waits."""
        answer = admit(job("b"), [job("a", 8, fixed=True)], 8, 1.0)

        assert answer == Wait("needs at least 1 CPU: 0 free, running jobs may lend 0.")

    def test_a_guests_tasks_get_equal_cores(self) -> None:
        """D26: a guest of five tasks that could borrow 24 cores takes 4 for each, and the mate keeps the rest."""
        mate = job("mate", 48, least=2, tasks=2)

        assert admit(job("guest", least=5, tasks=5), [mate], 48, 0.5) == {"mate": 28, "guest": 20}

    def test_rounding_never_goes_below_the_minimum(self) -> None:
        """A guest whose minimum does not divide by its tasks still gets it."""
        assert admit(job("b", least=5, tasks=3), [job("a", 10)], 10, 0.5) == {"a": 5, "b": 5}

    def test_free_cores_are_not_rounded_away(self) -> None:
        """A job that borrows nothing takes free cores that do not divide by its tasks."""
        assert admit(job("b", tasks=2), [], 7, 0.5) == {"b": 7}

    def test_rounding_leaves_no_free_core_idle(self) -> None:
        """Five free cores are all taken by four tasks, though one of them then has more."""
        assert admit(job("b", least=4, tasks=4), [job("a", 7, most=7)], 12, 0.5) == {"a": 7, "b": 5}

    @given(towns(), st.integers(1, 3), st.integers(1, 4), st.integers(0, 30), st.sampled_from([0.1, 0.25, 0.5, 1.0]))
    def test_bounds_hold(
        self, town: tuple[list[JobCores], int], tasks: int, each: int, more: int, sharing: float
    ) -> None:
        """The node is never overbooked, and minima, maxima, fixed jobs and the sharing factor hold for everybody."""
        running, total = town
        new = job("new", least=tasks * each, most=tasks * each + more, tasks=tasks)

        answer = admit(new, running, total, sharing)

        if isinstance(answer, Wait):
            assert answer.reason.endswith(".")
            return
        assert sum(answer.values()) <= total
        assert new.minimum <= answer["new"] <= new.maximum
        for j in running:
            lent = j.cores - answer[j.name]
            assert 0 <= lent <= (0 if j.fixed else min(j.cores - j.minimum, int(j.cores * sharing)))


class TestHold:
    """An order."""

    def test_free_cores_then_the_largest(self) -> None:
        """An order takes free cores first, then from the largest."""
        assert hold("a", 8, [job("a", 2), job("b", 6), job("c", 3)], 12) == {"a": 8, "b": 2, "c": 2}

    def test_lenders_go_down_to_their_minima(self) -> None:
        """An order knows no sharing factor and no share, only minima."""
        assert hold("a", 7, [job("a", 1), job("b", 7, least=1)], 8) == {"a": 7, "b": 1}

    def test_a_shrink_takes_from_nobody(self) -> None:
        """A job made smaller leaves cores free."""
        assert hold("a", 2, [job("a", 6), job("b", 2)], 8) == {"a": 2, "b": 2}

    def test_too_much_says_what_can_be_had(self) -> None:
        """What minima and fixed jobs do not allow is answered with what could be had."""
        running = [job("a", 2), job("b", 4, least=3), job("c", 2, fixed=True)]

        answer = hold("a", 8, running, 8)

        assert answer == Wait("at most 3 CPUs are available: the other jobs are at their minimum.")

    @given(towns(), st.integers(1, 60))
    def test_bounds_hold(self, town: tuple[list[JobCores], int], cores: int) -> None:
        """The node is never overbooked, nobody goes below its minimum, fixed jobs keep theirs, the order is met."""
        running, total = town
        running = [job("me", 1), *running]
        answer = hold("me", cores, running, total + 1)
        if isinstance(answer, Wait):
            return
        assert answer["me"] == cores
        assert sum(answer.values()) <= total + 1
        assert all(answer[j.name] >= (j.cores if j.fixed else j.minimum) for j in running[1:])


class TestFit:
    """Fewer cores for everybody."""

    def test_the_largest_gives_up_first(self) -> None:
        """What has to go comes from who has most, and nobody goes below the minimum."""
        assert shrink_to([job("a", 6), job("b", 2), job("c", 4, least=3)], 8) == {"a": 3, "b": 2, "c": 3}

    def test_what_cannot_be_is_said(self) -> None:
        """Minima and fixed jobs may not fit."""
        answer = shrink_to([job("a", 4, least=3), job("b", 4, fixed=True)], 6)

        assert answer == Wait("the running jobs would be below their minima.")


class TestGiveBack:
    """Cores come free and go to whom they were taken from."""

    def test_owners_get_what_they_are_owed(self) -> None:
        """Each owner takes back its own and no more."""
        running = [job("a", 4), job("b", 4), job("c", 2)]

        assert return_to_owners(running, {"a": 3, "b": 1}, 16) == {"a": 7, "b": 5, "c": 2}

    def test_no_more_than_is_free_or_can_be_used(self) -> None:
        """What is free and a job's maximum bound what it takes back; fixed jobs take nothing."""
        running = [job("a", 4, most=5), job("b", 4, fixed=True), job("c", 4)]

        assert return_to_owners(running, {"a": 3, "b": 3, "c": 9}, 16) == {"a": 5, "b": 4, "c": 7}


class TestGrow:
    """Free cores that nobody is owed."""

    def test_the_smallest_grows_first(self) -> None:
        """Free cores level jobs from below."""
        assert grow([job("a", 5), job("b", 1), job("c", 3)], 12) == {"a": 5, "b": 4, "c": 3}

    def test_maxima_and_fixed_jobs_are_respected(self) -> None:
        """What nobody can use stays free."""
        assert grow([job("a", 1, most=2), job("b", 1, fixed=True)], 9) == {"a": 2, "b": 1}

    def test_where_nobody_gains_enough_one_job_gets_what_others_leave(self) -> None:
        """Two cores for two jobs of five, of which each is to gain two, go to the first."""
        assert grow([job("a", 5), job("b", 5)], 12, margin=0.4) == {"a": 7, "b": 5}
        assert grow([job("a", 5), job("b", 5)], 11, margin=0.4) == {"a": 5, "b": 5}

    def test_who_rests_does_not_grow_and_who_has_rested_takes_any_gain(self) -> None:
        """Rest and its end decide before the margin does."""
        jobs = [replace(job("a", 5), rests=True), replace(job("b", 5), due=True)]

        assert grow(jobs, 11, margin=0.4) == {"a": 5, "b": 6}

    def test_a_cap_stops_all_jobs_of_a_user_together(self) -> None:
        """Two jobs of one user grow to the cap, and what is left goes to others."""
        jobs = [job("a", 2), job("b", 2), job("c", 4, most=5, user=2)]

        assert grow(jobs, 12, cap=5) == {"a": 3, "b": 2, "c": 5}

    @given(towns())
    def test_no_usable_core_stays_free(self, town: tuple[list[JobCores], int]) -> None:
        """After growing, cores are free only when every malleable job is at its maximum."""
        running, total = town

        after = grow(running, total)

        assert sum(after.values()) <= total
        assert all(j.cores <= after[j.name] <= max(j.cores, j.maximum) for j in running)
        full = all(j.fixed or after[j.name] == j.maximum for j in running)
        assert full or sum(after.values()) == total


@given(st.integers(0, 99), st.integers(1, 9))
def test_tasks_of_a_job_differ_by_at_most_one_core(cores: int, tasks: int) -> None:
    """A split is whole, and the first tasks have more."""
    parts = split(cores, tasks)

    assert sum(parts) == cores
    assert parts == sorted(parts, reverse=True)
    assert parts[0] - parts[-1] <= 1
