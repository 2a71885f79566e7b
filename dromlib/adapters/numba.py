# SPDX-License-Identifier: Apache-2.0
"""The adapter for the threads of numba's parallel loops."""

from __future__ import annotations

import os
import sys

from dromlib.adapters import imported

TYPE_CHECKING = False  # as typing's, whose import takes longer than all else here
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from dromlib.adapters import Adapter
    from dromlib.grant import Grant

PARALLEL = "numba.np.ufunc.parallel"


class Numba:
    """Sets the number of threads that parallel loops started by the calling thread use.

    Numba starts its threads with the first parallel loop. Until then the number is only stored: threads cannot be sized
    before they exist, and once they exist, forked processes may have no parallel loops of their own, and the start
    method of ``multiprocessing`` is fixed. When numba's OpenMP layer starts them, it loads a runtime and sets its
    number to all threads that it may ever use: `together`, the adapters of the same program, are then applied again.
    """

    def __init__(self) -> None:
        self.together: list[Adapter] = [self]
        self._grant: Grant | None = None
        self._waits_in = 0
        self._watches = False

    def available(self) -> bool:
        """Return whether numba's import has finished."""
        return hasattr(imported("numba"), "set_num_threads")

    def limit(self) -> int:
        """Return NUMBA_NUM_THREADS at numba's import, the most threads that it makes; drom-run sets that variable."""
        import numba

        return int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]

    def apply(self, grant: Grant) -> None:
        """Use as many threads as the grant has CPUs, at most `limit`."""
        import numba

        self._grant = grant
        if getattr(sys.modules.get(PARALLEL), "_is_initialized", True):
            numba.set_num_threads(min(grant.ncpus, self.limit()))
        else:
            self._waits_in = os.getpid()
            self._watch()

    def _watch(self) -> None:
        """Call `_launched` from now on whenever a function of numba has made sure that its threads exist."""
        parallel: Any = sys.modules.get(PARALLEL)
        if self._watches or not parallel:
            return
        self._watches = True
        launch = parallel._launch_threads  # noqa: SLF001 - looked up by numba at every use

        def launch_and_tell() -> None:
            launch()
            self._launched(sys._getframe(1))  # noqa: SLF001 - CPython has it

        parallel._launch_threads = launch_and_tell  # noqa: SLF001

    def _launched(self, _: FrameType) -> None:
        """Set the stored number once the threads exist: in this process, not in a fork."""
        if self._grant and self._waits_in == os.getpid():
            self._waits_in = 0
            for one in self.together:
                if one.available():
                    one.apply(self._grant)
