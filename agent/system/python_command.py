# SPDX-License-Identifier: Apache-2.0
"""Commands that run other parts of drom in this Python, isolated from the environment and the current directory.

An isolated Python (-I) reads no PYTHON* variable, and searches neither the current directory nor the user's own folder
for modules. It gets the module search path of this process instead, which includes the folder of drom.
"""

from __future__ import annotations

import sys
from pathlib import Path

import dromlib

SERVE = "_serve"
"""First argument of the process that `drom agent` becomes. The second is a descriptor; `ps` shows the others."""

_HOME = str(Path(dromlib.__file__).absolute().parents[1])


def python(code: str, *words: str) -> list[str]:
    """Return the command that runs `code` with `words` as arguments."""
    path = [*{_HOME}.difference(sys.path), *filter(None, sys.path)]
    # The finder of an editable install is imported by site, which misses the virtual environment with some
    # PYTHONEXECUTABLE. The list is a copy, as other threads import meanwhile.
    finders = [name for name in list(sys.modules) if name.startswith("_editable_skbc_")]
    start = f"import sys; sys.path[:] = {path!r}; import {', '.join(['sys', *finders])}; "
    return [sys.executable, "-I", "-c", start + code, *words]


def module(name: str, *words: str) -> list[str]:
    """Return the command that runs a module of drom with `words` as arguments, as ``python -m`` does."""
    return python(f"from runpy import run_module; run_module({name!r}, None, '__main__', True)", *words)


def drom(*words: str) -> list[str]:
    """Return the command that is equivalent to ``drom`` with these words."""
    return python("from drom.__main__ import main; main()", *words)
