# SPDX-License-Identifier: Apache-2.0
"""Numpy without the threads of OpenBLAS: each test is a process of its own, which loads numpy."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

REPORT = """
import os, subprocess, sys
import numpy
numpy.ones((300, 300)) @ numpy.ones((300, 300))
child = [sys.executable, "-c", "import os; print(os.environ.get('OPENBLAS_NUM_THREADS'))"]
print(len(os.listdir("/proc/self/task")), numpy.__spec__.name, subprocess.check_output(child, text=True).strip())
"""


@pytest.mark.parametrize("given", [None, "7"])
def test_numpy_starts_no_thread(given: str | None) -> None:
    """Not even where the environment asks for some, which is left as it was for programs that are started."""
    told = {"OPENBLAS_NUM_THREADS": given} if given else {}
    code = "from drom.agent.system.blas_threads import forgo_blas_threads; forgo_blas_threads()" + REPORT
    assert _output(code, **told) == f"1 numpy {given}\n"


def test_a_command_starts_no_thread() -> None:
    """Neither does what a command of drom imports later."""
    code = """
import sys
sys.argv[1:] = ["--version"]
from drom.__main__ import main
try:
    main()
except SystemExit:
    pass
"""
    assert _output(code + REPORT).splitlines()[-1] == "1 numpy None"


def test_numpy_that_is_there_stays_as_it_is() -> None:
    """A program that has loaded numpy keeps it, and its way to import."""
    code = """
import numpy, sys
from drom.agent.system.blas_threads import forgo_blas_threads
before = list(sys.meta_path)
forgo_blas_threads()
assert sys.meta_path == before
"""
    assert _output(code) == ""


def _output(code: str, **told: str) -> str:
    """Return what a program prints."""
    env = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"} | told
    return subprocess.run(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=60
    ).stdout
