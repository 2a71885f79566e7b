# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread

import pytest
from drom.agent.system import python_command

from tests.support.agents import SECONDS, environment
from tests.support.paths import ROOT

TOPOLOGY = ["topology", "--emulate", "core:1"]


@pytest.fixture
def poisoned(tmp_path: Path) -> Path:
    """Return a folder with modules in it that have the names of ours and of Python's, and end who imports them."""
    for name in ("agent", "drom", "dromlib", "scheduler", "numba", "runpy", "signal", "typing"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('poisoned')", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("safe", ["", "1"])
@pytest.mark.parametrize(
    "command",
    [
        python_command.drom(*TOPOLOGY),
        python_command.module("drom", *TOPOLOGY),
        python_command.python("from drom.__main__ import main; import numba; main()", *TOPOLOGY),
    ],
    ids=["drom", "module", "python"],
)
def test_the_current_directory_has_no_say(poisoned: Path, command: list[str], safe: str) -> None:
    """What lies there is not loaded, whether or not Python was told so already."""
    env = environment(PYTHONSAFEPATH=safe)
    done = subprocess.run(command, cwd=poisoned, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1 package, ")


def test_what_the_agent_becomes_is_loaded_from_where_drom_lies(poisoned: Path) -> None:
    """An agent started in a folder of somebody else runs nothing of it: here it gets as far as to its own refusal."""
    drom = str(Path(sys.executable).with_name("drom"))
    command = [drom, "agent", "--emulate", "core:1", "--runtime-dir", "/dev/null"]
    env = environment(NUMBA_DISABLE_JIT="1")
    done = subprocess.run(command, cwd=poisoned, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)

    assert done.returncode == 1
    assert "/dev/null" in done.stderr


def test_whatever_we_start_in_python_is_started_so() -> None:
    """No other module of ours gives Python a module or a program on its command line."""
    sources = [path for part in ("agent", "scheduler") for path in (ROOT / part).rglob("*.py")]
    others = [path.name for path in sources if re.search(r'executable,\s*"-[cmI]"', path.read_text(encoding="utf-8"))]

    assert others == ["python_command.py"]


def test_other_threads_may_import_meanwhile() -> None:
    """Their modules come and go while the list of modules is read."""
    interval, names, is_over = sys.getswitchinterval(), [f"imported_{number}" for number in range(500)], Event()

    def imports() -> None:
        while not is_over.is_set():
            sys.modules.update(dict.fromkeys(names, sys))
            for name in names:
                del sys.modules[name]

    other = Thread(target=imports)
    other.start()
    sys.setswitchinterval(1e-6)
    try:
        commands = {tuple(python_command.python("pass")) for _ in range(1000)}
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        other.join()

    assert len(commands) == 1
