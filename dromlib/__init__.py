"""The library with which programs become malleable, and the memory layout they share with the agent.

    import dromlib

    with dromlib.attach() as session:
        for step in range(steps):
            if grant := session.poll():  # a malleability point: some ten nanoseconds
                session.apply(grant)  # bind every thread, size the libraries' pools, acknowledge
            compute()

`attach` returns a `Session`, which receives each `Grant` of the agent. `malleable` wraps a loop. An `Adapter` resizes a
library that dromlib does not know. Without an agent there is never a grant, and nothing changes.

Submodules are loaded on first use, so `import dromlib` alone is fast.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, whose import takes longer than all else here
if TYPE_CHECKING:
    from dromlib.adapters import Adapter
    from dromlib.grant import Grant
    from dromlib.session import Session, attach, malleable

__all__ = ["Adapter", "Grant", "Session", "attach", "malleable"]

_HOMES = {
    "Adapter": "dromlib.adapters",
    "Grant": "dromlib.grant",
    "Session": "dromlib.session",
    "attach": "dromlib.session",
    "malleable": "dromlib.session",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'dromlib' has no attribute '{name}'")
    from importlib import import_module

    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
