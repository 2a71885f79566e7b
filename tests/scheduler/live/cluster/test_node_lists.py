# SPDX-License-Identifier: Apache-2.0
"""Lists of nodes with ranges."""

from __future__ import annotations

import pytest
from drom.agent.text import WordError
from drom.scheduler.live.cluster.node_lists import MOST_NODES, parse_nodes


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", "n1"),
        ("n2,n1,n2", "n1 n2"),
        ("n1,n3-n5", "n1 n3 n4 n5"),
        ("n[1-3,7]", "n1 n2 n3 n7"),
        ("n[09-11]-ib,m[2],x", "m2 n09-ib n10-ib n11-ib x"),
        ("node-1,a1-b2", "a1-b2 node-1"),
        ("rack1-n01-rack1-n03", "rack1-n01 rack1-n02 rack1-n03"),
        ("1-3", "1 2 3"),
    ],
)
def test_ranges_are_expanded(text: str, names: str) -> None:
    """The names are sorted, each once, and numbers keep their leading zeros."""
    assert " ".join(parse_nodes(text)) == names


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "n1,",
        ",n1",
        "n1,,n2",
        "n[",
        "n]",
        "n[]",
        "n[1",
        "n[3-1]",
        "n5-n3",
        "n[a]",
        "n[1-]",
        "n[1][2]",
        "ä",
        "-n",
    ],
)
def test_a_list_that_is_none_is_refused(text: str) -> None:
    """The sentence has an example."""
    with pytest.raises(WordError, match=r" is not a list of nodes: write for example n1,n\[3-5,7\]\.$"):
        parse_nodes(text)


@pytest.mark.parametrize(
    "text", ["n[0-4096]", "n[0-999999999]", "n[1-2000],m[1-2000],k[1-2000]", "n[1-2000,1-2000,1-2000]"]
)
def test_a_list_is_bounded_before_it_is_expanded(text: str) -> None:
    """A range costs a few bytes, and its names cost memory."""
    with pytest.raises(WordError, match=f" makes a list of over {MOST_NODES} nodes: name fewer"):
        parse_nodes(text)
    assert len(parse_nodes("n[1-4096]")) == MOST_NODES
