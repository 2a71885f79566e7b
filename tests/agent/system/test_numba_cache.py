# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from drom.agent.system.numba_cache import caching, compiled

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import sys
from drom.agent.system.numba_cache import start_without_scipy
start_without_scipy()
import numba, numpy
double = numba.njit("int64(int64)")(lambda n: 2 * n)
print(double(21), "scipy.linalg" in sys.modules)
square = numba.njit("float64[:, ::1](float64[:, ::1])")(lambda a: numpy.dot(a, a))
print(square(numpy.full((2, 2), 2.0)).tolist(), "scipy.linalg" in sys.modules)
"""


def test_numba_starts_without_scipy_and_loads_it_for_linear_algebra() -> None:
    """Compiled code that uses no linear algebra needs no scipy; numpy.dot compiles as ever."""
    pytest.importorskip("scipy", reason="needs scipy")
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["42 False", "[[8.0, 8.0], [8.0, 8.0]] True"]


def double(number: int) -> int:
    """Return twice a number."""
    return 2 * number


def test_functions_are_compiled_into_a_cache_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The machine code is in a folder named after the cache."""
    pytest.importorskip("numba")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    (function,) = compiled("some", [sys.modules[__name__]], double)

    assert function(21) == 42
    assert list(tmp_path.glob("some-*/**/*.nbc"))


def test_the_folder_of_a_cache_is_numbas_only_within_the_block(tmp_path: Path) -> None:
    """Numba's own setting is restored."""
    config = pytest.importorskip("numba").config
    configured = config.CACHE_DIR
    with caching(tmp_path):
        within = config.CACHE_DIR

    assert [within, config.CACHE_DIR] == [str(tmp_path), configured]


LOADING = """
import sys
from pathlib import Path
from drom.agent.system.numba_cache import caching
import numba, numpy

def count(n):
    return len(numpy.arange(n))  # memory of numba's runtime

with caching(Path(sys.argv[1])):
    counted = numba.njit("int64(int64)", cache=True)(count)
print(counted(42), "numba.cpython.setobj" in sys.modules)
if sys.argv[2:]:
    print(numba.njit(lambda n: len({n, 2 * n}))(21))
"""


def test_a_function_is_loaded_without_the_compiler(tmp_path: Path) -> None:
    """What is in the cache is loaded without numba's implementations of Python, which a later compilation loads."""
    pytest.importorskip("numba")
    program = tmp_path / "program.py"
    program.write_text(LOADING, encoding="utf-8")
    command: list[str | Path] = [sys.executable, program, tmp_path / "cache"]
    runs = [
        subprocess.run([*command, *more], capture_output=True, text=True, check=False) for more in ([], ["compiling"])
    ]

    assert [(one.returncode, one.stderr) for one in runs] == [(0, ""), (0, "")]
    assert [one.stdout for one in runs] == ["42 True\n", "42 False\n2\n"]


def test_without_compilation_functions_are_returned_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """NUMBA_DISABLE_JIT switches compilation off."""
    monkeypatch.setattr(pytest.importorskip("numba").config, "DISABLE_JIT", 1)

    assert compiled("some", [sys.modules[__name__]], double) == [double]
