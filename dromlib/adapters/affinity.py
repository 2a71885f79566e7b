# SPDX-License-Identifier: Apache-2.0
"""The adapter that binds every thread of the process to the CPUs of the grant."""

from __future__ import annotations

from dromlib._handle import bind_threads

TYPE_CHECKING = False  # as typing's, whose import takes longer than all else here
if TYPE_CHECKING:
    from dromlib.grant import Grant


class Affinity:
    """Binds threads, the calling one first; it repeats the walk over all threads until none is left to bind."""

    def available(self) -> bool:
        """Return True: there are always threads."""
        return True

    def limit(self) -> None:
        """Return None: there is no limit."""

    def apply(self, grant: Grant) -> None:
        """Bind every thread to the grant's CPUs, unless they are synthetic. Raises OSError if that fails."""
        if not grant.emulated:
            bind_threads(grant.cpus)
