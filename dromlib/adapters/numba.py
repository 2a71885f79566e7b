# SPDX-License-Identifier: Apache-2.0
"""The threads of numba's parallel loops."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as typing's, whose import takes longer than all else here
if TYPE_CHECKING:
    from dromlib.grant import Grant


class Numba:
    """Sets the number of threads that parallel loops started by the calling thread use."""

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

        numba.set_num_threads(min(grant.ncpus, self.limit()))
