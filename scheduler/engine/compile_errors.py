# SPDX-License-Identifier: Apache-2.0
"""Conversion of what numba reports of a policy into a sentence with its line."""

from __future__ import annotations

import ast
import re

_WRITES = re.compile(
    r"Cannot modify readonly array|No definition for lowering \w+\(.*\)\.\w+ = "
    r"|'NoneType' object has no attribute 'args'|explicit output that is read-only"
)
"""What numba says of a policy that changes the state: by an assignment to elements, to a name, by += and `out=`."""
_INNER = re.compile(r"^\s*(?:TypingError: Failed in .*\s+(.+)|(TypingError: .*))$", re.MULTILINE)
_UNKNOWN = re.compile(r"NameError: name '(\w+)' is not defined")


def reason(text: str, file: str, source: str) -> str:
    """Return what numba complains about, with the line if it is known; `file` is the name of the file of `source`."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    words = [line for line in lines if not line.startswith(("Failed in", "File ", "During"))]
    found = re.sub(r" for '\$[^']*', defined at None$", "", (words or lines or ["no reason given"])[0])
    if found.endswith(":") and (inner := _INNER.search(text)):  # no function matches the call: the reason comes later
        found = inner[1] or inner[2]
    if found.endswith(":"):
        found += next((line.removeprefix(">>>") for line in reversed(lines) if line.startswith(">>>")), "")
    if _WRITES.search(text):
        found = "it changes the state, which policies only read: change a copy, as of state.queue.copy()."
    place = re.search(re.escape(file) + r'(?:", line | \()(\d+)', text)
    unknown = _UNKNOWN.search(found)
    line = (_line_of_name(unknown[1], source) if unknown else 0) or (place and place[1])
    return f"line {line}: {found}" if line else found


def _line_of_name(name: str, source: str) -> int:
    """Return the first line that uses a name, which numba does not report if the name is unknown; or 0."""
    used = ast.walk(ast.parse(source))
    return min((one.lineno for one in used if isinstance(one, ast.Name) and one.id == name), default=0)
