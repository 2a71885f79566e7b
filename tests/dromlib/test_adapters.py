from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import dromlib
from dromlib import adapters
from dromlib.adapters.blas import Blas
from dromlib.grant import Grant
from dromlib.testing import FakeAgent

if TYPE_CHECKING:
    from pathlib import Path

GRANT = Grant(1, (0, 1, 2), "share", emulated=True)


def run(code: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a program in Python to its end, launched for four threads."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "4")
    words = [sys.executable, "-c", code]
    env = {**os.environ, **threads, **extra}
    return subprocess.run(words, capture_output=True, text=True, timeout=100, check=False, env=env)


class TestChoose:
    """Adapters by name or as objects."""

    def test_none_stands_for_all(self) -> None:
        """Without names all that come with dromlib are asked, in their order."""
        assert [type(one).__name__ for one in adapters.choose(None)] == ["Blas", "Numba", "Torch"]

    def test_names_and_objects_keep_their_order(self) -> None:
        """Names and objects mix; one name need not be a list."""
        mine = Blas()

        assert adapters.choose([mine]) == [mine]
        assert [type(one).__name__ for one in adapters.choose(["numba", "blas"])] == ["Numba", "Blas"]
        assert [type(one).__name__ for one in adapters.choose("numba")] == ["Numba"]

    def test_a_name_that_is_none_is_refused(self) -> None:
        """The names there are stand in the sentence."""
        with pytest.raises(ValueError, match=r"^'numbra' is not an adapter: choose from 'blas', 'numba', 'torch', or"):
            adapters.choose(["numbra"])

    def test_an_object_without_the_methods_is_refused_at_once(self) -> None:
        """A program that runs well without an agent does not fail at its first grant."""
        with pytest.raises(TypeError, match=r"^3 is not an adapter: it has no method available\(\)\.$"):
            adapters.choose([3])  # type: ignore[list-item]

    def test_a_missing_library_is_one_sentence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The adapter is left out with a warning, and the others stay."""
        monkeypatch.setitem(adapters.LIBRARIES, "torch", "no_such_library")
        with pytest.warns(RuntimeWarning, match="'torch' needs no_such_library, which is not installed") as warned:
            assert [type(one).__name__ for one in adapters.choose(["torch", "blas"])] == ["Blas"]
        assert len(warned) == 1

    def test_a_program_without_the_library_runs_on(self, tmp_path: Path) -> None:
        """A program that asks for an adapter whose library is missing does its work, with one warning on stderr."""
        code = """
import dromlib, dromlib.adapters
dromlib.adapters.LIBRARIES["torch"] = "no_such_library"
print(sum(dromlib.malleable(range(4), ["torch"])))
"""
        done = run(code, DROM_RUNTIME_DIR=str(tmp_path))
        assert (done.stdout, done.returncode) == ("6\n", 0)
        assert done.stderr.count("Warning") == 1


class TestExample:
    """The example of an adapter in the documentation of `dromlib.adapters`."""

    CODE = textwrap.dedent("\n".join(line for line in str(adapters.__doc__).splitlines() if line.startswith("    ")))

    def attach(self, code: str, pool: SimpleNamespace) -> dromlib.Session:
        """Run the example with a pool of the program, and return its session."""
        scope: dict[str, Any] = {"dromlib": dromlib, "pool": pool}
        exec(code, scope)
        session: dromlib.Session = scope["session"]
        return session

    def test_the_example_resizes_a_pool_of_the_program(self) -> None:
        """The example as it is printed resizes the program's pool at the first grant and at each later one."""
        sizes: list[int] = []
        pool = SimpleNamespace(is_started=True, most_threads=3, resize=sizes.append)

        with FakeAgent("0-3") as fake, self.attach(self.CODE, pool) as session:
            epoch = fake.grant("0-1", reason="share")
            assert session.apply(session.poll())
            assert fake.applied == epoch

        assert sizes == [4, 2]

    def test_the_example_leaves_a_pool_alone_until_it_is_started(self) -> None:
        """The example neither resizes a pool that is not started nor reports its limit."""
        sizes: list[int] = []
        pool = SimpleNamespace(is_started=False, most_threads=3, resize=sizes.append)

        with FakeAgent("0-3") as fake, self.attach(self.CODE.replace('"blas", ', ""), pool) as session:
            assert (sizes, fake.wanted) == ([], (0, 0))
            pool.is_started = True
            assert session.apply(session.grant)
            assert (sizes, fake.wanted) == ([4], (0, 3))


class TestNumba:
    """The threads of numba's parallel loops."""

    CODE = """
import numpy, numba, dromlib

@numba.njit(parallel=True)
def total(values):
    threads = numba.get_num_threads()
    result = 0.0
    for i in numba.prange(values.size):
        result += values[i]
    return result, threads

values = numpy.arange(10_000.0)
session = dromlib.attach(["numba"])
print(*total(values), flush=True)
for _ in range(2):
    input()
    session.apply(session.poll())
    print(*total(values), flush=True)
"""

    def test_loops_use_what_is_granted(self) -> None:
        """A loop uses the grant's number of threads, narrowed at the start, up to NUMBA_NUM_THREADS; same answer."""
        with FakeAgent("0") as fake:
            program = subprocess.Popen(
                [sys.executable, "-c", self.CODE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "NUMBA_NUM_THREADS": "3", "OMP_NUM_THREADS": "3"},
            )
            with program:
                assert program.stdin
                assert program.stdout
                said = [program.stdout.readline()]
                for cpus in ("0-1", "0-7"):
                    epoch = fake.grant(cpus)
                    program.stdin.write("\n")
                    program.stdin.flush()
                    said.append(program.stdout.readline())
                    fake.wait_applied(epoch)
            assert said == [f"49995000.0 {threads}\n" for threads in (1, 2, 3)]
            assert fake.wanted == (0, 3)

    def test_its_first_loop_leaves_openmp_as_granted(self) -> None:
        """Its layer loads a runtime then, and tells it to use all threads that numba may ever have."""
        code = """
import numba, numpy, threadpoolctl, dromlib

@numba.njit(parallel=True)
def add(values):
    for i in numba.prange(values.size):
        values[i] += 1

with dromlib.attach(["blas", "numba"]):
    add(numpy.zeros(10))
    print(numba.threading_layer(), {pool["num_threads"] for pool in threadpoolctl.threadpool_info()})
"""
        with FakeAgent("0"):
            assert run(code, NUMBA_THREADING_LAYER="omp").stdout == "omp {1}\n"

    @pytest.mark.parametrize("attach", ["import dromlib; session = dromlib.attach()", "import dromlib.auto"])
    def test_threads_start_with_the_first_loop(self, attach: str) -> None:
        """Until then a program says how processes start, and one forked off has loops of its own, on its own number."""
        code = f"""
import multiprocessing, numba, numpy
{attach}

@numba.njit(parallel=True)
def total(values):
    result = 0
    for i in numba.prange(values.size):
        result += values[i]
    return result, numba.get_num_threads()

def show():
    print(*total(numpy.arange(10)), flush=True)

multiprocessing.set_start_method("fork")
child = multiprocessing.Process(target=show)
child.start()
child.join()
show()
"""
        with FakeAgent("0"):
            done = run(code, NUMBA_THREADING_LAYER="omp", NUMBA_NUM_THREADS="2")

        assert (done.stdout, done.stderr) == ("45 2\n45 1\n", "")

    def test_its_first_loop_leaves_pools_alone_that_a_block_has_sized(self) -> None:
        """In automatic mode; the end of the block brings what is granted."""
        code = """
import numba, numpy, scipy.linalg, threadpoolctl, dromlib.auto

@numba.njit(parallel=True)
def add(values):
    for i in numba.prange(values.size):
        values[i] += 1

def sizes(api):
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == api}

with threadpoolctl.threadpool_limits(3):
    add(numpy.zeros(10))
    print(sizes("blas"))
print(sizes("blas"), sizes("openmp"), numba.np.ufunc.parallel._get_num_threads())
"""
        with FakeAgent("0"):
            assert run(code, NUMBA_THREADING_LAYER="omp").stdout == "{3}\n{1} {1} 1\n"

    @pytest.mark.parametrize(
        ("before", "after", "ask", "number"),
        [
            ("", "", "numba.get_num_threads", 1),
            ("from numba import get_num_threads", "", "get_num_threads", 1),
            ("", "from numba import get_num_threads", "get_num_threads", 1),
            ("", "", "numba.njit(lambda: numba.get_num_threads())", 1),
            ("", "from numba import get_num_threads", "numba.njit(lambda: get_num_threads())", 1),
            ("", "", "lambda: numba.set_num_threads(3)", 3),
            ("", "", "numba.njit(lambda: numba.set_num_threads(3))", 3),
        ],
    )
    def test_a_number_that_the_program_has_spoken_of_stays(
        self, before: str, after: str, ask: str, number: int
    ) -> None:
        """In automatic mode: what has been made for so many threads has room for all, and what is jitted compiles."""
        code = f"""
import numba, numpy
{before}
from dromlib.testing import FakeAgent

@numba.njit(parallel=True)
def count(sums):
    for i in numba.prange(1000):
        sums[numba.get_thread_id()] += 1

with FakeAgent("0") as fake:
    import dromlib.auto
    {after}
    ask = {ask}
    ask()
    for cpus in ("0-2", "0-1"):
        fake.wait_applied(fake.grant(cpus))
        sums = numpy.zeros(4)
        count(sums)
        print(sums.sum(), sums[{number}:].sum(), numba.get_num_threads())
"""
        done = run(code, NUMBA_THREADING_LAYER="omp")
        assert (done.stdout, done.stderr) == (f"1000.0 0.0 {number}\n" * 2, "")

    def test_the_newest_grant_before_the_first_loop_counts(self) -> None:
        """Also where several were applied."""
        code = """
import numba, dromlib
with dromlib.attach() as session:
    input()
    session.apply(session.wait())
    print(numba.get_num_threads())
"""
        with FakeAgent("0") as fake:
            words = [sys.executable, "-c", code]
            env = {**os.environ, "NUMBA_NUM_THREADS": "3"}
            pipe = subprocess.PIPE
            with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=env) as program:
                fake.wait_applied(1)
                fake.grant("0-1")
                assert program.communicate("\n")[0] == "2\n"

    def test_a_program_without_parallel_loops_needs_no_threads(self) -> None:
        """Whatever keeps numba from starting any."""
        code = """
import numba, dromlib
print(sum(numba.njit(lambda n: n)(n) for n in dromlib.malleable(range(4))))
"""
        with FakeAgent("0-1"):
            done = run(code, NUMBA_THREADING_LAYER="none_such")

        assert (done.stdout, done.stderr) == ("6\n", "")

    def test_only_once_imported(self) -> None:
        """A program without numba does not get it by being malleable."""
        code = """
import sys
from dromlib.adapters.numba import Numba
print(Numba().available(), "numba" in sys.modules)
"""
        assert run(code).stdout == "False False\n"


