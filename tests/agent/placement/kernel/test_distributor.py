from __future__ import annotations

import fcntl
import importlib
import os
import random
import shutil
import subprocess
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from drom.agent.bench.distribution import situations
from drom.agent.placement.kernel import distributor
from drom.agent.placement.kernel.distributor import (
    UNLIMITED,
    Distributor,
    Infeasible,
    Objective,
    Placement,
    TaskRequest,
    split_cores,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.paths import ROOT
from tests.support.reference_distribution import assert_valid, best_objective, units_in

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from drom.agent.model.cores import Core

HALF = (1 << 24) - 1
"""The 24 cores of socket 0; shifted by 24, those of socket 1."""


def machine(*sockets: Sequence[int]) -> list[Core]:
    """Build cores of one CPU from the number of cores of each memory domain of each socket."""
    cores: list[Core] = []
    domain = 0
    for package, domains in enumerate(sockets):
        for size in domains:
            cores += [(package, domain, 1 << (len(cores) + n)) for n in range(size)]
            domain += 1
    return cores


NODE = machine([24], [24])


def place(cores: Sequence[Core], demands: Sequence[TaskRequest], budget: int = UNLIMITED) -> Placement:
    """Place what can be placed, and check it."""
    placement = Distributor(cores, budget).place(demands)
    assert isinstance(placement, Placement)
    assert_valid(cores, demands, placement.masks, placement.objective)
    return placement


def tasks(job: str, count: int, cores: int, *current: int) -> list[TaskRequest]:
    """Build the tasks `job`0, `job`1, ... of one job."""
    return [TaskRequest(f"{job}{n}", job, cores, current[n] if current else 0) for n in range(count)]


def again(demands: Sequence[TaskRequest], placement: Placement, **cores: int) -> list[TaskRequest]:
    """Build the same demands from where they were placed, some jobs with another number of cores."""
    return [
        TaskRequest(d.task, d.job, cores.get(str(d.job), d.cores), placement.masks[d.task], d.fixed) for d in demands
    ]


def sockets_of(placement: Placement, job: str) -> list[tuple[int, int]]:
    """Return the cores in socket 0 and socket 1 of each task of a job."""
    masks = [mask for task, mask in placement.masks.items() if str(task).startswith(job)]
    return [((mask & HALF).bit_count(), (mask >> 24).bit_count()) for mask in masks]


def random_case(rng: random.Random) -> tuple[list[Core], list[TaskRequest]]:
    """Draw a machine of up to 9 cores and up to 4 tasks, some with cores today, some fixed, sometimes too many."""
    sockets = [[rng.randint(1, 3) for _ in range(rng.choice([1, 1, 2]))] for _ in range(rng.randint(1, 4))]
    cores = machine(*sockets)[:9]
    number = rng.randint(1, 4)
    owner = [rng.choice([-1, *range(number)]) for _ in cores]
    jobs = [rng.randint(0, 2) for _ in range(number)]
    left, demands = len(cores), []
    for task in range(number):
        current = sum(core[2] for core, owned in zip(cores, owner, strict=True) if owned == task)
        fixed = current > 0 and rng.random() < 0.15
        wanted = current.bit_count() if fixed else rng.randint(1, max(1, min(left - number + task + 1, 5)))
        left -= wanted
        demands.append(TaskRequest(task, jobs[task], wanted, current, fixed))
    return cores, demands


class TestAgainstReference:
    """The kernel against trying everything."""

    @pytest.mark.parametrize("block", range(10))
    def test_unlimited_budget_is_optimal(self, block: int) -> None:
        """With no limit the objective equals that of trying everything, in 6,000 random cases, and is called exact."""
        for number in range(block * 600, block * 600 + 600):
            cores, demands = random_case(random.Random(number))
            best = best_objective(cores, demands)
            answer = Distributor(cores, UNLIMITED).place(demands)

            if best is None:
                assert isinstance(answer, Infeasible), number
                continue
            assert isinstance(answer, Placement), number
            assert (best, True) == (answer.objective, answer.exact), number
            assert_valid(cores, demands, answer.masks, answer.objective)

    def test_default_budget_is_nearly_always_optimal(self) -> None:
        """The default budget proves at least 99 of 100 small cases, finds the optimum, and never loses to greedy."""
        found = proved = cases = 0
        for number in range(2000):
            cores, demands = random_case(random.Random(-number))
            best = Distributor(cores, UNLIMITED).place(demands)
            if isinstance(best, Placement):
                default, greedy = place(cores, demands, distributor.DEFAULT_BUDGET), place(cores, demands, 0)
                assert best.objective <= default.objective <= greedy.objective
                assert not default.exact or default.objective == best.objective
                cases += 1
                found += default.objective == best.objective
                proved += default.exact

        assert cases > 1000
        assert found >= 0.999 * cases
        assert proved >= 0.99 * cases

    @settings(max_examples=300, deadline=None)
    @given(st.randoms(use_true_random=False))
    def test_any_case(self, rng: random.Random) -> None:
        """Whatever hypothesis draws is placed validly, optimally, and stays when placed again."""
        cores, demands = random_case(rng)
        best = best_objective(cores, demands)
        if best is not None:
            placement = place(cores, demands)

            assert best == placement.objective
            assert placement.masks == place(cores, again(demands, placement)).masks

    @settings(max_examples=100, deadline=None)
    @given(st.randoms(use_true_random=False))
    def test_two_sockets_are_always_exact(self, rng: random.Random) -> None:
        """Two sockets of one domain are solved exactly whatever the budget."""
        cores = machine([rng.randint(1, 30)], [rng.randint(1, 30)])
        left = len(cores)
        demands: list[TaskRequest] = []
        while left > 0:
            wanted = rng.randint(1, left)
            demands.append(TaskRequest(len(demands), rng.randint(0, 4), wanted))
            left -= wanted

        assert place(cores, demands, 0).exact


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 3000))
def test_any_budget_is_valid(rng: random.Random, budget: int) -> None:
    """On machines too large to solve, whatever the budget, the placement is valid and repeatable."""
    sockets = [[rng.randint(1, 8)] * rng.choice([1, 2, 4]) for _ in range(rng.randint(1, 6))]
    cores = machine(*sockets)
    owner = [rng.randint(-1, 12) for _ in cores]
    demands, left = [], len(cores)
    for task in range(13):
        current = sum(core[2] for core, owned in zip(cores, owner, strict=True) if owned == task)
        fixed = current > 0 and rng.random() < 0.1
        wanted = current.bit_count() if fixed else rng.randint(1, 8)
        if wanted <= left:
            demands.append(TaskRequest(task, rng.randint(0, 5), wanted, current, fixed))
            left -= wanted

    answer = Distributor(cores, budget).place(demands)

    if isinstance(answer, Placement):
        assert_valid(cores, demands, answer.masks, answer.objective)
        assert answer == Distributor(cores, budget).place(demands)


