# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys

import pytest

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
