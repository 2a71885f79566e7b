# SPDX-License-Identifier: Apache-2.0
"""Compile the examples and the programs of the benchmarks on first use.

drom is installed with their sources, because a compiled program depends on the MPI library and the OpenMP runtime of
the machine that compiled it. What this user has compiled is kept below XDG_CACHE_HOME, otherwise ~/.cache.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dromlib.errors import DromError

if TYPE_CHECKING:
    from collections.abc import Sequence

COMPILERS = {"MPICC": "mpicc", "CC": "cc"}
"""The variables that name the compilers of MPI programs and of others, and what they are if unset."""


class BuildError(DromError, FileNotFoundError):
    """Raised when a program is not there and cannot be compiled; the message is a sentence for users."""


def build(source: Path, include: Path, library: Path, *, is_module: bool = False) -> Path:
    """Return the program compiled from the C file `source`, compiling it unless it was compiled from the same files.

    `include` is the folder of drom.h and `library` the path of libdrom.a. With `is_module` the result is a shared
    object that other programs load. The variables CC, MPICC and CFLAGS have their usual meanings. Raises `BuildError`
    if there is no compiler, it fails, or no folder can be written.
    """
    command = _command(source, include, library, is_module=is_module)
    folder = _cache() / _digest(command, [*source.parent.iterdir(), *include.glob("*.[ch]"), library])
    program = folder / (f"{source.stem}.so" if is_module else source.stem)
    if not program.exists():
        _compile(command, source.name, program)
    return program


def _command(source: Path, include: Path, library: Path, *, is_module: bool) -> list[str]:
    """Return the command that compiles a program, without the name of the result: its headers say what it needs."""
    import re
    import shlex

    headers = set(re.findall(r"#include <(\w+)\.h>", source.read_text(encoding="utf-8")))
    variable = "MPICC" if "mpi" in headers else "CC"
    compiler = shlex.split(os.environ.get(variable, "")) or [COMPILERS[variable]]
    flags = ["-O2", "-g", "-D_GNU_SOURCE", *shlex.split(os.environ.get("CFLAGS", ""))]
    flags += ["-fopenmp"] * ("omp" in headers) + ["-shared", "-fPIC"] * is_module
    sources = [str(source), *[str(include / "drom_mpi.c")] * ("drom_mpi" in headers)]
    return [*compiler, *flags, f"-I{include}", *sources, str(library), "-lm", "-ldl", "-pthread"]


def _digest(command: Sequence[str], files: Sequence[Path]) -> str:
    """Return a name for the contents of files, the compiler and its flags: programs compiled alike share a folder."""
    import hashlib
    import shutil

    flags = [word for word in command[1:] if not word.endswith(".c")]
    words = [os.path.realpath(shutil.which(command[0]) or command[0]), *flags]
    digest = hashlib.sha256("\0".join(words).encode())
    for file in sorted(files):
        if file.is_file():
            digest.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _cache() -> Path:
    home = os.path.expanduser("~/.cache")  # noqa: PTH111 - pathlib's fails without a home
    return Path(os.environ.get("XDG_CACHE_HOME") or home) / "drom" / "programs"


def _compile(command: Sequence[str], name: str, program: Path) -> None:
    """Run the compiler in a scratch folder beside `program`, so that no process sees half a program."""
    import tempfile

    try:
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
            result = Path(scratch) / program.name
            _run([*command, "-o", str(result)], name)
            result.replace(program)
    except BuildError:
        raise
    except OSError as error:
        raise BuildError(f"{program.parent} cannot be written ({error.strerror}): set XDG_CACHE_HOME.") from error


def _run(command: Sequence[str], name: str) -> None:
    """Run a compiler that has to succeed."""
    import subprocess

    compiler = command[0]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{name} is compiled on first use, by {compiler}: install it, or set CC or MPICC.") from error
    if done.returncode:
        lines = done.stderr.splitlines() or ["it gives no reason"]
        reason = next((line for line in lines if "error" in line), lines[-1])
        raise BuildError(f"{compiler} cannot compile {name}: {reason.strip()}")
