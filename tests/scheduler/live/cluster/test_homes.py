# SPDX-License-Identifier: Apache-2.0
"""Home partitions: which scheduler adopts which, which orders and jobs concern which, and answers of several as one."""

from __future__ import annotations

import pytest
from drom.agent.text import WordError
from drom.scheduler.live.cluster.homes import (
    SPAN,
    Present,
    adopters,
    first_job,
    home_of,
    merged,
    parse_home,
    parts_of,
)
from hypothesis import given
from hypothesis import strategies as st

HOMES = {"a": 1, "b": 2, "c": 3}
NAMES = st.sampled_from("abcdef")
PRESENT = st.dictionaries(
    st.integers(1, 99),
    st.builds(Present, NAMES, NAMES, st.lists(NAMES, max_size=6, unique=True).map(tuple)),
    max_size=6,
)


@given(st.sets(NAMES), PRESENT)
def test_what_has_no_scheduler_of_its_own_is_adopted_by_one(homes: set[str], present: dict[int, Present]) -> None:
    """Nothing else is; one that leads it already keeps it, and nobody takes a second one while another has none."""
    found = adopters(homes, present)
    own = {one.home for one in present.values()}
    assert found.keys() == (homes - own if present else set())
    for home, key in found.items():
        leaders = {other for other, one in present.items() if home in one.leads}
        assert key in (leaders or present)
    load = {
        key: len({one.home, *one.leads} | {home for home in found if found[home] == key})
        for key, one in present.items()
    }
    new = {key for home, key in found.items() if home not in present[key].leads}
    assert all(load[key] <= min(load.values()) + 1 for key in new)


def test_jobs_belong_to_home_partitions_by_their_numbers() -> None:
    """Numbers of no home partition belong to none, and ranges to all that they touch."""
    assert [first_job(1), home_of(first_job(1), HOMES), home_of(3 * SPAN + 7, HOMES)] == [SPAN + 1, "a", "c"]
    assert [home_of(5, HOMES), home_of(4 * SPAN + 1, HOMES)] == [None, None]
    one, both, array, none = [0, SPAN + 1, SPAN + 9], [0, SPAN + 5, 2 * SPAN + 5], [3 * SPAN + 1, 0, 4], [0, 5, 5]
    assert parts_of([one, both, array, none], HOMES) == {"a": [one, both, none], "b": [both], "c": [array]}


def test_answers_become_one() -> None:
    """Rows name their home partition, texts and numbers are those of the first, and pages are cut."""
    rows = [{"job": 1, "state": "pending", "submitted": 3.0}, {"job": 2, "state": "pending", "submitted": 1.0}]
    answers = {
        home: {"time": time, "jobs": [row], "left": 1, "after": after, "cores": {home: 4}, "refused": [home]}
        for home, row, time, after in (("a", rows[0], 5.0, None), ("b", rows[1], 6.0, 7))
    }
    one, other = ({**row, "home": home} for row, home in zip(rows, "ab", strict=True))
    both = {"time": 5.0, "jobs": [one, other], "left": 2, "after": 7, "cores": {"a": 4, "b": 4}, "refused": ["a", "b"]}
    assert merged(answers, {}) == both
    assert merged(answers, {"limit": 2}) == both
    assert merged(answers, {"limit": 1}) == both | {"jobs": [one], "left": 3, "after": 1}
    entries = {"a": {"entries": [{"job": 1}]}, "b": {"entries": [{"job": 2}]}}
    history = merged({home: answers[home] | entries[home] for home in answers}, {"last": 1})
    assert (history["jobs"], history["entries"]) == ([one], [{"job": 1}])


@pytest.mark.parametrize("text", ["", "a/b", ".", "-a", "a" * 33, "ä"])
def test_names_are_checked(text: str) -> None:
    """A name is part of keys, and of the path of a folder."""
    with pytest.raises(WordError, match="is no name of a home partition"):
        parse_home(text)
