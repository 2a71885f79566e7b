# SPDX-License-Identifier: Apache-2.0
"""The folder of numba's compiled code, and a faster start of numba. Imports nothing slow but numba, on first use."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drom.agent.system.paths import numba_caches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType


def is_switched_off() -> bool:
    """Return whether NUMBA_DISABLE_JIT switches compiling off, without importing numba."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in {"", "0"}


def cache_folder(name: str, files: Sequence[Path]) -> Path | None:
    """Return a cache folder for exactly these files: numba detects a changed file, but no change in code that it calls.

    Numba identifies compiled code by path and modification time, so the folder depends on these and on the text. It
    lies in NUMBA_CACHE_DIR, otherwise in the first writable one of CACHE_DIRECTORY (systemd's), XDG_CACHE_HOME and
    ~/.cache; None if none is writable.
    """
    files = [file.resolve() for file in files]
    sources = b"".join(f"{file} {file.stat().st_mtime_ns} ".encode() + file.read_bytes() for file in files)
    digest = hashlib.sha256(sources).hexdigest()[:16]
    for place in numba_caches():
        folder = place / f"{name}-{digest}"
        with contextlib.suppress(OSError, RuntimeError):  # not writable, no home
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    return None


def start_without_scipy() -> None:
    """Load numba's array functions without scipy.linalg, which numba imports at this point only to see if it is there.

    That import takes about as long as loading a program from the cache. Code that uses linear algebra still imports it,
    when numba compiles that code or first runs it. Has no effect once numba has loaded these functions.
    """
    if importlib.util.find_spec("scipy") is None:
        return
    try:
        linalg = importlib.import_module("numba.np.linalg")
        ensure = linalg.ensure_blas
    except (ImportError, AttributeError):  # another numba has it elsewhere, and starts as it does
        return
    linalg.ensure_blas = lambda: None  # type: ignore[attr-defined] # numba is untyped
    try:
        importlib.import_module("numba.np.arraymath")
    finally:
        linalg.ensure_blas = ensure  # type: ignore[attr-defined] # numba is untyped


@contextlib.contextmanager
def caching(folder: Path | None) -> Iterator[None]:
    """Make a folder, if there is one, numba's cache for functions that a block decorates; start numba if need be."""
    numba: Any = importlib.import_module("numba")  # untyped
    start_without_scipy()
    configured = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder or configured)
    try:
        with _loading_code_alone():
            yield
    finally:
        numba.config.CACHE_DIR = configured


@contextlib.contextmanager
def _loading_code_alone() -> Iterator[None]:
    """Load functions from numba's cache without the rest of the compiler, which numba otherwise loads first.

    That takes a tenth of a second and 7 MB. What the code may call is known to the linker: the functions of numba's
    runtime, and the constants of hashes.
    """
    try:
        cache = importlib.import_module("numba.core.caching").Cache
        former, load, guard = cache.load_overload, cache._load_overload, cache._guard_against_spurious_io_errors  # noqa: SLF001
        initialize = importlib.import_module("numba.core.runtime").rtsys.initialize
        importlib.import_module("numba.cpython.hashing")
    except (ImportError, AttributeError):  # another numba has them elsewhere, and loads as it does
        yield
        return

    def load_overload(self: object, signature: object, context: Any) -> object:  # noqa: ANN401 - numba is untyped
        initialize(context)
        with guard(self):
            if (found := load(self, signature, context)) is not None:
                return found
        return former(self, signature, context)

    cache.load_overload = load_overload
    try:
        yield
    finally:
        cache.load_overload = former


def compiled(name: str, modules: Sequence[ModuleType], *functions: Callable[..., Any]) -> list[Any]:
    """Return functions that are compiled at their first call, or loaded from the cache `name` for exactly `modules`.

    With NUMBA_DISABLE_JIT they are returned as they are.
    """
    numba: Any = importlib.import_module("numba")  # untyped
    if numba.config.DISABLE_JIT:
        return list(functions)
    folder = cache_folder(name, [Path(str(module.__file__)) for module in modules])
    with caching(folder):
        return [numba.njit(function, cache=folder is not None, error_model="numpy") for function in functions]
