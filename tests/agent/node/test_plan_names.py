# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from drom.agent.model.jobs import Arrival

from dromlib import layout
from tests.support.nodes import MACHINES, make_node


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("a", ["a", "a.2", "a.3"]),
        ("7", ["job-7", "job-7.2", "job-7.3"]),
        ("drom-7", ["drom-7.2", "drom-7.3", "drom-7.4"]),
        ("a" * 63, ["a" * 63, f"{'a' * 61}.2", f"{'a' * 61}.3"]),
        ("7" * 63, [f"job-{'7' * 59}", f"job-{'7' * 57}.2", f"job-{'7' * 57}.3"]),
        ("\N{EURO SIGN}" * 21, ["\N{EURO SIGN}" * 21, "\N{EURO SIGN}" * 20 + ".2", "\N{EURO SIGN}" * 20 + ".3"]),
    ],
)
def test_every_job_has_a_name_that_a_slot_has_room_for(wanted: str, names: list[str]) -> None:
    """Jobs that ask for one name are told apart also by what the next agent reads in their slots."""
    node = make_node(MACHINES[1])

    given = [node.arrive(Arrival(pid, 7, 1, wanted, "malleable"), 0.0)[0].job for pid in (100, 101, 102)]

    assert given == names
    assert [layout.cut_text(name, layout.NAME_SIZE).rstrip(b"\0").decode() for name in given] == given


def test_names_of_ten_jobs_and_more_are_cut_once_more() -> None:
    """A longer number leaves less room for what was asked for."""
    node = make_node(MACHINES[2])
    given = [node.arrive(Arrival(pid, 7, 1, "a" * 63, "malleable"), 0.0)[0].job for pid in range(100, 111)]

    assert given[9:] == [f"{'a' * 60}.10", f"{'a' * 60}.11"]
