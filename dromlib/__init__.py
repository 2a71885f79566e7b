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
    from dromlib.grant import Grant, Reason
    from dromlib.session import Session, attach, malleable

    __version__: str

__all__ = ["Adapter", "Grant", "Reason", "Session", "__version__", "attach", "malleable"]

_HOMES = {
    "Adapter": "dromlib.adapters",
    "Grant": "dromlib.grant",
    "Reason": "dromlib.grant",
    "Session": "dromlib.session",
    "attach": "dromlib.session",
    "malleable": "dromlib.session",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _version()
    if name not in _HOMES:
        raise AttributeError(f"module 'dromlib' has no attribute '{name}'")
    from importlib import import_module

    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def _version() -> str:
    """Return the version of the installed package, which is that of drom.h; AttributeError if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version("drom")
    except metadata.PackageNotFoundError as error:
        raise AttributeError("dromlib has no __version__ where drom is not installed.") from error


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, "__version__"])
