# SPDX-License-Identifier: Apache-2.0
"""A program's session with the agent: attach, poll, apply, wait, and a loop that combines them."""

from __future__ import annotations

import os
import sys
from time import monotonic

from dromlib import adapters as adapting
from dromlib import say
from dromlib._handle import Handle
from dromlib.adapters.affinity import Affinity
from dromlib.grant import Grant
from dromlib.layout import MAX_MASK_BITS

TYPE_CHECKING = False  # as typing's, whose import takes longer than all else here
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterable
    from types import TracebackType
    from typing import TypeVar

    from typing_extensions import Self

    from dromlib.adapters import Adapter
    from dromlib.events import Listener, Registration

    T = TypeVar("T")


class Session(Handle):
    """A session with the agent, returned by `attach`; a context manager that leaves the agent at the end of its block.

    `poll`, `progress` and `close` are compiled. Threads may share a session, but only one may wait in it, and a grant
    is returned to only one of those that poll. In a forked child the session is unmanaged. Without an agent it never
    gets a grant.
    """

    def __init__(self, adapters: Iterable[str | Adapter] | None = None, min_cpus: int = 0, max_cpus: int = 0) -> None:
        self.grant: Grant | None = None
        """The newest grant taken."""
        self._adapters = adapting.choose(adapters)
        self._affinity = Affinity()
        self._min_cpus = _bound("min_cpus", min_cpus)
        self._max_cpus = _bound("max_cpus", max_cpus)
        if 0 < self._max_cpus < self._min_cpus:
            raise ValueError(f"min_cpus={min_cpus} is above max_cpus={max_cpus}: give at most as many.")
        self._wanted = (0, 0)
        self._listener: Listener | None = None
        self._registration: Registration | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        """Apply a grant that exists already; this does not count as a malleability point."""
        first = self._take()
        if first:
            self.apply(first)
        elif self.mode != "unmanaged":
            self._tell_wanted(self._loaded())

    def _take(self) -> Grant | None:
        """Return the newest grant if it has not been taken yet; `poll` calls this."""
        raw = self._take_raw()
        if raw is None:
            return None
        self.grant = Grant.from_raw(*raw)
        return self.grant

    def apply(self, grant: Grant | None) -> bool:
        """Apply a grant: bind every thread of the process, size the pools of the adapters, acknowledge to the agent.

        `grant` is what `poll` or `wait` returned; None has no effect, nor has any grant once the session is unmanaged,
        nor one without CPUs, as a rank of an adaptive MPI job gets before it rests.
        Call this from the thread that computes: numba and OpenMP keep a number of threads for each thread that starts
        parallel work. Return False if a thread could not be bound: then the grant is not acknowledged, and the agent
        binds the threads itself. An exception of an adapter is raised, without an acknowledgement.
        """
        if grant is None or not grant.ncpus or self.mode == "unmanaged":
            return True
        if grant.ncpus < self._min_cpus:
            say.warn(
                f"The agent has granted {grant.ncpus} of the {self._min_cpus} CPUs that this program asked for at "
                "least: it runs on, slower; start it with drom run --min to wait for them."
            )
        bound = self._bind(grant)
        loaded = self._loaded()
        for adapter in loaded:
            adapter.apply(grant)
        self._tell_wanted(loaded)
        return bound and self.acknowledge(grant)

    def acknowledge(self, grant: Grant) -> bool:
        """Acknowledge a grant that the program has applied by its own means; return False if that failed.

        `grant` is what `poll` or `wait` returned. Every thread must be on its CPUs before the call; the agent checks
        that.
        """
        error = self._acknowledge(grant.epoch, grant.ncpus)
        if error:
            say.warn(f"A grant cannot be acknowledged ({os.strerror(error)}): the agent will bind the program itself.")
        return not error

    def wait(self, timeout: float | None = None) -> Grant | None:
        """Sleep until there is a grant to apply, and return it; other Python threads run meanwhile.

        Return None after `timeout` seconds (None: never), and at once if no grant can ever come: without an agent, or
        after `close`. Raises RuntimeError if another thread waits in this session.
        """
        end = None if timeout is None else monotonic() + timeout
        while self._wait_for_grant(timeout):
            grant = self._take()
            if grant:
                return grant
            if end is not None:  # there is a new agent, which has granted nothing yet
                timeout = end - monotonic()
        return None

    async def changed(self) -> Grant | None:
        """Wait in an asyncio loop until there is a grant to apply, and return it; None if none can ever come.

        Raises RuntimeError if another task waits in this session.
        """
        while True:
            grant = await self._take_in_loop()
            if grant:
                return grant
            place = self._place
            if place is None:
                return None
            if self._listener is None or self._listener.place != place:
                self._listen(place)  # and read the slot once more: earlier grants are not signalled again
            else:
                await self._listener.hint()

    def __aiter__(self) -> AsyncIterator[Grant]:
        return self

    async def __anext__(self) -> Grant:
        grant = await self.changed()
        if grant is None:
            raise StopAsyncIteration
        return grant

    def close(self) -> None:
        """Leave the agent, which binds the program from now on. Waiting calls return; later calls do nothing."""
        super().close()
        listener, self._listener = self._listener, None
        if listener:
            listener.close()

    async def _take_in_loop(self) -> Grant | None:
        """Take a grant; a new registration with an agent, which may take seconds, is left to another thread."""
        if self._registration is None:
            if not self._may_register:
                return self._take()
            from dromlib.events import Registration

            self._registration = Registration(self._take)
        registration = self._registration
        await registration.done()  # a task that is cancelled, or a loop that ends, leaves it to the next one
        self._registration = None
        return registration.grant()

    def _listen(self, place: tuple[str, int]) -> None:
        from dromlib.events import Listener

        if self._listener:
            self._listener.close()
        self._listener = Listener(place)

    def _bind(self, grant: Grant) -> bool:
        try:
            self._affinity.apply(grant)
        except OSError as error:
            say.warn(f"The program cannot bind itself to CPUs {grant.cpus} ({error.strerror}): the agent will try.")
            return False
        return True

    def _loaded(self) -> list[Adapter]:
        return [adapter for adapter in self._adapters if adapter.available()]

    def _tell_wanted(self, loaded: list[Adapter]) -> None:
        """Report the demand: its maximum is that of the largest pool, and no more than `max_cpus`.

        If a pool has no limit, or there is no pool, the maximum is `max_cpus`.
        """
        limits = [adapter.limit() for adapter in loaded]
        numbers = [limit for limit in limits if limit is not None]
        most = max(numbers) if numbers and len(numbers) == len(limits) else 0
        most = min(most, self._max_cpus) if most and self._max_cpus else most or self._max_cpus
        wanted = (self._min_cpus, most)
        if wanted != self._wanted:
            self._wanted = wanted
            self._want(*wanted)


