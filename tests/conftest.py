# SPDX-License-Identifier: Apache-2.0
"""Fixtures of more than one module."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from drom.agent.ipc import cpu_locks
from hypothesis import HealthCheck, settings

from tests.support.child_processes import Child, build, running
from tests.support.left_processes import LeftProcesses
from tests.support.openmp_registrations import no_registrations
from tests.support.paths import ROOT
from tests.support.schedules import SHARING

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

# What a property says does not depend on the speed of a machine. Each run tries the same examples, so that a change is
# judged by what it does; `make test-random` looks for new ones.
settings.register_profile("same", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("random", settings.get_profile("same"), derandomize=False, print_blob=True)
settings.register_profile("fuzz", settings.get_profile("random"), max_examples=20_000)
settings.load_profile("same")


# What a shell starts in the background ignores Ctrl-C, and so would every program that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


SLOWEST = (
    "system/test_adaptive_mpi.py",
    "system/test_adaptive_nodes.py",
    "system/test_openmp.py",
    "system/test_fillers.py",
    "scheduler/live/cluster/test_cluster.py",
    "examples/test_managed.py",
    "examples/test_mpi.py",
    "system/test_bad_input.py",
    "scheduler/comparison/test_compare_policies.py",
    "scheduler/reproduction/sd_policy/test_real_run.py",
    "docs/test_simulate.py",
    "system/test_interactive.py",
    "scheduler/policies/test_sd_nodes.py",
    "agent/checkpoint/test_fillers.py",
    "agent/bench/test_resize.py",
    "scheduler/reproduction/gap_filling/test_live.py",
    "system/test_controllers.py",
    "system/test_cluster.py",
    "scheduler/demo/test_controllers.py",
    "agent/checkpoint/test_crashes.py",
    "scheduler/cli/test_simulate.py",
    "scheduler/reproduction/adaptive/test_live.py",
    "test_packaging.py",
    "system/test_faults.py",
    "dromlib/test_adapters.py",
    "scheduler/reproduction/cp/test_live.py",
    "agent/placement/kernel/test_distributor.py",
    "system/test_crash_points.py",
    "drom/test_app.py",
    "system/test_filler_kills.py",
    "docs/test_notebooks.py",
)
"""The modules that take longest, the longest first, and those that wait among those that compute; paths below tests."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without looking for garbage, which they are not: neither now nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the slowest modules first, so that no worker is left with one of them when the others are done."""
    rank = {ROOT / "tests" / name: place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: rank.get(item.path, len(SLOWEST)))


@pytest.fixture(scope="session", autouse=True)
def _apart_from_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what tests start apart from agents of this machine, and from jobs of Slurm on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cpu_locks.VARIABLE, str(tmp_path_factory.mktemp("claims")))
        patch.setenv("DROM_IGNORE_SLURM", "1")
        yield


@pytest.fixture(scope="session", autouse=True)
def _left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeftProcesses]:
    """Leave no process running, not even one that has lost its parent."""
    left = LeftProcesses(tmp_path_factory.getbasetemp())
    yield left
    left.assert_none()


@pytest.fixture(scope="module", autouse=True)
def _no_orphans(_left: LeftProcesses, _apart_from_this_machine: None) -> Iterator[None]:
    """Leave no process running that has lost its parent; other processes may serve several modules."""
    yield
    _left.assert_none(orphans=True)


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """Leave the environment as it was: what an imported library adds would reach the programs of later tests."""
    before = dict(os.environ)
    yield
    added = {name: value for name, value in os.environ.items() if before.get(name) != value}
    added.pop("PYTEST_CURRENT_TEST", None)
    for name in [one for one in added if one.startswith("KMP_")]:  # joblib and threadpoolctl set them when imported
        del added[name], os.environ[name]
    assert not added, "this test leaves variables in the environment"


@pytest.fixture(scope="session", autouse=True)
def _registrations_of_the_killed() -> Iterator[None]:
    """Leave nothing of killed OpenMP programs in /dev/shm."""
    with no_registrations():
        yield


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a program that starts threads and children when told."""
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")
    return build(tmp_path_factory.mktemp("program"))


@pytest.fixture
def child(program: str) -> Iterator[Child]:
    """Return a running single-threaded program."""
    with running(program) as started:
        yield started


@pytest.fixture(scope="session")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the file of a policy that lets jobs share nodes."""
    file = tmp_path_factory.mktemp("policies") / "sharing.py"
    file.write_text(SHARING, encoding="utf-8")
    return str(file)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a directory whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="drom") as name:
        yield Path(name)
