# SPDX-License-Identifier: Apache-2.0
"""To which home partition a new node goes: the one that its agent names, else by a rule, else where fewest are. Pure.

A rule is ``NODES=HOME``: ``NODES`` is a list such as ``n[1-40],login1``, or a pattern with ``*`` and ``?``. The first
rule that has a node counts. Of several home partitions, ``NODES=HOME,HOME``, it goes to the one with fewest nodes.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from drom.agent.text import WordError
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster.homes import MOST_HOMES, parse_home
from drom.scheduler.live.cluster.node_lists import parse_nodes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

MOST_RULES = 1000
OPTION = "--home-rule"
_PATTERN = r"[A-Za-z0-9._*?-]{1,64}"


class HomeRule(NamedTuple):
    """Nodes, by their names or by a `pattern`, with the home partitions that they go to; `text` is the rule."""

    text: str
    names: frozenset[str]
    pattern: str
    homes: tuple[str, ...]

    def has(self, node: str) -> bool:
        """Return whether the rule is for a node."""
        return node in self.names or bool(self.pattern and fnmatchcase(node, self.pattern))


def parse_rule(text: str) -> HomeRule:
    """Return the rule in ``NODES=HOME,...``. Raises `WordError`."""
    nodes, equals, homes = text.rpartition("=")
    if not equals:
        msg = f"{text[:40]!r} is no rule: write for example 'n[1-40]=p1' or 'gpu*=p1,p2'."
        raise WordError(msg)
    names = homes.split(",")
    if len(names) > MOST_HOMES:
        msg = f"a rule names at most {MOST_HOMES} home partitions, not {len(names)}: name fewer."
        raise WordError(msg)
    found = tuple(dict.fromkeys(map(parse_home, names)))
    if not re.search(r"[*?]", nodes):
        return HomeRule(text, frozenset(parse_nodes(nodes)), "", found)
    if not re.fullmatch(_PATTERN, nodes):
        msg = f"{nodes[:40]!r} is no pattern: write one name of a node with * and ?, without commas and brackets."
        raise WordError(msg)
    return HomeRule(text, frozenset(), nodes, found)


def rule_of(node: str, rules: Sequence[HomeRule]) -> HomeRule | None:
    """Return the first rule that is for a node; None if there is none."""
    return next((rule for rule in rules if rule.has(node)), None)


def choose(node: str, named: str, rules: Sequence[HomeRule], known: Collection[str]) -> Sequence[str]:
    """Return the home partitions, of those that are `known`, from which a new node gets the one with fewest nodes.

    Its agent has `named` one, or none. Raises SchedulerError for one that is not known, and if no rule is for the node.
    """
    rule = rule_of(node, rules)
    if named:
        if named not in known:
            raise SchedulerError(no_home(named, known))
        return (named,)
    if rules and not rule:
        add = f"add one such as '*={next(iter(known))}', or start its agent with --home-partition"
        raise SchedulerError(f"no rule is for node {node} ({OPTION}): {add}.")
    if rule and (missing := [home for home in rule.homes if home not in known]):
        never = f"home partition {missing[0]} of the rule {rule.text[:80]} has never had a scheduler"
        raise SchedulerError(f"{never}: start one, or correct the rule ({OPTION}).")
    return rule.homes if rule else tuple(known)


def no_home(home: str, known: Iterable[str]) -> str:
    """Return a sentence about a home partition that does not exist, with those that are known."""
    return f"there is no home partition {home[:40]}: choose --home-partition from {', '.join(known)}."


def why_not_moved(node: str, home: str, rules: Sequence[HomeRule]) -> str:
    """Return why a node is not where the rules have it now; empty if it is, or if no rule is for it."""
    rule = rule_of(node, rules)
    if not rule or home in rule.homes:
        return ""
    return f"the rule {rule.text[:80]} does not move a node that is there already: {_how_to_move(node)}"


def other_home(node: str, home: str, named: str) -> str:
    """Return why the agent of a node of `home` may not name another home partition."""
    there = f"node {node} belongs to home partition {home}, not {named[:40]}"
    return f"{there}: start its agent with that one or with none, or move it: {_how_to_move(node)}"


def _how_to_move(node: str) -> str:
    return f"drain it, stop its agent once its jobs have ended, run drom drain --forget {node}, and start it again."
