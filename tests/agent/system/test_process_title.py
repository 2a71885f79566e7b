# SPDX-License-Identifier: Apache-2.0
"""Names of processes, with the real pgrep and ps."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.agents import start_agent
from tests.support.clusters import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CODE = """
import sys
from drom.agent.system.process_title import set_title
set_title(*sys.argv[1:])
print(sys.argv, flush=True)
sys.stdin.read()
"""


def asked(*command: str) -> str:
    """Return what a command prints."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@contextmanager
def titled(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a Python that calls `set_title` with these words; it lives until the block ends."""
    command = [sys.executable, "-c", CODE, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == f"{['-c', *words]}\n"  # what the process itself has stays
        yield process
        process.stdin.close()


@pytest.mark.parametrize("words", [("drom-x",), ("drom-x", "--dir", "/a b", "ü"), ("drom-x", "w" * 5000)])
def test_a_process_has_the_name_and_words_that_it_was_given(words: tuple[str, ...]) -> None:
    """However few or many they are, nothing of the former command line is left."""
    with titled(*words) as process:
        assert str(process.pid) in asked("pgrep", "-x", "drom-x").split()
        assert asked("ps", "-ww", "-o", "args=", "-p", str(process.pid)) == " ".join(words)


def test_agents_and_schedulers_are_found_by_their_names(tmp_path: Path) -> None:
    """`pgrep drom-agent` and `pgrep drom-scheduler` have them, and `ps` shows where they serve."""
    with start_agent(tmp_path, "--emulate", "core:2", forked=False) as agent:
        pid = str(agent.process.pid)
        assert pid in asked("pgrep", "-x", "drom-agent").split()
        assert asked("ps", "-ww", "-o", "args=", "-p", pid) == f"drom-agent --runtime-dir {agent.dir}"
        assert pid in asked("pgrep", "-f", f"^drom-agent --runtime-dir {agent.dir}$").split()
    (tmp_path / "cluster").mkdir()
    here = Cluster(tmp_path / "cluster")
    here.start(forked=False)
    try:
        pid = asked("pgrep", "-x", "-P", str(os.getpid()), "drom-scheduler")
        shown = asked("ps", "-ww", "-o", "args=", "-p", pid)
        assert shown.startswith(f"drom-scheduler --state {here.state} --silence 1000 ")
    finally:
        here.end()
