# SPDX-License-Identifier: Apache-2.0
"""The adapter for the threads that PyTorch uses inside an operation."""

from __future__ import annotations

import sys

from dromlib.adapters import imported

TYPE_CHECKING = False  # as typing's, whose import takes longer than all else here
if TYPE_CHECKING:
    from dromlib.grant import Grant


class Torch:
    """Sets the number of threads inside an operation; the number between operations is fixed at its first use."""

    def available(self) -> bool:
        """Return whether PyTorch's import has finished."""
        return hasattr(imported("torch"), "set_num_threads")

    def limit(self) -> None:
        """Return None: PyTorch makes more threads on request."""

    def apply(self, grant: Grant) -> None:
        """Use as many threads as the grant has CPUs."""
        sys.modules["torch"].set_num_threads(grant.ncpus)
