# SPDX-License-Identifier: Apache-2.0
"""What puts a grant in force in the libraries that a program computes with.

An adapter has three methods, see `Adapter`. There is one for the pools of BLAS and OpenMP, one for numba and one for
PyTorch; a program hands in its own beside or instead of them. The affinity of the threads is always set, before these.
"""

from __future__ import annotations

import sys

from dromlib import say

TYPE_CHECKING = False  # as typing's, whose import takes longer than all else here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType
    from typing import Protocol

    from dromlib.grant import Grant
else:
    Protocol = object

LIBRARIES = {"blas": "threadpoolctl", "numba": "numba", "torch": "torch"}
"""The module that each adapter needs, in the order in which they apply a grant."""


class Adapter(Protocol):
    """How a library is told how many threads to use; called in the thread that applies the grant."""

    def available(self) -> bool:
        """Say whether the library is loaded, so that a grant concerns it. Loads nothing."""

    def limit(self) -> int | None:
        """Return the most threads that the library can use in this process, or None; asked if available."""

    def apply(self, grant: Grant) -> None:
        """Use as many threads as the grant has CPUs; called if available."""


def imported(name: str) -> ModuleType | None:
    """Return a module if it has been imported, to its end: until then it counts on itself as it is."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def choose(wanted: Iterable[str | Adapter] | None) -> list[Adapter]:
    """Return the adapters wanted, by name or as they are; None stands for all that come with dromlib.

    A name whose library is not installed is left out with a warning. Raises ValueError for a name that is none, and
    TypeError for an object that lacks a method.
    """
    if wanted is None:
        found = [_make(name) for name in LIBRARIES]
    else:
        found = [one for one in map(_find, (wanted,) if isinstance(wanted, str) else wanted) if one]
    numba = sys.modules.get("dromlib.adapters.numba")
    for one in found:
        if numba and isinstance(one, numba.Numba):
            one.together = found
    return found


def _find(wanted: str | Adapter) -> Adapter | None:
    if not isinstance(wanted, str):
        for method in ("available", "limit", "apply"):
            if not callable(getattr(wanted, method, None)):
                raise TypeError(f"{wanted!r} is not an adapter: it has no method {method}().")
        return wanted
    if wanted not in LIBRARIES:
        names = ", ".join(f"'{name}'" for name in LIBRARIES)
        raise ValueError(f"'{wanted}' is not an adapter: choose from {names}, or hand in an object of your own.")
    if not _is_installed(LIBRARIES[wanted]):
        say.warn(
            f"The adapter '{wanted}' needs {LIBRARIES[wanted]}, which is not installed: its threads stay as they are."
        )
        return None
    return _make(wanted)


def _make(name: str) -> Adapter:
    from importlib import import_module

    maker: Callable[[], Adapter] = getattr(import_module(f"dromlib.adapters.{name}"), name.capitalize())
    return maker()


def _is_installed(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None
