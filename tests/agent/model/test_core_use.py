# SPDX-License-Identifier: Apache-2.0
"""What jobs use of a node, as words of a comment."""

from __future__ import annotations

import pytest
from drom.agent.model.core_use import CoreUse, NodeUse, read_uses, total_use, write_use
from hypothesis import given
from hypothesis import strategies as st

WORD = "drom:use:n1=held:3600+4,lent:120+2,borrowed:0+0,at:1000"
N1 = NodeUse(1000, CoreUse(3600, 120, 0), CoreUse(4, 2, 0))
TOTALS, CORES = (st.builds(CoreUse, *[st.integers(0, most)] * 3) for most in (10**14, 10**5))
USES = st.builds(NodeUse, st.integers(0, 10**11), TOTALS, CORES)


def test_a_word_is_written_and_read() -> None:
    """Fractions of core-seconds are rounded."""
    assert write_use("", "n1", N1._replace(total=CoreUse(3600.4, 119.9, 0))) == WORD
    assert read_uses(WORD) == {"n1": N1}


def test_other_words_are_kept() -> None:
    """Those of other nodes, of job_submit.lua and of people."""
    comment = f"drom:malleable=2:8 see ticket 12 {WORD} drom:use:n10=held:1+1,lent:0+0,borrowed:0+0,at:5"
    written = write_use(comment, "n1", NodeUse(2000, CoreUse(7000), CoreUse()))

    assert written == (
        "drom:malleable=2:8 see ticket 12 drom:use:n10=held:1+1,lent:0+0,borrowed:0+0,at:5 "
        "drom:use:n1=held:7000+0,lent:0+0,borrowed:0+0,at:2000"
    )


def test_a_total_goes_on_with_the_cores_of_the_last_word() -> None:
    """On the nodes that the job still has; elsewhere it used nothing since."""
    comment = f"{WORD} drom:use:n2=held:10+1,lent:0+0,borrowed:10+1,at:900"

    assert total_use(comment, ("n1", "n2"), 1100) == CoreUse(3600 + 400 + 10 + 200, 120 + 200, 10 + 200)
    assert total_use(comment, ("n2",), 1100) == CoreUse(3600 + 10 + 200, 120, 10 + 200)
    assert total_use(comment, ("n1", "n2"), 0) == CoreUse(3610, 120, 10)


@pytest.mark.parametrize("comment", ["", "drom:malleable=1:2", WORD.replace("lent", "sent"), "x" + WORD, WORD + "x"])
def test_other_comments_say_nothing(comment: str) -> None:
    """Broken words are not read."""
    assert total_use(comment, ("n1",), 0) is None


@given(st.dictionaries(st.from_regex(r"[a-z0-9._-]{1,10}", fullmatch=True), USES, max_size=5), st.text(max_size=40))
def test_words_of_all_nodes_stand_beside_any_text(uses: dict[str, NodeUse], text: str) -> None:
    """Each is read as it was written."""
    others = read_uses(text)
    for node, use in uses.items():
        text = write_use(text, node, use)

    assert read_uses(text) == others | uses