class TestBlas:
    """BLAS libraries and OpenMP runtimes."""

    def test_pools_are_sized(self) -> None:
        """OpenBLAS in NumPy and the OpenMP runtime use as many threads as CPUs are granted, less and more."""
        code = """
import ctypes, numpy
from threadpoolctl import threadpool_info
from dromlib.adapters.blas import Blas
from dromlib.grant import Grant
ctypes.CDLL("libgomp.so.1")
blas = Blas()
for cpus in ((0,), (0, 1, 2), tuple(range(6))):
    assert blas.available() and blas.limit() is None
    blas.apply(Grant(1, cpus, "share"))
    print(sorted((pool["user_api"], pool["num_threads"]) for pool in threadpool_info()))
"""
        done = run(code)
        expected = [f"[('blas', {n}), ('openmp', {n})]" for n in (1, 3, 6)]
        assert done.stdout.splitlines() == expected, done.stderr

    def test_a_program_without_pools_has_none(self) -> None:
        """Nothing is sized in plain Python."""
        assert run("from dromlib.adapters.blas import Blas; print(Blas().available())").stdout == "False\n"

    def test_without_threadpoolctl_the_program_runs_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An adapter that nobody named does not stop a program either: one warning."""
        monkeypatch.setitem(sys.modules, "threadpoolctl", None)
        with FakeAgent("0-1"), pytest.warns(RuntimeWarning, match=r"^threadpoolctl 3 is not installed: the") as told:
            assert list(dromlib.malleable(range(3))) == [0, 1, 2]
        assert [warning.filename for warning in told] == [__file__]

    def test_two_openmp_runtimes_are_one_sentence(self, tmp_path: Path) -> None:
        """Both are sized, and the program is told once that they are two."""
        code = f"""
