# SPDX-License-Identifier: Apache-2.0
"""Malleable without an edit: `drom run -- python program.py` loads this, `import dromlib.auto` does so by hand.

Nothing happens until the program has imported one of `LIBRARIES`. From then on a thread sleeps until there is a grant.
It is applied in the main thread, between two instructions of the interpreter: never inside a call of a library. Pools
that a block of ``threadpool_limits`` has sized are left alone until that block ends. A process below the one that
speaks for the task is bound to the CPUs and keeps its number of threads: whoever started it divides the work.
A program that calls `dromlib.attach` decides for itself, and this does nothing more.
"""

from __future__ import annotations

import sys
from time import sleep

TYPE_CHECKING = False  # as typing's, whose import takes longer than all else here
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Protocol

    from dromlib.adapters import Adapter
    from dromlib.grant import Grant
    from dromlib.session import Session

    class Block(Protocol):
        """A block of threadpool_limits."""

        drom_epoch: int


LIBRARIES = ("numpy", "scipy", "sklearn", "numba", "torch")
"""Modules whose threads are sized; the others keep what they have."""
FULL_SECONDS = 0.01
"""Until the interpreter has made one of the calls that others gave it."""


class Watch:
    """An import hook that calls `loaded` after each of the libraries has been imported, in the importing thread."""

    def __init__(self, names: Sequence[str], loaded: Callable[[], None]) -> None:
        self._names = set(names)
        self._loaded = loaded

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Return what the other finders find, and see to it that the end of the import is noticed."""
        if name not in self._names:
            return None
        from importlib.util import find_spec

        self._names.discard(name)
        try:
            spec = find_spec(name)
        finally:
            self._names.add(name)
        if spec and spec.loader:
            self._follow(spec)
        return spec

    def _follow(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        execute = loader.exec_module  # type: ignore[union-attr]

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._loaded()

        loader.exec_module = exec_module  # type: ignore[method-assign, union-attr]


class Limits:
    """The blocks of ``threadpool_limits`` in this process. `renew` is called when pools missed a grant because of one.

    A block puts back, when it ends, the numbers of threads that it found when it was made.
    """

    def __init__(self, renew: Callable[[], None]) -> None:
        self.depth = 0
        self.epoch = 0
        """That of the newest grant that pools were told of."""
        self._renew = renew

    def watch(self) -> None:
        """Notice from now on when blocks begin and end."""
        try:
            from threadpoolctl import threadpool_limits
        except ImportError:
            return
        limiter = threadpool_limits.__mro__[1]
        make, begin, end = limiter.__init__, limiter.__enter__, limiter.__exit__

        def init(block: Block, *args: object, **keywords: object) -> None:
            block.drom_epoch = self.epoch
            make(block, *args, **keywords)

        def enter(block: Block) -> object:
            self.depth += 1
            return begin(block)

        def leave(block: Block, *error: object) -> None:
            end(block, *error)
            self.depth -= 1
            if not self.depth and block.drom_epoch != self.epoch:
                self._renew()

        limiter.__init__, limiter.__enter__, limiter.__exit__ = init, enter, leave


class Outside:
    """An adapter that leaves pools alone inside a block of ``threadpool_limits``."""

    def __init__(self, adapter: Adapter, limits: Limits) -> None:
        self.available = adapter.available
        self._apply = adapter.apply
        self._limits = limits

    def limit(self) -> None:
        """Say no limit: the program has not said how many CPUs it can use, and its children may use more than it."""

    def apply(self, grant: Grant) -> None:
        """Size the pools, or leave it to the end of the block."""
        self._limits.epoch = grant.epoch
        if not self._limits.depth:
            self._apply(grant)


class Auto:
    """What follows the grants of this process from the first import of a library until `stop`."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._watch = Watch(LIBRARIES, lambda: _between(self._apply))

    def start(self) -> None:
        """Follow the grants: at once when a library is loaded already, else from its import on."""
        sys.meta_path.insert(0, self._watch)
        if any(name in sys.modules for name in LIBRARIES):
            _between(self._apply)

    def stop(self) -> None:
        """Leave the agent, and watch no import any more."""
        if self._watch in sys.meta_path:
            sys.meta_path.remove(self._watch)
        if self._session:
            self._session.close()

    def _apply(self) -> None:
        """Put the newest grant in force, also in what has been imported since; the first time, ask for it."""
        if self._session is None:
            self._session = self._attach()
        else:
            self._session.apply(self._session.grant)
        if self._session.mode == "unmanaged":
            self.stop()

    def _attach(self) -> Session:
        from threading import Thread

        from dromlib import adapters
        from dromlib.session import Session

        limits = Limits(lambda: _between(self._apply))
        session = Session([Outside(adapter, limits) for adapter in adapters.choose(None)])
        if session.mode == "responder":
            limits.watch()
        else:
            limits.depth = 1  # a block that never ends: whoever has started this process divides the work
        session._start()  # noqa: SLF001 - a friend
        if session.mode != "unmanaged":
            Thread(target=self._follow, args=(session,), name="drom", daemon=True).start()
        return session

    def _follow(self, session: Session) -> None:
        while session.wait():
            _between(self._apply)


def _between(call: Callable[[], object]) -> None:
    """Call in the main thread, between two of its instructions."""
    from threading import current_thread, main_thread

    from dromlib._handle import call_soon

    if current_thread() is main_thread():
        call()
        return
    while not call_soon(call):
        sleep(FULL_SECONDS)


def stop() -> None:
    """Leave the program to itself from now on."""
    _auto.stop()


_auto = Auto()
_auto.start()
