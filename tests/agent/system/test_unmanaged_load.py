# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from drom.agent.system import cpu_times
from drom.agent.system import proc as processes
from drom.agent.system.proc import Identity
from drom.agent.system.unmanaged_load import BusyCoreFilter, LoadMeter, LoadMonitor, per_core

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HZ = os.sysconf("SC_CLK_TCK")


def put(proc: Path, pid: int, ppid: int, ticks: int, **threads: int) -> None:
    """Write a process of a made-up /proc: its time in hundredths, and that of its threads."""
    below = [(proc / str(pid) / "task" / name[1:], used) for name, used in threads.items()]
    for folder, used in [(proc / str(pid), ticks), *below]:
        folder.mkdir(parents=True, exist_ok=True)
        used_ticks = used * HZ // 100
        rest = " ".join(["0"] * 6)
        text = f"{pid} (a) b) R {ppid} 1 1 0 -1 0 0 0 0 0 {used_ticks} 0 {rest} 7 0\n"
        (folder / "stat").write_text(text, encoding="utf-8")


class TestMeter:
    """The load of each CPU between two looks."""

    def test_bound_threads_weigh_on_their_cpu_and_free_ones_on_all(self, tmp_path: Path) -> None:
        """In proportion to what each thread has used since the last look."""
        masks = {10: 0b0001, 11: 0b1111, 20: 0b1100}
        meter = LoadMeter(str(tmp_path), masks.__getitem__)
        put(tmp_path, 10, 1, 0, t10=0, t11=0)
        put(tmp_path, 20, 1, 500, t20=500)
        assert meter.look(0.0, []) == {}
        put(tmp_path, 10, 1, 100, t10=60, t11=40)
        put(tmp_path, 20, 1, 550, t20=550)

        load = meter.look(1.0, [])
        assert load == pytest.approx({0: 0.7, 1: 0.1, 2: 0.1 + 0.25, 3: 0.1 + 0.25})

    def test_tasks_with_their_descendants_and_orphans_are_not_counted(self, tmp_path: Path) -> None:
        """Below the first process, or with its name in the environment."""
        meter = LoadMeter(str(tmp_path), lambda _: 1)
        for pid, ppid in ((10, 1), (11, 10), (12, 1), (13, 1)):
            put(tmp_path, pid, ppid, 0, **{f"t{pid}": 0})
        (tmp_path / "12/environ").write_bytes(b"A=1\0DROM_TASK=10:7\0")
        meter.look(0.0, [])
        for pid, ppid in ((10, 1), (11, 10), (12, 1), (13, 1)):
            put(tmp_path, pid, ppid, 50, **{f"t{pid}": 50})

        assert meter.look(1.0, [Identity(10, 7)]) == pytest.approx({0: 0.5})

    def test_idle_processes_and_those_that_end_cost_nothing(self, tmp_path: Path) -> None:
        """Nobody asks for the CPUs of what hardly runs; what has gone is passed over."""

        def gone(_: int) -> int:
            raise ProcessLookupError

        meter = LoadMeter(str(tmp_path), gone)
        put(tmp_path, 10, 1, 0, t10=0)
        put(tmp_path, 11, 1, 0)
        meter.look(0.0, [])
        put(tmp_path, 10, 1, 90, t10=90)
        put(tmp_path, 11, 1, 4)

        assert meter.look(1.0, []) == {}

    def test_a_busy_program_bound_to_a_cpu_is_seen(self) -> None:
        """On this machine, with its own processes."""
        cpu = max(os.sched_getaffinity(0))
        with spinning(cpu) as pid:
            meter = LoadMeter()
            me = Identity(pid, processes.start_time(pid) or 0)
            meter.look(time.monotonic(), [])
            before = cpu_times.scan_times().ticks[me]
            deadline = time.monotonic() + 60
            while cpu_times.scan_times().ticks[me] < before + HZ // 2:
                assert time.monotonic() < deadline
            load = meter.look(time.monotonic(), [])

            assert load[cpu] > 0
            assert sum(load.values()) >= load[cpu]


@contextmanager
def spinning(cpu: int) -> Iterator[int]:
    """Keep a CPU busy."""
    code = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


class TestAvoidance:
    """Cores are left to unmanaged programs, and taken back, after a time."""

    def test_a_core_is_avoided_after_the_time_and_used_again_after_it(self) -> None:
        """What it carries counts beyond the least loaded core; between the two thresholds nothing changes."""
        avoidance = BusyCoreFilter(0.5, 10)
        story = [(0, 0.9), (9, 0.6), (10, 0.6), (11, 0.3), (30, 0.3), (31, 0.2), (40, 0.2), (41, 0.2)]

        told = [avoidance.decide([0.0, load], at) for at, load in story]
        assert told == [set(), set(), {1}, {1}, {1}, {1}, {1}, set()]

    def test_an_interruption_starts_the_time_anew(self) -> None:
        """One look below the threshold is enough."""
        avoidance = BusyCoreFilter(0.5, 10)

        assert [avoidance.decide([0.0, load], at) for at, load in [(0, 1), (9, 0), (11, 1), (20, 1), (21, 1)]] == [
            set(), set(), set(), set(), {1},
        ]  # fmt: skip

    def test_load_on_all_cores_alike_avoids_none(self) -> None:
        """One core at least is always used, for the least loaded one has no excess."""
        avoidance = BusyCoreFilter(0.1, 0)

        assert avoidance.decide([1.0, 1.0, 1.0], 0) == set()
        assert avoidance.decide([1.0, 0.5, 5.0], 1) == {0, 2}


def test_a_core_is_as_loaded_as_its_busiest_cpu() -> None:
    """CPUs nobody uses have no load."""
    assert per_core({0: 0.5, 3: 0.2}, [0b0011, 0b1100, 0b110000]) == [0.5, 0.2, 0.0]


def test_a_watch_tells_changes_alone() -> None:
    """CPUs of cores that are to be avoided from now on, once; looks come a period apart."""
    shares = iter([{0: 0.9}, {0: 0.9}, {}])

    class Script(LoadMeter):
        """A meter that has made up its mind."""

        def look(self, now: float, tasks: object) -> dict[int, float]:
            del now, tasks
            return next(shares)

    watch = LoadMonitor(BusyCoreFilter(0.5, 2), [0b0011, 0b1100], Script())
    told = [watch.look(at, []) for at in (0.0, 1.0, 2.0, 3.0, 4.0)]

    assert told == [None, None, 0b0011, None, None]
    assert watch.load == {}
    assert watch.look(5.0, []) is None
