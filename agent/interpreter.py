# SPDX-License-Identifier: Apache-2.0
"""This Python, told to run more of drom: what we lie in comes first there, and never the current directory.

With ``-m`` and with ``-c`` Python looks for modules in the current directory before all others, which root may have
changed to one of a user's. An option against that is known from 3.11 on.
"""

from __future__ import annotations

import sys
from pathlib import Path

_HOME = str(Path(__file__).absolute().parent.parent)
_BEFORE = f"import sys; sys.path = [*{{{_HOME!r}}}.difference(sys.path), *filter(None, sys.path)]"


def python(code: str, *words: str) -> list[str]:
    """Return the command that runs `code` with `words` as arguments."""
    return [sys.executable, "-c", f"{_BEFORE}; {code}", *words]


def module(name: str, *words: str) -> list[str]:
    """Return the command that runs a module of ours with `words` as arguments, as ``python -m`` does."""
    return python(f"from runpy import run_module; run_module({name!r}, None, '__main__', True)", *words)


def drom(*words: str) -> list[str]:
    """Return the command that does what ``drom`` does with these words."""
    return python("from agent.__main__ import main; main()", *words)
