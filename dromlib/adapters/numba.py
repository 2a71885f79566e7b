# SPDX-License-Identifier: Apache-2.0
"""The threads of numba's parallel loops."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as typing's, whose import takes longer than all else here
if TYPE_CHECKING:
    from typing import Any

    from dromlib.adapters import Adapter
    from dromlib.grant import Grant


class Numba:
    """Sets the number of threads that parallel loops started by the calling thread use.

    Numba starts its threads with the first parallel loop. Until then a number only waits for that: threads cannot be
    sized before they are, and once they are, processes forked off may have no parallel loops of their own, and the
    way in which ``multiprocessing`` starts processes is fixed. As its OpenMP layer starts them it loads a runtime, and
    sets in that all threads that it may ever use: the `others`, adapters of the same program, size anew what they find.
    """

    def __init__(self) -> None:
        self.others: list[Adapter] = []
        self._grant: Grant | None = None
        self._waiting = False

    def available(self) -> bool:
        """Numba has been imported, to its end."""
        return hasattr(sys.modules.get("numba"), "set_num_threads")

    def limit(self) -> int:
        """Numba makes no more threads than NUMBA_NUM_THREADS said when it was imported; drom-run sets that."""
        import numba

        return int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]

    def apply(self, grant: Grant) -> None:
        """Use as many threads as the grant has CPUs, as far as numba goes."""
        import numba

        parallel = sys.modules.get("numba.np.ufunc.parallel")
        self._grant = grant
        if getattr(parallel, "_is_initialized", True):
            numba.set_num_threads(min(grant.ncpus, self.limit()))
        elif not self._waiting:
            self._waiting = True
            self._await_launch(parallel)

    def _await_launch(self, parallel: Any) -> None:  # noqa: ANN401 - a module of which the type checker knows less
        """See to it that numba sets the newest number when it starts its threads: in this process, not in a fork."""
        pid, launch = os.getpid(), parallel._launch_threads  # noqa: SLF001 - looked up by numba at every use

        def launch_as_granted() -> None:
            parallel._launch_threads = launch  # noqa: SLF001
            self._waiting = False
            launch()
            if self._grant and os.getpid() == pid:
                self.apply(self._grant)
                for other in self.others:
                    if other.available():
                        other.apply(self._grant)

        parallel._launch_threads = launch_as_granted  # noqa: SLF001
