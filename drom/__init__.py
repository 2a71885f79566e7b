# SPDX-License-Identifier: Apache-2.0
"""The command `drom`: mounts the commands of the other packages, none of which imports this package."""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's: `drom` starts with this module
if TYPE_CHECKING:
    __version__: str


def __getattr__(name: str) -> object:
    if name != "__version__":
        raise AttributeError(f"module 'drom' has no attribute '{name}'")
    import dromlib

    return dromlib.__version__
