# SPDX-License-Identifier: Apache-2.0
"""Every thread of the process on the CPUs of the grant."""

from __future__ import annotations

from dromlib._handle import bind_threads

TYPE_CHECKING = False  # as typing's, whose import takes longer than all else here
if TYPE_CHECKING:
    from dromlib.grant import Grant


class Affinity:
    """Binds threads, the calling one first; it walks the process until a pass finds nothing to bind."""

    def available(self) -> bool:
        """Threads are always there."""
        return True

    def limit(self) -> None:
        """There is no limit."""

    def apply(self, grant: Grant) -> None:
        """Bind every thread to the grant's CPUs, unless they are synthetic. Raises OSError when one cannot be."""
        if not grant.emulated:
            bind_threads(grant.cpus)
