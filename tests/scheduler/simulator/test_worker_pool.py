# SPDX-License-Identifier: Apache-2.0
"""Simulations in processes of their own: what comes back, and how they end."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest
from drom.scheduler.errors import SchedulerError
from drom.scheduler.simulator.worker_pool import run_each

if TYPE_CHECKING:
    from pathlib import Path


def square(number: int) -> int:
    """Return the square of a number."""
    return number * number


def die(number: int) -> None:
    """End as the kernel ends who has taken too much memory; with 0 just return."""
    if number:
        os.kill(os.getpid(), signal.SIGKILL)


def wait_after(number: int) -> int:
    """Return 0 at once, and other numbers never."""
    if number:
        time.sleep(600)
    return number


def threads_with_numpy(_number: int) -> int:
    """Return how many threads this process has once numpy is loaded."""
    importlib.import_module("numpy")
    return len(psutil.Process().threads())


def test_each_result_has_its_number() -> None:
    """More tasks than run at once, in whichever order they end."""
    found: dict[int, int] = {}
    run_each(square, [(n,) for n in range(7)], 2, found.__setitem__)

    assert found == {n: n * n for n in range(7)}


def test_no_process_has_threads_for_blas() -> None:
    """They would be as many as there are CPUs, for each process."""
    found: dict[int, int] = {}
    run_each(threads_with_numpy, [(0,), (1,)], 2, found.__setitem__)

    assert found == {0: 1, 1: 1}


def test_a_script_is_not_executed_again(tmp_path: Path) -> None:
    """Also without a guard, as that of the installed command; the main module is there again afterwards."""
    script = tmp_path / "script.py"
    script.write_text(
        "import math, sys\nfrom drom.scheduler.simulator.worker_pool import run_each\nprint('once')\n"
        "run_each(math.factorial, [(3,), (4,)], 2, lambda number, found: print(number, found))\n"
        "assert sys.modules['__main__'].math is math\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)

    assert sorted(done.stdout.splitlines()) == ["0 6", "1 24", "once"]


def test_a_process_that_is_killed() -> None:
    """Nobody waits for what will never come, and no process is left."""
    with pytest.raises(SchedulerError, match="killed: run fewer at once"):
        run_each(die, [(0,), (1,), (0,)], 2, lambda *_: None)
    assert not multiprocessing.active_children()


def test_interrupted() -> None:
    """Those that are at work are ended, and not waited for."""

    def stop(_number: int, _result: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_each(wait_after, [(0,), (1,), (1,)], 2, stop)
    assert not multiprocessing.active_children()
