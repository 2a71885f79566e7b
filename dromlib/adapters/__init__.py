# SPDX-License-Identifier: Apache-2.0
"""Adapters: how a grant takes effect in the libraries that a program computes with.

An adapter has three methods, see `Adapter`. dromlib has one for the pools of BLAS and OpenMP, one for numba and one for
PyTorch; a program passes its own to `dromlib.attach` beside or instead of them. The affinity of the threads is always
set first. An adapter for a thread pool of one's own takes ten lines:

    class Pool:
        def available(self):
            return pool.is_started

        def limit(self):
            return pool.most_threads

        def apply(self, grant):
            pool.resize(grant.ncpus)

    session = dromlib.attach(adapters=["blas", Pool()])
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
    """What tells a library how many threads to use.

    The methods are called in the thread that applies the grant: the one that calls `Session.apply`, or the main thread
    if `dromlib.auto` follows the grants. An exception of a method is raised by that call; the grant is then not
    acknowledged, and the agent binds the program itself.
    """

    def available(self) -> bool:
        """Return whether the library is loaded, so that a grant concerns it; must not load it. Asked at every grant."""

    def limit(self) -> int | None:
        """Return the most threads that the library can use in this process, or None if there is no limit.

        Called only if `available`. If all adapters have a limit, the largest is reported to the agent as the most CPUs
        that the program can use.
        """

    def apply(self, grant: Grant) -> None:
        """Use `grant.ncpus` threads from now on. Called only if `available`, after the threads have been bound."""


def imported(name: str) -> ModuleType | None:
    """Return a module if its import has finished, otherwise None: it is not usable before."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def choose(wanted: Iterable[str | Adapter] | None) -> list[Adapter]:
    """Return adapters for names and objects; None stands for all that come with dromlib.

    A name whose library is not installed is skipped with a warning. Raises ValueError for an unknown name, and
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
        raise ValueError(f"'{wanted}' is not an adapter: choose from {names}, or pass an object of your own.")
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
