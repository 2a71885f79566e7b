# SPDX-License-Identifier: Apache-2.0
"""Malleable without an edit: `drom run -- python program.py` loads this, `import dromlib.auto` does so by hand.

Nothing happens until the program has imported one of `LIBRARIES`. From then on a thread sleeps until there is a grant.
It is applied in the main thread, between two instructions of the interpreter: never inside a call of a library. Pools
that a block of ``threadpool_limits`` has sized are left alone until that block ends, and numba and PyTorch for good
once the program has spoken of their numbers. A process below the one that speaks for the task is bound to the CPUs and
keeps its number of threads: whoever started it divides the work.
A program that calls `dromlib.attach` decides for itself, and this does nothing more.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident, start_new_thread
from time import sleep

from dromlib import say

TYPE_CHECKING = False  # as typing's, whose import takes longer than all else here
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Protocol

    from dromlib.adapters import Adapter
    from dromlib.grant import Grant
    from dromlib.session import Session

    class Block(Protocol):
        """A block of threadpool_limits."""

        drom_told: int


LIBRARIES = ("numpy", "scipy", "sklearn", "numba", "torch")
"""Modules whose threads are sized; the others keep what they have."""
FULL_SECONDS = 0.01
"""Until the interpreter has made one of the calls that others gave it."""
_threading = sys.modules.get("threading")  # only for this: gevent makes its threads greenlets of the main thread
MAIN = _threading.main_thread().ident if _threading else get_ident()
"""The main thread. Without `threading` nobody has started another one yet."""


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
            spec._initializing = False  # type: ignore[attr-defined]  # noqa: SLF001 - importlib says so next
            self._loaded()

        loader.exec_module = exec_module  # type: ignore[method-assign, union-attr]


class Limits:
    """The blocks of ``threadpool_limits`` in this process. `renew` is called when pools missed a grant because of one.

    A block puts back, when it ends, the numbers of threads that it found when it was made.
    """

    def __init__(self, renew: Callable[[], None]) -> None:
        self.blocks: list[Block] = []
        """Those that have begun and not ended."""
        self.told = 0
        """How often pools have been told of a grant, or would have been outside of a block."""
        self._renew = renew

    def watch(self) -> None:
        """Notice from now on when blocks begin and end."""
        try:
            import threadpoolctl
        except ImportError:
            return
        limiter = getattr(threadpoolctl, "_ThreadpoolLimiter", None)
        if limiter is None:  # before 3.0, with which no pools are sized
            return
        make, end = limiter.__init__, limiter.__exit__

        def init(block: Block, *args: object, **keywords: object) -> None:
            block.drom_told = self.told
            make(block, *args, **keywords)

        def leave(block: Block, *error: object) -> None:
            end(block, *error)
            if block in self.blocks:
                self.blocks.remove(block)
            if not self.blocks and getattr(block, "drom_told", None) != self.told:
                self._renew()

        limiter.__init__, limiter.__exit__ = init, leave
        self._watch_beginning(limiter, finds=False)
        for kind in limiter.__subclasses__():
            if "__enter__" in vars(kind):  # what `wrap` makes, before 3.8
                self._watch_beginning(kind, finds=True)

    def _watch_beginning(self, kind: Any, *, finds: bool) -> None:  # noqa: ANN401 - what threadpoolctl does not show
        """Notice when blocks of a class begin; `finds`: only then it finds the numbers of threads."""
        begin = kind.__enter__

        def enter(block: Block) -> object:
            if finds:
                block.drom_told = self.told
            if block not in self.blocks:
                self.blocks.append(block)
            return begin(block)

        kind.__enter__ = enter


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
        self._limits.told += 1
        if not self._limits.blocks:
            self._apply(grant)


class Auto:
    """What follows the grants of this process from the first import of a library until `stop`."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._watch = Watch(LIBRARIES, self._begin)
        self._due = self._applies = self._stopped = False

    def start(self) -> None:
        """Follow the grants: at once when a library is loaded already, else from its import on."""
        if os.environ.get("DROM_MALLEABILITY") == "bind-only":
            return
        say.asked = False
        sys.meta_path.insert(0, self._watch)
        if any(name in sys.modules for name in LIBRARIES):
            self._begin()

    def stop(self) -> None:
        """Leave the agent, and watch no import any more."""
        from contextlib import suppress

        self._stopped = True
        with suppress(ValueError):  # an earlier call, perhaps in another thread
            sys.meta_path.remove(self._watch)
        if self._session:
            self._session.close()

    def _begin(self) -> None:
        """Follow what has been imported. An import of the program's own never fails for what is wrong with drom."""
        if self._stopped:
            return
        try:
            from dromlib._handle import in_main_interpreter

            if in_main_interpreter():
                _between(self._apply)
            else:
                self.stop()  # its end, which may come at any time, waits for no thread of ours
        except Exception as error:
            if _is_of_a_handler(error):
                raise
            self.stop()
            if sys.stderr:
                sys.stderr.write(f"drom: this Python is bound from outside: {error}\n")

    def _apply(self) -> None:
        """Put the newest grant in force, also in what has been imported since; the first time, ask for it.

        What goes wrong is not the program's doing and never comes out of its imports and instructions. But what its
        own handlers of signals raise does: they run between instructions too, of this as well.
        """
        self._due = True
        if self._applies:
            return  # between two instructions of this very function, which sees to it below
        self._applies = True
        try:
            while self._due and not self._stopped:
                self._due = False
                self._apply_newest()
        except Exception as error:
            if _is_of_a_handler(error):
                raise
            say.note(f"A grant could not be applied in full: {error!r}.")
        finally:
            self._applies = False

    def _apply_newest(self) -> None:
        if self._session is None:
            self._attach()
        else:
            self._session.apply(self._session.grant)

    def _attach(self) -> None:
        from dromlib._handle import without_signals
        from dromlib.adapters.blas import Blas
        from dromlib.adapters.heeding import HeedingNumba, HeedingTorch
        from dromlib.session import Session

        session = self._session = Session([])
        if self._stopped or session.mode == "unmanaged":
            self.stop()
            return
        if session.mode == "responder":  # else whoever has started this process divides the work
            limits = Limits(lambda: _between(self._apply))
            limits.watch()
            numba = HeedingNumba()
            numba.together = [Outside(adapter, limits) for adapter in (Blas(), numba, HeedingTorch())]
            session._adapters = numba.together  # noqa: SLF001 - a friend
        try:
            session._start()  # noqa: SLF001
        finally:
            without_signals(start_new_thread, self._follow, (session,))

    def _follow(self, session: Session) -> None:
        while session.mode != "unmanaged":
            if session.wait():
                _between(self._apply)
        self.stop()


def _between(call: Callable[[], object]) -> None:
    """Call in the main thread, between two of its instructions."""
    from dromlib._handle import call_soon

    if get_ident() == MAIN:
        call()
        return
    while not call_soon(call):
        sleep(FULL_SECONDS)


def _is_of_a_handler(error: Exception) -> bool:
    """Say whether an exception came out of a function that handles signals."""
    from signal import getsignal, valid_signals

    handlers = {getattr(getsignal(number), "__code__", None) for number in valid_signals()}
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code not in handlers:
        trace = trace.tb_next
    return trace is not None


def stop() -> None:
    """Leave the program to itself from now on."""
    _auto.stop()


_auto = Auto()
_auto.start()
