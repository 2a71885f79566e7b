# SPDX-License-Identifier: Apache-2.0
"""Lists of nodes as users write them: names with commas, and ranges as in ``n[1-4,7]`` or ``n3-n5``. Pure."""

from __future__ import annotations

import re

from drom.agent.text import NODE, WordError

MOST_NODES = 4096
"""Nodes of one list."""
_WORD = re.compile(r"([^,\[\]]*)(?:\[([0-9,-]+)\]([^,\[\]]*))?(?:,|$)")
"""A name, or one with a bracket; then the comma after it, or the end."""
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_SHORT = re.compile(r"(.*?)([0-9]{1,9})-\1([0-9]{1,9})")


def parse_nodes(text: str) -> tuple[str, ...]:
    """Return the sorted names in ``n1,n[3-5,07]``; ``n3-n5`` is ``n[3-5]``. Raises `WordError`."""
    names: set[str] = set()
    at = 0
    while at < len(text):
        word = _WORD.match(text, at)
        if not word:
            raise _wrong(text[at:])
        at = word.end()
        names.update(_names(word[0].removesuffix(","), MOST_NODES - len(names)))
    if not names or text.endswith(","):
        raise _wrong(text)
    return tuple(sorted(names))


def _names(word: str, most: int) -> list[str]:
    """Return the names of a word without commas outside of brackets, which may be `most`."""
    if short := _SHORT.fullmatch(word):
        word = f"{short[1]}[{short[2]}-{short[3]}]"
    before, bracket, rest = word.partition("[")
    inner, _, after = rest.partition("]")
    found: list[str] = []
    for part in inner.split(",") if bracket else ():
        span = _RANGE.fullmatch(part)
        if not span or int(span[1]) > int(span[2] or span[1]):
            raise _wrong(word)
        low, high = int(span[1]), int(span[2] or span[1])
        if high - low >= most - len(found):
            msg = f"{word[:40]!r} makes a list of over {MOST_NODES} nodes: name fewer."
            raise WordError(msg)
        found += [f"{before}{number:0{len(span[1])}}{after}" for number in range(low, high + 1)]
    found = found if bracket else [word]
    if len(found) > most or not all(re.fullmatch(NODE, name) for name in found):
        raise _wrong(word)
    return found


def _wrong(text: str) -> WordError:
    return WordError(f"{text[:40]!r} is not a list of nodes: write for example n1,n[3-5,7].")
