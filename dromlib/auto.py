# SPDX-License-Identifier: Apache-2.0
"""Malleability without a change to the program: loaded by `drom run -- python program.py` or `import dromlib.auto`.

Nothing happens until the program has imported one of `LIBRARIES`. From then on a thread sleeps until there is a grant.
The grant is applied in the main thread, between two instructions of the interpreter: never inside a library call. Pools
that a block of ``threadpool_limits`` has sized are left alone until that block ends. numba and PyTorch are left alone
for good once the program has queried or set their thread counts. A child of the task's responder is bound to the CPUs
and keeps its number of threads, because the parent process divides the work.
In a program that calls `dromlib.attach` this module does nothing further.
"""

from __future__ import annotations

import os
import sys
from _thread import allocate_lock, get_ident, start_new_thread
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
"""Seconds between attempts while the interpreter's queue of pending calls is full."""
LEAVE_SECONDS = 2
"""The most seconds that `stop` waits for the thread that follows the grants: it checks at least once a second."""
_threading = sys.modules.get("threading")  # only for this: gevent makes its threads greenlets of the main thread
MAIN = _threading.main_thread().ident if _threading else get_ident()
"""The main thread. Without `threading` no other thread has been started yet."""


class Watch:
    """An import hook that calls `loaded` after each of the libraries has been imported, in the importing thread."""

    def __init__(self, names: Sequence[str], loaded: Callable[[], None]) -> None:
        self._names = set(names)
        self._loaded = loaded

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Return the spec from the other finders, extended by a call of `loaded` at the end of the import."""
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
    """The blocks of ``threadpool_limits`` in this process. `renew` is called if pools missed a grant because of one.

    When a block ends it restores the numbers of threads that it found when it was created.
    """

    def __init__(self, renew: Callable[[], None]) -> None:
        self.blocks: list[Block] = []
        """The blocks that have begun and not ended."""
        self.told = 0
        """How often pools have been resized for a grant, or would have been outside of a block."""
        self._renew = renew

    def watch(self) -> None:
        """Track the beginnings and ends of blocks from now on."""
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
        """Track the beginnings of blocks of a class; `finds`: a block reads the numbers of threads only then."""
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
        """Return None, no limit: the program has not reported its limit, and its children may use more CPUs than it."""

    def apply(self, grant: Grant) -> None:
        """Size the pools; inside a block this is left to the end of the block."""
        self._limits.told += 1
        if not self._limits.blocks:
            self._apply(grant)


class Auto:
    """Follows the grants of this process from the first import of a library until `stop`."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._watch = Watch(LIBRARIES, self._begin)
        self._due = self._applies = self._stopped = False
        self._following = allocate_lock()
        """Held by the thread that follows the grants, which may use the session until then."""

    def start(self) -> None:
        """Follow the grants: at once if a library is loaded already, otherwise from its import on."""
        if os.environ.get("DROM_MALLEABILITY") == "bind-only":
            return
        say.asked = False
        sys.meta_path.insert(0, self._watch)
        if any(name in sys.modules for name in LIBRARIES):
            self._begin()

    def stop(self) -> None:
        """Leave the agent, and stop watching imports.

        The handle has left when this returns: what attaches next may use another copy of libdrom.
        """
        from contextlib import suppress

        self._stopped = True
        with suppress(ValueError):  # an earlier call, perhaps in another thread
            sys.meta_path.remove(self._watch)
        if self._session:
            is_followed = self._session.mode != "unmanaged"  # not in a child, which lacks that thread
            self._session.close()
            if is_followed and self._following.acquire(timeout=LEAVE_SECONDS):
                self._following.release()

    def _begin(self) -> None:
        """Start following grants after an import. An import of the program never fails because of an error in drom."""
        if self._stopped:
            return
        try:
            from dromlib._handle import in_main_interpreter

            if in_main_interpreter():
                _between(self._apply)
            else:
                self.stop()  # a subinterpreter, which may end at any time, does not wait for drom's thread
        except Exception as error:
            if _is_of_a_handler(error):
                raise
            self.stop()
            if sys.stderr:
                sys.stderr.write(f"drom: this Python is bound from outside: {error}\n")

    def _apply(self) -> None:
        """Apply the newest grant, also to libraries imported since the last call; the first time, attach to the agent.

        Errors of drom are never raised in the program's imports and instructions. But exceptions of the program's own
        signal handlers are: these also run between instructions, including those of this function.
        """
        self._due = True
        if self._applies:
            return  # called between two instructions of this very function, which handles it below
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
        if session.mode == "responder":  # else the parent process divides the work
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
        with self._following:
            while session.mode != "unmanaged":
                if session.wait():
                    _between(self._apply)
        self.stop()


def _between(call: Callable[[], object]) -> None:
    """Run `call` in the main thread, between two of its instructions."""
    from dromlib._handle import call_soon

    if get_ident() == MAIN:
        call()
        return
    while not call_soon(call):
        sleep(FULL_SECONDS)


def _is_of_a_handler(error: Exception) -> bool:
    """Return whether an exception was raised in a signal handler."""
    from signal import getsignal, valid_signals

    handlers = {getattr(getsignal(number), "__code__", None) for number in valid_signals()}
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code not in handlers:
        trace = trace.tb_next
    return trace is not None


def stop() -> None:
    """Stop following grants: from now on this module leaves the program alone."""
    _auto.stop()


_auto = Auto()
_auto.start()
