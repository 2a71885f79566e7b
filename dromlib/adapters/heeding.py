# SPDX-License-Identifier: Apache-2.0
"""The adapters of numba and PyTorch for programs that know nothing of drom.

A program that asks for a number of threads may make room for so many, and a thread more would write beyond it; one that
sets a number means it. From then on the number stays as it is, and the threads share the CPUs of the grant.
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
"""Functions of numba's that see to it that there are threads: those that programs call, and those that numba calls as
it compiles a call of one of them."""


class HeedingNumba(numba.Numba):
    """Leaves numba's number alone once the program, or code that numba has compiled for it, has spoken of it.

    Numba's functions stay what they are: by them it knows what to compile.
    """

    def __init__(self) -> None:
        super().__init__()
        self._heard = False

    def available(self) -> bool:
        """Numba has been imported, to its end; from then on what the program says is heard."""
        found = super().available()
        if found:
            self._watch()
        return found

    def apply(self, grant: Grant) -> None:
        """Use as many threads as the grant has CPUs, as far as numba and the program go."""
        if not self._heard:
            super().apply(grant)

    def _launched(self, caller: FrameType) -> None:
        super()._launched(caller)
        before = caller.f_back
        if caller.f_code.co_name in SPEAKING and not (before and before.f_globals.get("__name__") == numba.__name__):
            self._heard = True


PINNING = "torch.utils.data._utils.pin_memory"
"""The module of PyTorch's that sets the number in a thread of its own: the number of that thread alone."""
COMPILING = "torch._dynamo.convert_frame"
"""The module of PyTorch's that compiles."""


class HeedingTorch(torch.Torch):
    """Leaves PyTorch's number as it is once the program has asked for it or set it, or has had something compiled.

    The number is that of an OpenMP runtime, which is sized before: it is put back then.
    """

    def __init__(self) -> None:
        self._heard = False
        self._get: Callable[[], int] | None = None
        self._number = 0

    def available(self) -> bool:
        """PyTorch has been imported, to its end; from then on what the program says is heard."""
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
        """Use as many threads as the grant has CPUs, or as many as `available` found."""
        self._set(self._number if self._heard or _compiles() else grant.ncpus)

    def _hearing(self, call: Callable[..., T], but: str = "") -> Callable[..., T]:
        @wraps(call)
        def hear(*arguments: object, **keywords: object) -> T:
            if not but or sys._getframe(1).f_globals.get("__name__") != but:  # noqa: SLF001 - CPython has it
                self._heard = True
            return call(*arguments, **keywords)

        return hear


def _compiles() -> bool:
    """Say whether PyTorch compiles in this thread, or has compiled.

    It fails where the number changes meanwhile, and later compiles anew for each number, only so often.
    """
    module = imported(COMPILING)
    lock = getattr(module, "compile_lock", None)
    return bool(getattr(module, "FRAME_COUNTER", 0) or (lock and lock._is_owned()))  # noqa: SLF001 - nothing else says