class TestPublishedTable:
    """The rows of the table of sd-policy.md 4.3: its counts, placed by decision D24, on 2 sockets of 24 cores."""

    def test_one_task_each(self) -> None:
        """A mate of 48 keeps socket 0, its guest gets socket 1, and nothing moves."""
        placement = place(NODE, [*tasks("m", 1, 24, HALF | HALF << 24), *tasks("g", 1, 24)])

        assert placement.masks == {"m0": HALF, "g0": HALF << 24}
        assert placement.objective == Objective(0, 0, 0, 0)

    def test_two_tasks_each(self) -> None:
        """A mate with a task per socket withdraws to socket 0, 12 cores each; the guest's two tasks get socket 1."""
        placement = place(NODE, [*tasks("m", 2, 12, HALF, HALF << 24), *tasks("g", 2, 12)])

        assert sockets_of(placement, "m") == [(12, 0), (12, 0)]
        assert sockets_of(placement, "g") == [(0, 12), (0, 12)]
        assert placement.objective == Objective(0, 0, 0, 12)

    def test_four_tasks_each(self) -> None:
        """Four mates of 12 shrink to 6 in socket 0, the four guests share socket 1."""
        quarter = (1 << 12) - 1
        mates = tasks("m", 4, 6, *(quarter << 12 * n for n in range(4)))
        placement = place(NODE, [*mates, *tasks("g", 4, 6)])

        assert sockets_of(placement, "m") == [(6, 0)] * 4
        assert sockets_of(placement, "g") == [(0, 6)] * 4
        assert placement.objective == Objective(0, 0, 0, 12)

    def test_twenty_four_tasks_each(self) -> None:
        """Twenty-four mates of one core each end in socket 0, as many guests in socket 1."""
        placement = place(NODE, [*tasks("m", 24, 1, *(3 << 2 * n for n in range(24))), *tasks("g", 24, 1)])

        assert sockets_of(placement, "m") == [(1, 0)] * 24
        assert sockets_of(placement, "g") == [(0, 1)] * 24
        assert placement.objective == Objective(0, 0, 0, 12)

    def test_forty_eight_tasks_each(self) -> None:
        """Forty-eight mates and a guest do not fit on 48 cores: a value with a reason."""
        demands = [*tasks("m", 48, 1, *(1 << n for n in range(48))), *tasks("g", 1, 1)]

        assert Distributor(NODE).place(demands) == Infeasible("49 cores are wanted, but there are 48")

    def test_five_guests_of_four(self) -> None:
        """Five guests of 4 cores stay in socket 1; one mate keeps socket 0, and only the other shares, with 4 cores."""
        placement = place(NODE, [*tasks("m", 2, 14, HALF, HALF << 24), *tasks("g", 5, 4)])

        assert sockets_of(placement, "g") == [(0, 4)] * 5
        assert placement.objective == Objective(1, 1, 1, 10)

    def test_guest_larger_than_a_socket(self) -> None:
        """A guest of 36 takes all of socket 1 and half of socket 0, where the mate keeps its lowest cores."""
        placement = place(NODE, [*tasks("m", 1, 12, HALF), *tasks("g", 1, 36)])

        assert placement.masks["m0"] == (1 << 12) - 1
        assert sockets_of(placement, "g") == [(12, 24)]
        assert placement.objective == Objective(1, 1, 1, 0)

    def test_two_mates(self) -> None:
        """Two mates of two tasks shrink into socket 0, 6 cores each task, and the guest's two tasks get socket 1."""
        quarter = (1 << 12) - 1
        first, second = tasks("a", 2, 6, quarter, quarter << 24), tasks("b", 2, 6, quarter << 12, quarter << 36)
        placement = place(NODE, [*first, *second, *tasks("g", 2, 12)])

        assert sockets_of(placement, "a") == sockets_of(placement, "b") == [(6, 0), (6, 0)]
        assert sockets_of(placement, "g") == [(0, 12), (0, 12)]
        assert placement.objective == Objective(1, 0, 0, 12)

    def test_a_quarter(self) -> None:
        """With SharingFactor .25 the guest's 12 cores are at the end of socket 1 and one mate stays whole."""
        placement = place(NODE, [*tasks("m", 2, 18, HALF, HALF << 24), *tasks("g", 2, 6)])

        assert sockets_of(placement, "g") == [(0, 6), (0, 6)]
        assert placement.masks["g0"] | placement.masks["g1"] == ((1 << 12) - 1) << 36
        assert placement.objective == Objective(1, 1, 1, 6)

    def test_guest_leaves(self) -> None:
        """When the guest has left, one mate returns to socket 1 and each has a socket again."""
        mates = tasks("m", 2, 12, HALF, HALF << 24)
        shared = place(NODE, [*mates, *tasks("g", 2, 12)])
        placement = place(NODE, again(mates, shared, m=24))

        assert sorted(sockets_of(placement, "m")) == [(0, 24), (24, 0)]
        assert placement.objective == Objective(0, 0, 0, 36)