import ctypes, ctypes.util, os, shutil, warnings
import dromlib
from dromlib.testing import FakeAgent
from threadpoolctl import threadpool_info
first = ctypes.CDLL("libgomp.so.1")
maps = open("/proc/self/maps").read().split()
path = next(word for word in maps if "libgomp.so" in word)
shutil.copy(path, {str(tmp_path / "libgomp-copy.so.1")!r})
second = ctypes.CDLL({str(tmp_path / "libgomp-copy.so.1")!r})
with FakeAgent("0-2") as fake, warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with dromlib.attach() as session:
        fake.grant("0-1")
        session.apply(session.poll())
        print([pool["num_threads"] for pool in threadpool_info()], fake.applied)
print(len(caught), str(caught[0].message).partition(",")[0])
"""
        done = run(code)
        assert done.stdout == "[2, 2] 2\n1 Two OpenMP runtimes are loaded\n", done.stderr


class TestTorch:
    """PyTorch."""

    def test_operations_use_what_is_granted(self) -> None:
        """The number of threads inside an operation is the grant's."""
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        adapter = adapters.choose(["torch"])[0]
        before = torch.get_num_threads()
        try:
            assert adapter.available()
            adapter.apply(GRANT)
            assert torch.get_num_threads() == 3
        finally:
            torch.set_num_threads(before)

    def test_only_once_imported(self) -> None:
        """A program without PyTorch does not get it by being malleable."""
        code = """
import sys
from dromlib.adapters.torch import Torch
print(Torch().available(), Torch().limit(), "torch" in sys.modules)
"""
        assert run(code).stdout == "False None False\n"
