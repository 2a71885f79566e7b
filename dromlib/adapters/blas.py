# SPDX-License-Identifier: Apache-2.0
"""The adapter for the thread pools of BLAS libraries and OpenMP runtimes in the process, through threadpoolctl."""

from __future__ import annotations

from dromlib import say

TYPE_CHECKING = False  # as typing's, whose import takes longer than all else here
if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

    from dromlib.grant import Grant


class Blas:
    """Sizes every pool found in the process. OpenMP stores the number for the calling thread alone."""

    def __init__(self) -> None:
        self._pools: ThreadpoolController | None = None
        self._warned = False

    def available(self) -> bool:
        """Return whether a pool is loaded, by a new search. Without threadpoolctl none is found, with a warning."""
        try:
            self._pools = _find_pools()
        except ImportError:
            say.warn("threadpoolctl 3 is not installed: the threads of BLAS and OpenMP stay as many as they are.")
            return False
        return bool(self._pools.lib_controllers)

    def limit(self) -> None:
        """Return None: the pools make more threads on request."""

    def apply(self, grant: Grant) -> None:
        """Use as many threads as the grant has CPUs, in every pool found by `available`."""
        assert self._pools, "available() comes first"  # noqa: S101 - for the type checker
        self._pools.limit(limits=grant.ncpus)
        self._warn_of_two([pool["filepath"] for pool in self._pools.info() if pool["user_api"] == "openmp"])

    def _warn_of_two(self, runtimes: list[str]) -> None:
        if len(runtimes) > 1 and not self._warned:
            self._warned = True
            names = " and ".join(sorted(runtimes))
            say.warn(
                f"Two OpenMP runtimes are loaded, {names}: both are given the grant's number of threads; build the "
                "program's libraries with one of them, or its threads are more than its CPUs."
            )


def _find_pools() -> ThreadpoolController:
    """Find all pools, without threadpoolctl's warning of both Intel's and LLVM's OpenMP: `Blas` warns itself."""
    from threadpoolctl import ThreadpoolController

    class Pools(ThreadpoolController):  # type: ignore[misc]
        def _warn_if_incompatible_openmp(self) -> None:
            pass

    return Pools()
