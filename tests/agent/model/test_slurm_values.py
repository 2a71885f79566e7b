# SPDX-License-Identifier: Apache-2.0
"""Single values as Slurm prints them."""

from __future__ import annotations

import pytest
from drom.agent.model import slurm_values as values
from drom.agent.text import WordError


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("30:00", 30),
        ("1:00:00", 60),
        ("2-03:05:00", 3065),
        ("00:00:30", 1),
        ("4294967293:00", 4294967293),
        ("UNLIMITED", None),
        ("N/A", None),
    ],
)
def test_a_time_limit_is_in_whole_minutes(text: str, minutes: int | None) -> None:
    """Seconds count as a minute that has begun, and no limit is None."""
    assert values.limit(text) == minutes


def test_a_time_is_in_seconds_since_1970() -> None:
    """Slurm's commands print times in UTC where TZ says so; a time that is not known is None."""
    assert values.moment("2026-11-26T17:06:36") == 1795712796
    assert values.moment("10196-02-29T00:00:00") == values.moment("9996-02-29T00:00:00")
    assert [values.moment(text) for text in ("N/A", "Unknown", "NONE")] == [None, None, None]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ("n1",)),
        ("rec[1-3]", ("rec1", "rec2", "rec3")),
        ("a,b[08-10,12],c", ("a", "b08", "b09", "b10", "b12", "c")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("n[1-2]-ib", ("n1-ib", "n2-ib")),
        ("(null)", ()),
        ("", ()),
    ],
)
def test_a_list_of_nodes_is_expanded(text: str, names: tuple[str, ...]) -> None:
    """Ranges keep their leading zeros, and several of them multiply."""
    assert values.hosts(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n[3-1]", "n]1", "n[a]", "n[[1]]", "n[]", "n[1-9999999]", "n[1-999]m[1-999]"])
def test_a_broken_or_endless_list_of_nodes_is_an_error(text: str) -> None:
    """A list that names too many nodes is refused before it is expanded."""
    with pytest.raises(WordError, match=r"is not a list of nodes such as|names more than 100000 nodes"):
        values.hosts(text)


def test_licences_have_counts() -> None:
    """A name alone counts one."""
    assert values.licences("matlab:2,drom_gate") == (("matlab", 2), ("drom_gate", 1))
    assert values.licences("(null)") == ()


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (values.number, "3x"),
        (values.number, "9" * 30),
        (values.moment, "yesterday"),
        (values.moment, "2026-13-01T00:00:00"),
        (values.limit, "soon"),
        (values.limit, "1-30:00"),
        (values.licences, ":3"),
        (values.licences, "a:b"),
    ],
)
def test_a_broken_value_is_an_error(read: object, text: str) -> None:
    """No value is guessed."""
    assert callable(read)
    with pytest.raises(WordError):
        read(text)
