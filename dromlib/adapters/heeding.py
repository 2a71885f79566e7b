# SPDX-License-Identifier: Apache-2.0
"""The adapters of numba and PyTorch for programs that do not use drom's interface.

A program that queries the number of threads may allocate memory for that many, and another thread would write beyond
it; a program that sets a number depends on it. From then on the number stays, and the threads share the CPUs of the
grant.
"""

from __future__ import annotations

import sys
from functools import wraps

from dromlib.adapters import imported, numba, torch

TYPE_CHECKING = False  # as typing's, whose import takes longer than all else here
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import TypeVar

    from dromlib.grant import Grant

    T = TypeVar("T")

SPEAKING = ("get_num_threads", "set_num_threads", "ol_get_num_threads", "ol_set_num_threads")
"""Functions of numba that start its threads if necessary: those that programs call, and those that numba calls when
it compiles a call of one of them.
"""


class HeedingNumba(numba.Numba):
    """Leaves numba's number alone once the program, or code compiled by numba for it, has queried or set it.

    Numba's functions are not replaced, because numba recognises by them what to compile.
    """

    def __init__(self) -> None:
        super().__init__()
        self._heard = False

    def available(self) -> bool:
        """Return whether numba's import has finished; from then on, calls of the program are observed."""
        found = super().available()
        if found:
            self._watch()
        return found

    def apply(self, grant: Grant) -> None:
        """Use as many threads as the grant has CPUs, as far as numba and the program allow."""
        if not self._heard:
            super().apply(grant)

    def _launched(self, caller: FrameType) -> None:
        super()._launched(caller)
        before = caller.f_back
        if caller.f_code.co_name in SPEAKING and not (before and before.f_globals.get("__name__") == numba.__name__):
            self._heard = True


PINNING = "torch.utils.data._utils.pin_memory"
"""The module of PyTorch that sets the number in a thread of its own: the number of that thread alone."""
COMPILING = "torch._dynamo.convert_frame"
"""The module of PyTorch that compiles."""


class HeedingTorch(torch.Torch):
    """Leaves PyTorch's number alone once the program has queried or set it, or has had something compiled.

    The number is that of an OpenMP runtime, which `Blas` sizes before: this adapter then restores it.
    """

    def __init__(self) -> None:
        self._heard = False
        self._get: Callable[[], int] | None = None
        self._number = 0

    def available(self) -> bool:
        """Return whether PyTorch's import has finished; from then on, calls of the program are observed."""
        found = super().available()
        if found and not self._get:
            module = sys.modules["torch"]
            self._get, self._set = module.get_num_threads, module.set_num_threads
            module.get_num_threads = self._hearing(self._get)  # type: ignore[attr-defined]
            module.set_num_threads = self._hearing(self._set, but=PINNING)  # type: ignore[attr-defined]
        if self._get:
            self._number = self._get()
        return found

    def apply(self, grant: Grant) -> None:
        """Use as many threads as the grant has CPUs, or the number found by `available` if the program has used it."""
        self._set(self._number if self._heard or _compiles() else grant.ncpus)

    def _hearing(self, call: Callable[..., T], but: str = "") -> Callable[..., T]:
        @wraps(call)
        def hear(*arguments: object, **keywords: object) -> T:
            if not but or sys._getframe(1).f_globals.get("__name__") != but:  # noqa: SLF001 - CPython has it
                self._heard = True
            return call(*arguments, **keywords)

        return hear


def _compiles() -> bool:
    """Return whether PyTorch compiles in this thread, or has compiled.

    A compilation fails if the number changes meanwhile, and later PyTorch compiles anew for each number, a limited
    number of times.
    """
    module = imported(COMPILING)
    lock = getattr(module, "compile_lock", None)
    return bool(getattr(module, "FRAME_COUNTER", 0) or (lock and lock._is_owned()))  # noqa: SLF001 - nothing else says
