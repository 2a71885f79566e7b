# SPDX-License-Identifier: Apache-2.0
"""The threads PyTorch uses inside an operation."""

from __future__ import annotations

import sys

from dromlib.adapters import imported

TYPE_CHECKING = False  # as typing's, whose import takes longer than all else here
if TYPE_CHECKING:
    from dromlib.grant import Grant


class Torch:
    """Sets the number of threads inside an operation; those between operations are fixed at their first use."""

    def available(self) -> bool:
        """PyTorch has been imported, to its end."""
        return hasattr(imported("torch"), "set_num_threads")

    def limit(self) -> None:
        """There is no limit: PyTorch makes more threads when it is told to."""

    def apply(self, grant: Grant) -> None:
        """Use as many threads as the grant has CPUs."""
        sys.modules["torch"].set_num_threads(grant.ncpus)
