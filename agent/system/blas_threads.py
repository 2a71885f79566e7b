# SPDX-License-Identifier: Apache-2.0
"""Numpy without the threads of OpenBLAS, which drom calls for a few small fits only.

When numpy loads it, OpenBLAS starts a thread for each CPU but one, and each uses its CPU for 50 ms before it rests.
On a node with many cores each command would do so beside the programs that have these cores.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

VARIABLE = "OPENBLAS_NUM_THREADS"
"""The variable that OpenBLAS reads when it is loaded."""


def forgo_blas_threads() -> None:
    """Make numpy start no thread when this process imports it. Programs that this process starts are not affected."""
    if "numpy" not in sys.modules:
        sys.meta_path.insert(0, _Finder)


class _Finder:
    """Finds numpy, once, and has it loaded with one thread."""

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return numpy's specification, with a loader that sets the variable; None for any other module."""
        if fullname != "numpy":
            return None
        sys.meta_path.remove(_Finder)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_with_one_thread(module: ModuleType) -> None:
            given = os.environ.get(VARIABLE)
            os.environ[VARIABLE] = "1"
            try:
                execute(module)
            finally:
                if given is None:
                    del os.environ[VARIABLE]
                else:
                    os.environ[VARIABLE] = given

        spec.loader.exec_module = execute_with_one_thread  # type: ignore[method-assign]
        return spec
