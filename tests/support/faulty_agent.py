"""An agent in which functions fail while files are there: faulty_agent FOLDER LASTING TARGET... -- COMMAND.

A TARGET is NAME=MODULE:FUNCTION: that function raises an OSError while the file FOLDER/NAME exists, and after its work
a RuntimeError while FOLDER/NAME.bug does. `drom.agent.observe.guarded.LASTING` has the value LASTING. COMMAND is that
of an agent.
"""

from __future__ import annotations

import errno
import importlib
import sys
from pathlib import Path
from typing import Any

from drom.agent.observe import guarded

from drom import __main__


def break_down(target: str, folder: Path) -> None:
    """Have a function fail while its file is there."""
    name, _, where = target.partition("=")
    module, _, path = where.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, function = path.split(".")
    for one in classes:
        owner = getattr(owner, one)
    whole = getattr(owner, function)

    def faulty(*args: Any, **kwargs: Any) -> Any:
        if (folder / name).exists():
            raise OSError(errno.EIO, "made to fail")
        value = whole(*args, **kwargs)
        if (folder / f"{name}.bug").exists():
            raise RuntimeError("made to fail in the middle")
        return value

    if isinstance(whole, type(break_down)):

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return faulty(self, *args, **kwargs)

        setattr(owner, function, method if classes else faulty)


if __name__ == "__main__":
    folder, lasting, *words = sys.argv[1:]
    split = words.index("--")
    guarded.LASTING = float(lasting)
    for word in words[:split]:
        break_down(word, Path(folder))
    sys.argv = ["drom", *words[words.index("drom", split) + 1 :]]
    __main__.main()
