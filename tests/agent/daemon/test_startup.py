# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from drom.agent.config.addresses import metrics_address
from drom.agent.config.options import Options
from drom.agent.config.sources import Sources
from drom.agent.daemon import startup
from drom.agent.errors import ControlError
from drom.agent.topology.detect import find_machine
from drom.agent.topology.machine import warnings_of
from drom.agent.topology.synthetic import synthetic_topology

from tests.support.recorded_machines import grow, two_by_two

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("metrics", "address"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        (":9464", ("127.0.0.1", 9464)),
        ("9464", ("127.0.0.1", 9464)),
        ("[::1]:9464", ("::1", 9464)),
        ("node-1.example:0", ("node-1.example", 0)),
    ],
)
def test_the_address_of_the_metrics(metrics: str, address: tuple[str, int]) -> None:
    """An address and a port are told apart; without an address it is this machine alone."""
    assert metrics_address(metrics) == address


def test_a_python_that_may_not_be_run_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent takes the place of the command line in a fresh interpreter, which its user must be able to start."""
    python = tmp_path / "python"
    python.touch()
    monkeypatch.setattr(sys, "executable", str(python))

    with pytest.raises(ControlError, match=rf"^this user cannot run {python} \(Permission denied\): use one in .*\.$"):
        startup.exec_agent(Options(runtime_dir=str(tmp_path)), Sources())


def test_without_a_cpu_there_is_no_agent(tmp_path: Path) -> None:
    """A machine of which nothing may be used is refused before anything is made."""
    machine = replace(synthetic_topology("core:2"), allowed=0)

    with pytest.raises(ControlError, match=r"^no CPU may be managed here: .*\.$"):
        startup.run(machine, Options(str(tmp_path / "run")), Sources())
    assert list(tmp_path.iterdir()) == []


def test_words_over_a_machine_keep_its_limits(tmp_path: Path) -> None:
    """A synthetic machine over real CPUs has their quota and memory, and no more right to set affinity."""
    files = two_by_two() | {"proc/meminfo": "MemTotal:  4 kB\n", "proc/self/cgroup": "0::/\n"}
    files["sys/fs/cgroup/cpu.max"] = "200000 100000"
    machine = find_machine("pack:2 core:2", None, grow(tmp_path, files))

    assert (machine.quota, machine.memory, machine.emulated) == (2.0, 4096, True)
    assert [group.cpus for group in machine.packages] == [3, 12]
    assert "has room for 2 cores of 4" in warnings_of(machine)[0]
