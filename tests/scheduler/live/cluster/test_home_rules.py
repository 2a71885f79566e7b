# SPDX-License-Identifier: Apache-2.0
"""To which home partition a new node goes, by name, by rule, or by the numbers of nodes, and what is wrong."""

from __future__ import annotations

import pytest
from drom.agent.text import WordError
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster.home_rules import choose, other_home, parse_rule, why_not_moved

HOMES = ("p1", "p2", "p3")
RULES = [parse_rule(text) for text in ("n[1-3],n07=p1", "n3=p2", "gpu?-*=p3", "x*=p1,p2", "y=p9,p1")]


@pytest.mark.parametrize(
    ("node", "named", "homes"),
    [
        ("n1", "", ("p1",)),
        ("n3", "", ("p1",)),
        ("n07", "", ("p1",)),
        ("gpu1-a", "", ("p3",)),
        ("x", "", ("p1", "p2")),
        ("n1", "p3", ("p3",)),
        ("y", "p1", ("p1",)),
    ],
)
def test_the_name_counts_and_then_the_first_rule(node: str, named: str, homes: tuple[str, ...]) -> None:
    """The home partition that an agent names comes first, then the first rule for the node."""
    assert choose(node, named, RULES, HOMES) == homes


def test_without_rules_a_node_goes_anywhere() -> None:
    """All home partitions are possible."""
    assert choose("n1", "", [], HOMES) == HOMES


@pytest.mark.parametrize(
    ("node", "named", "sentence"),
    [
        ("n1", "p9", "there is no home partition p9: choose --home-partition from p1, p2, p3."),
        (
            "gpu12-a",
            "",
            "no rule is for node gpu12-a (--home-rule): add one such as '*=p1', or start its agent with",
        ),
        (
            "y",
            "",
            "home partition p9 of the rule y=p9,p1 has never had a scheduler: start one, or correct the rule",
        ),
    ],
)
def test_a_node_without_a_home_partition_is_refused(node: str, named: str, sentence: str) -> None:
    """The sentence says what to do."""
    with pytest.raises(SchedulerError) as caught:
        choose(node, named, RULES, HOMES)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("n1", "'n1' is no rule: write for example 'n[1-40]=p1' or 'gpu*=p1,p2'."),
        ("=p1", "'' is not a list of nodes: write for example n1,n[3-5,7]."),
        ("n[1-99999]=p1", "'n[1-99999]' makes a list of over 4096 nodes: name fewer."),
        ("n1=", "'' is no name of a home partition: use at most 32 letters, digits, . _ and -."),
        ("n1=p1,p/2", "'p/2' is no name of a home partition: use at most 32 letters, digits, . _ and -."),
        ("n[1-2]*=p1", "'n[1-2]*' is no pattern: write one name of a node with * and ?, without commas and brackets."),
        ("*=" + ",".join(map(str, range(1001))), "a rule names at most 1000 home partitions, not 1001: name fewer."),
    ],
)
def test_a_rule_that_is_wrong_is_refused(text: str, sentence: str) -> None:
    """The sentence has the faulty part."""
    with pytest.raises(WordError) as caught:
        parse_rule(text)
    assert str(caught.value) == sentence


def test_a_node_that_the_rules_have_elsewhere_stays() -> None:
    """The sentences say how it is moved; nodes of no rule, and those where the rules have them, need none."""
    how = "drain it, stop its agent once its jobs have ended, run drom drain --forget n1, and start it again."
    assert why_not_moved("n1", "p2", RULES) == (
        f"the rule n[1-3],n07=p1 does not move a node that is there already: {how}"
    )
    assert [why_not_moved(*one, RULES) for one in (("n1", "p1"), ("x1", "p2"), ("z", "p2"))] == ["", "", ""]
    assert other_home("n1", "p1", "p2") == (
        f"node n1 belongs to home partition p1, not p2: start its agent with that one or with none, or move it: {how}"
    )