def _bound(name: str, cpus: int) -> int:
    if cpus not in range(MAX_MASK_BITS + 1):
        raise ValueError(f"{name}={cpus!r} is not a number of CPUs: give one up to {MAX_MASK_BITS}, or 0 for no bound.")
    return int(cpus)


def attach(adapters: Iterable[str | Adapter] | None = None, min_cpus: int = 0, max_cpus: int = 0) -> Session:
    """Register with the agent, and apply the first grant: the program was launched with threads for its maximum.

    `adapters` are names ("blas", "numba", "torch") or objects with the methods of `Adapter`; None stands for each of
    the three whose library the program has loaded by the time of a grant. `min_cpus` and `max_cpus` report the range of
    CPUs that the program can use, up to 32768; 0: unspecified. Call it from the thread that computes.

    Without an agent the session is unmanaged and never gets a grant. Raises ValueError for an unknown name of an
    adapter, for a bound that is not a number of CPUs and for a minimum above the maximum, and TypeError for an adapter
    that lacks a method; an exception of an adapter is raised too.
    """
    say.asked = True
    session = Session(adapters, min_cpus, max_cpus)
    auto = sys.modules.get("dromlib.auto")
    if auto:
        auto.stop()  # a program that attaches decides for itself
    try:
        session._start()  # noqa: SLF001 - a friend
    except BaseException:
        session.close()
        raise
    if session.mode == "unmanaged":
        say.note("No agent answers: this program runs unmanaged.")
    return session


def malleable(
    items: Iterable[T], adapters: Iterable[str | Adapter] | None = None, min_cpus: int = 0, max_cpus: int = 0
) -> Generator[T, None, None]:
    """Yield the items; before each, apply the newest grant, and after it report the items done as progress.

    `items` is any iterable; the other arguments and the exceptions are those of `attach`. Of nested loops only the
    outermost reports its progress. The session ends with the loop, also after ``break`` or an exception; but an
    iterator that is still referenced outlives these two: its `close` ends the session. Iterate in the thread that
    computes.
    """
    with attach(adapters, min_cpus, max_cpus) as session:
        _loops.append(session)
        try:
            for done, item in enumerate(items, 1):
                grant = session.poll()
                if grant:
                    session.apply(grant)
                yield item
                if _loops[:1] == [session]:
                    session.progress(done)
        finally:
            if session in _loops:  # else this is a forked child, and the loop belongs to its parent
                _loops.remove(session)


_loops: list[Session] = []
"""The sessions of the `malleable` loops that have begun and not ended, in this order."""
os.register_at_fork(after_in_child=_loops.clear)