class TestRules:
    """What a placement keeps to, and what is refused."""

    def test_fixed_tasks_stay(self) -> None:
        """A fixed task keeps its scattered cores to the last CPU while the others are laid out around it."""
        pinned = 0b1000_0001 | 1 << 30
        demands = [TaskRequest("p", "p", 3, pinned, fixed=True), *tasks("m", 1, 20, HALF & ~pinned), *tasks("g", 1, 20)]
        placement = place(NODE, demands)

        assert placement.masks["p"] == pinned
        assert placement.objective == Objective(2, 1, 1, 0)

    def test_fixed_task_of_another_size(self) -> None:
        """A fixed task whose count is not what it holds is refused with both figures."""
        answer = Distributor(NODE).place([TaskRequest("p", "p", 4, 0b111, fixed=True)])

        assert answer == Infeasible("task p is fixed on 3 cores, but asks for 4")

    def test_two_tasks_fixed_on_one_core(self) -> None:
        """Two tasks fixed on the same core are refused by name."""
        answer = Distributor(NODE).place([TaskRequest(n, n, 1, 1, fixed=True) for n in "ab"])

        assert answer == Infeasible("tasks a and b are fixed on the same core")

    def test_no_core_at_all(self) -> None:
        """A task of no core is refused."""
        assert Distributor(NODE).place(tasks("a", 1, 0)) == Infeasible("task a0 needs at least one core, not 0")

    def test_nobody(self) -> None:
        """Nobody to place is a placement of nobody."""
        assert Distributor(NODE).place([]) == Placement({}, Objective(0, 0, 0, 0), exact=True)

    def test_whole_cores_with_all_threads(self) -> None:
        """A core of two threads is given whole, also to a task that held one of its threads."""
        cores = [(n // 4, n // 4, 1 << n | 1 << (n + 8)) for n in range(8)]
        placement = place(cores, [TaskRequest("m", "m", 3, 0b111), TaskRequest("g", "g", 4)])

        assert placement.masks == {"m": 0b111 | 0b111 << 8, "g": 0xF0 | 0xF0 << 8}
        assert placement.objective == Objective(0, 0, 0, 0)

    def test_threads_as_units(self) -> None:
        """More tasks than cores are placed by thread."""
        cores = [(n // 4, n // 4, 1 << n | 1 << (n + 8)) for n in range(8)]
        demands = [TaskRequest(n, n % 2, 1) for n in range(16)]

        assert isinstance(Distributor(cores).place(demands), Infeasible)
        assert place(split_cores(cores), demands).objective == Objective(0, 0, 0, 0)

    def test_memory_domains_inside_a_socket(self) -> None:
        """Tasks that fit a memory domain stay inside one, and jobs inside one socket."""
        cores = machine([6, 6], [6, 6])
        demands = [*tasks("a", 2, 6), *tasks("b", 3, 4)]
        placement = place(cores, demands)

        assert placement.objective == Objective(0, 0, 1, 0)

    def test_domain_across_sockets(self) -> None:
        """A memory domain that spans sockets is treated as one leaf in each."""
        cores = [(n // 4, 0, 1 << n) for n in range(8)]
        placement = place(cores, [*tasks("a", 1, 3), *tasks("b", 1, 3)])

        assert placement.objective == Objective(0, 0, 0, 0)

    def test_jobs_need_not_stand_together(self) -> None:
        """The tasks of a job may come in any order among the demands."""
        a, b = tasks("a", 2, 12), tasks("b", 2, 12)
        placement = place(NODE, [a[0], b[0], a[1], b[1]])

        assert placement.objective == Objective(0, 0, 0, 0)

    def test_unknown_cpus_are_ignored(self) -> None:
        """CPUs that are not of this machine, such as offline ones, do not count as held."""
        assert place(NODE, [TaskRequest("a", "a", 2, 1 << 100 | 1)]).objective == Objective(0, 0, 0, 1)

    @pytest.mark.parametrize("name", ["all new", "unchanged", "arrival"])
    def test_large_machine(self, name: str) -> None:
        """On 8 sockets of 64 cores 32 jobs of 8 tasks are placed optimally within the default budget."""
        cores = machine(*([64] for _ in range(8)))
        placement = place(cores, situations(cores, 32, 8)[name], distributor.DEFAULT_BUDGET)

        assert placement.exact
        assert placement.objective[:3] == (24, 0, 0)

    def test_held_units_count(self) -> None:
        """The reference counts a core as held if any of its threads is."""
        assert units_in([(0, 0, 0b11), (0, 0, 0b1100)], 0b10) == {(0, 0): 1}


class TestPlainPython:
    """Where numba does not serve, the same code does."""

    SCRIPT = """
from drom.agent.placement.kernel.distributor import UNLIMITED, Distributor, TaskRequest
distributor = Distributor([(n // 3, n // 3, 1 << n) for n in range(9)], UNLIMITED)
placement = distributor.place([TaskRequest(n, n % 2, 2, 0b100100 if n == 0 else 0) for n in range(4)])
print(distributor.compiled, bool(distributor.compile_error), placement)
"""
    NO_LOCATOR = "import numba.core.caching as c\nc.CacheImpl._locator_classes = []\n"
    NO_NUMBA = "import sys\nsys.modules['numba'] = None\n"
    NO_JIT = "import numba\nnumba.config.DISABLE_JIT = 1\n"

    @staticmethod
    def run(script: str) -> str:
        """Run a script in a process of its own."""
        command = [sys.executable, "-W", "error", "-c", script]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, timeout=300).stdout

    @pytest.mark.parametrize("before", [NO_LOCATOR, NO_NUMBA, NO_JIT])
    def test_same_answer(self, before: str, compiled: str) -> None:
        """Without numba, or where it cannot cache, the same placement comes from plain Python, which says so."""
        assert compiled.startswith("True False")
        assert self.run(before + self.SCRIPT) == compiled.replace("True False", "False True")

    def test_cache_that_lost_its_files(self, tmp_path: Path) -> None:
        """A cache that is called complete and lacks the kernel's entry point is filled again."""
        assert distributor.kernel().compiled
        kept = distributor._cache_folder([importlib.import_module(name) for name in distributor.MODULES])
        assert kept is not None
        copy = shutil.copytree(kept, tmp_path / kept.name)
        lost = list(copy.rglob("*.place-*"))
        for file in lost:
            file.unlink()
        script = (
            f"import os\nos.environ['NUMBA_CACHE_DIR'] = {str(tmp_path)!r}\n"
            "from drom.agent.placement.kernel.distributor import is_cached, kernel\n"
            "print(is_cached(), kernel().compiled)\n"
        )

        assert {file.suffix for file in lost} == {".nbi", ".nbc"}
        assert self.run(script) == "True True\n"
        assert all(file.exists() for file in lost)

    def test_who_does_not_compile_waits_for_nobody(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without numba's compiler the kernel is there at once, also while another process fills the cache."""
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
        mark = distributor._mark([importlib.import_module(name) for name in distributor.MODULES])
        assert mark is not None
        with mark.with_name("lock").open("w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            script = "from drom.agent.placement.kernel.distributor import kernel\nprint(kernel().error)"
            said = self.run(self.NO_JIT + script)

        assert said == "RuntimeError: numba is switched off by NUMBA_DISABLE_JIT\n"

    @pytest.mark.parametrize(("value", "expected"), [("1", (False, False)), ("0", (True, True))])
    def test_a_compiler_that_is_switched_off_is_not_imported(self, value: str, expected: tuple[bool, bool]) -> None:
        """NUMBA_DISABLE_JIT counts as numba counts it; numba would take most of the start of an agent."""
        script = f"import os, sys\nos.environ['NUMBA_DISABLE_JIT'] = {value!r}\n"
        script += "from drom.agent.placement.kernel.distributor import kernel\n"

        assert self.run(script + "print((kernel().compiled, 'numba' in sys.modules))") == f"{expected}\n"

    def test_cache_belongs_to_the_very_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Sources of the same text at another place, or changed at another time, get a cache of their own."""
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
        here = [importlib.import_module(name) for name in distributor.MODULES]
        copies = [ModuleType(module.__name__) for module in here]
        for module, copy in zip(here, copies, strict=True):
            copy.__file__ = str(shutil.copy2(str(module.__file__), tmp_path))

        folders = [distributor._cache_folder(here), distributor._cache_folder(copies)]
        os.utime(str(copies[0].__file__), (1, 1))
        folders.append(distributor._cache_folder(copies))

        assert len(set(folders)) == 3
        assert distributor._cache_folder(here) == folders[0]

    def test_import_is_light(self) -> None:
        """Importing the module brings in neither numpy nor numba."""
        assert (
            self.run(
                "import sys, drom.agent.placement.kernel.distributor; print({'numpy', 'numba'} & set(sys.modules))"
            )
            == "set()\n"
        )


@pytest.fixture(scope="module")
def compiled() -> str:
    """Return what the script prints with numba."""
    return TestPlainPython.run(TestPlainPython.SCRIPT)
