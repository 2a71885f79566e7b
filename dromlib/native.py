"""Find and load the native part: libdrom, the launcher drom-run, the examples and the programs of the benchmarks."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _find(name: str) -> Path:
    # In an editable install the sources lie in the repository and what CMake built in site-packages.
    beside = Path(__file__).resolve().parent / name
    if beside.exists():
        return beside
    from importlib import metadata  # slow, and needed in an editable install alone

    try:
        installed = Path(str(metadata.distribution("drom").locate_file(f"dromlib/{name}"))).resolve()
    except metadata.PackageNotFoundError:
        installed = beside
    if not installed.exists():
        msg = f"dromlib/{name} is not built: install the package with: pip install -e ."
        raise FileNotFoundError(msg)
    return installed


def library_path() -> Path:
    """Return the path of libdrom.so."""
    return _find("lib/libdrom.so")


def preload_path() -> Path:
    """Return the path of libdrom-preload.so, which drom-run loads into programs."""
    return _find("lib/libdrom-preload.so")


def tool_path() -> Path:
    """Return the path of libdrom-tool.so, which OMP_TOOL_LIBRARIES may name."""
    return _find("lib/libdrom-tool.so")


def include_dir() -> Path:
    """Return the directory of drom.h."""
    return _find("include/drom.h").parent


def run_path() -> Path:
    """Return the path of the launcher drom-run."""
    return _find("bin/drom-run")


def step_path() -> Path:
    """Return the path of drom-step, which agents start for each job of a scheduler."""
    return _find("bin/drom-step")


def example_path(name: str) -> Path:
    """Return the path of the example `name`: ``jacobi`` is compiled on first use, ``numpy_blas.py`` needs no compiler.

    Raises FileNotFoundError if there is no such example or it cannot be compiled; the message says why.
    """
    return _program("examples", name)


def bench_path(name: str = "node") -> Path:
    """Return the path of a benchmark's program, compiled on first use: node, crowd, resize, regions, mpi and others.

    Raises FileNotFoundError if there is no such program or it cannot be compiled; the message says why.
    """
    return _program("bench", name)


def mpi_path() -> Path:
    """Return the path of drom_mpi.c as a library, compiled by the MPI compiler on first use.

    Raises FileNotFoundError if it cannot be compiled; the message says why.
    """
    return _program("include", "drom_mpi.so")


def _program(folder: str, name: str) -> Path:
    if name.endswith(".py"):
        return _find(f"{folder}/{name}")
    from dromlib import programs

    source = _find(f"{folder}/{name.removesuffix('.so')}.c")
    library = library_path().with_name("libdrom.a")
    return programs.build(source, include_dir(), library, is_module=name.endswith(".so"))


@functools.cache
def publisher() -> Callable[[ctypes.c_void_p, bytes, int, int], int]:
    """Return ``drom_publish(slot, mask_bytes, mask_words, reason) -> epoch``, called with minimal overhead.

    It keeps the interpreter lock, since releasing it takes longer than the call, and converts no argument, which would
    take as long again: `slot` has to be a ``c_void_p``, best created once, and `mask_bytes` is
    ``mask.to_bytes(8 * mask_words, "little")``.
    """
    function = ctypes.PyDLL(str(library_path())).drom_publish
    function.restype = ctypes.c_uint64
    publish: Callable[[ctypes.c_void_p, bytes, int, int], int] = function
    return publish


def publish(slot: int, mask: int, mask_words: int, reason: int) -> int:
    """Publish the grant `mask` (bit *c* for OS CPU *c*) in the slot at address `slot`; return its epoch."""
    return publisher()(ctypes.c_void_p(slot), mask.to_bytes(8 * mask_words, "little"), mask_words, reason)


@functools.cache
def _retirer() -> Callable[[ctypes.c_void_p], None]:
    function = ctypes.CDLL(str(library_path())).drom_retire
    function.restype = None
    retire: Callable[[ctypes.c_void_p], None] = function
    return retire


def retire(slot: int | ctypes.c_void_p) -> None:
    """Set the epoch of the slot at address `slot` to "retired" and wake the waiting threads."""
    _retirer()(slot if isinstance(slot, ctypes.c_void_p) else ctypes.c_void_p(slot))


def address(buffer: bytearray | memoryview, offset: int = 0) -> int:
    """Return the address of byte `offset` of a writable buffer, such as an ``mmap``, which must stay open."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer, offset))
