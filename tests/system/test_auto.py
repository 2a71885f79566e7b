"""Python programs without a line of drom under a real agent: they follow their grants between two calls."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dromlib
from dromlib import _handle, native
from tests.support.agents import Agent, Programs, environment, start_agent
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]

LOOP = """
import os
{setup}

def show():
    return "on " + ",".join(map(str, sorted(os.sched_getaffinity(0)))) + " threads " + str(threads())

last = None
while True:
    assert compute(), "wrong answer"
    if show() != last:
        last = show()
        print(last, flush=True)
"""
BLAS = """
import numpy
from threadpoolctl import threadpool_info, threadpool_limits
values = numpy.arange(64 * 64.0).reshape(64, 64)
expected = int(sum(values[1, k] * values[k, 2] for k in range(64)))
compute = lambda: int((values @ values)[1, 2]) == expected
threads = lambda: max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
"""
NUMBA_IN_NAME = """
class config:
    NUMBA_NUM_THREADS = 2

def set_num_threads(number):
    print("told", number, flush=True)
"""
SETUPS = {
    "numpy": BLAS,
    "numba": """
import numba, numpy

@numba.njit(parallel=True)
def total(values):
    result = 0
    for i in numba.prange(values.size):
        result += values[i]
    return result

values = numpy.arange(100_000)
compute = lambda: total(values) == 4999950000
threads = lambda: numba.np.ufunc.parallel._get_num_threads()  # a question that drom does not hear
""",
    "sklearn": """
import numpy
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_info
points = numpy.repeat([[0.0, 0.0], [9.0, 9.0]], 600, axis=0)

def compute():
    found = KMeans(2, n_init=1, random_state=0).fit(points)
    return found.inertia_ == 0 and len(set(found.labels_[:600])) == 1

threads = lambda: max(pool["num_threads"] for pool in threadpool_info())
""",
    "torch": """
import torch
values = torch.ones(64, 64)
compute = lambda: (values @ values).sum() == 64 ** 3
threads = torch._C.get_num_threads
""",
}


@pytest.fixture(scope="module")
def shared_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """One agent of two cores, patient with programs that start numba."""
    with start_agent(tmp_path_factory.mktemp("node"), "--topology", "pack:2 core:1", "--grace", "20") as agent:
        yield agent


@pytest.fixture
def agent(shared_agent: Agent, start: Programs) -> Iterator[Agent]:
    """The shared agent; the node is empty again after the test."""
    yield shared_agent
    shared_agent.assert_clean()
    start.kill()
    shared_agent.await_tasks()


@pytest.mark.parametrize("name", SETUPS)
def test_an_unedited_program_is_resized_twice(agent: Agent, start: Programs, name: str) -> None:
    """The program uses as many threads as it has CPUs, and every answer is right."""
    if not importlib.util.find_spec(name):
        pytest.skip(f"needs {name}")
    program = start.start(*agent.run("--job", "a", sys.executable, "-c", LOOP.format(setup=SETUPS[name])))
    program.await_out("^on 0,1 threads 2$")
    for cpus, shown, line in ((1, "0", "^on 0 threads 1$"), (2, "0-1", "(?s)threads 1$.*^on 0,1 threads 2$")):
        agent.order("resize", job="a", cpus=cpus)
        rows = agent.await_tasks(a=shown)
        program.await_out(line)

        assert rows["a"]["mode"] == "cooperative"
    assert program.err == ""


def test_a_program_that_needs_no_library_is_not_touched(agent: Agent, start: Programs) -> None:
    """No thread is started in it, nothing of drom's is imported but the hook, and the agent binds it."""
    code = (
        "import sys, threading; print(threading.active_count(), 'dromlib.session' in sys.modules, flush=True); input()"
    )
    program = start.start(*agent.run("--job", "a", sys.executable, "-uc", code))
    program.await_out("^1 False$")

    assert {row["mode"] for row in agent.tasks().values()} == {"bind-only"}


def test_pools_sized_by_a_block_are_left_alone_until_it_ends(agent: Agent, start: Programs, tmp_path: Path) -> None:
    """Within `threadpool_limits` only the CPUs change; after it the pools have the size of the newest grant."""
    go = tmp_path / "go"
    setup = (
        BLAS
        + f"""
with threadpool_limits(2):
    print("inside", flush=True)
    while not os.path.exists({str(go)!r}):
        compute()
    print("leaves with", threads(), "on", len(os.sched_getaffinity(0)), flush=True)
"""
    )
    program = start.start(*agent.run("--job", "a", sys.executable, "-c", LOOP.format(setup=setup)))
    program.await_out("^inside$")
    agent.order("resize", job="a", cpus=1)
    agent.await_tasks(a="0")
    go.touch()
    program.await_out("^leaves with 2 on 1$")
    program.await_out("^on 0 threads 1$")


def test_a_child_is_bound_and_keeps_its_threads(agent: Agent, start: Programs) -> None:
    """A process that the program starts follows onto the CPUs; how many threads it has was its parent's decision."""
    code = f"import numpy, subprocess, sys; subprocess.run([sys.executable, '-c', {LOOP.format(setup=BLAS)!r}])"
    program = start.start(*agent.run("--job", "a", sys.executable, "-c", code))
    program.await_out("^on 0,1 threads 2$")
    agent.order("resize", job="a", cpus=1)
    program.await_out("^on 0 threads 2$")


def test_the_users_own_start_up_file_is_loaded(agent: Agent, start: Programs, tmp_path: Path) -> None:
    """A sitecustomize that ours hides does what it did, and is what the program finds by that name."""
    (tmp_path / "sitecustomize.py").write_text("ANSWER = 42\n", encoding="utf-8")
    code = "import sitecustomize; print(sitecustomize.ANSWER)"
    program = start.start(*agent.run(sys.executable, "-c", code), PYTHONPATH=str(tmp_path))

    assert program.wait() == 0
    assert (program.out, program.err) == ("42\n", "")


def copy_installation(package: Path) -> Path:
    """Make an installation that has its sources beside what is built; return its launcher."""
    shutil.copytree(Path(dromlib.__file__).parent, package, ignore=shutil.ignore_patterns("native", "__pycache__"))
    shutil.copy(_handle.__file__, package)
    hook = ROOT / "dromlib" / "native" / "python" / "sitecustomize.py"
    for file, folder in ((hook, "startup"), (native.preload_path(), "lib"), (native.run_path(), "bin")):
        (package / folder).mkdir(exist_ok=True)
        shutil.copy(file, package / folder)
    return package / "bin" / native.run_path().name


@pytest.mark.parametrize("copied", [True, False], ids=["copied", "as it is"])
def test_a_python_that_drom_is_not_installed_for(
    agent: Agent, start: Programs, tmp_path: Path, *, copied: bool
) -> None:
    """Such a Python takes only dromlib from the launcher's installation, whether regular or editable."""
    launcher = copy_installation(tmp_path / "site" / "dromlib") if copied else native.run_path()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "numba.py").write_text(NUMBA_IN_NAME, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    words = agent.run("--job", "a", tmp_path / "venv" / "bin" / "python", "-c", "import numba\nwhile True: pass")
    program = start.start(launcher, *words[1:], PYTHONPATH=str(tmp_path / "mine"))
    program.await_out("^told 2$")
    agent.order("resize", job="a", cpus=1)
    agent.await_tasks(a="0")
    program.await_out("^told 1$")
    assert program.err == ""


def test_without_an_agent_nothing_happens() -> None:
    """The program says what it would have said, and no more."""
    code = "import dromlib.auto, numpy, threading; print(numpy.ones(3).sum(), threading.active_count())"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)

    assert (done.stdout, done.stderr) == ("3.0 1\n", "")


def test_a_python_that_cannot_load_the_part_in_c_runs_on() -> None:
    """Whatever is wrong with drom, the program imports what it wants; one sentence says that it is not followed."""
    code = "import sys; sys.modules['dromlib._handle'] = None; import dromlib.auto, numpy, scipy; print(numpy.ones(3))"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "[1. 1. 1.]\n"), done.stderr
    said = r"drom: this Python is bound from outside: import of dromlib\._handle halted; .*\n"
    assert re.fullmatch(said, done.stderr), done.stderr


@pytest.mark.parametrize("other", ["sys.abiflags += 't'", "sys.implementation.name = 'pypy'"])
def test_another_kind_of_python_is_left_alone(tmp_path: Path, other: str) -> None:
    """The hook loads nothing where Python has no global lock, or is not CPython."""
    hook = ROOT / "dromlib" / "native" / "python" / "sitecustomize.py"
    shutil.copy(hook, tmp_path)
    code = f"import sys; {other}; sys.path.insert(0, {str(tmp_path)!r}); sys.modules.pop('sitecustomize', None); "
    code += "import sitecustomize; print('dromlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)

    assert (done.stdout, done.stderr) == ("False\n", "")


def test_by_hand(agent: Agent, start: Programs) -> None:
    """`import dromlib.auto` does the same in a program that the launcher's hook does not reach."""
    code = "import dromlib.auto\n" + LOOP.format(setup=BLAS)
    program = start.start(*agent.run("--job", "a", sys.executable, "-I", "-c", code))
    program.await_out("^on 0,1 threads 2$")
    agent.order("resize", job="a", cpus=1)
    program.await_out("^on 0 threads 1$")
    agent.await_tasks(a="0")


FORKS_AFTER_WORK = """
import os
import numba, numpy

@numba.njit(parallel=True)
def total(values):
    result = 0
    for i in numba.prange(values.size):
        result += values[i]
    return result

values = numpy.arange(1000)
assert total(values) == 499500
child = os.fork()
if child == 0:
    os._exit(total(values) != 499500)
print(numba.threading_layer(), os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.parametrize("malleability", ["auto", "bind-only"])
def test_numba_keeps_the_layer_that_it_has_alone(agent: Agent, start: Programs, malleability: str) -> None:
    """On oneTBB a program may fork after parallel work, and its child may go on with such."""
    pytest.importorskip("numba")
    found = {"LD_LIBRARY_PATH": f"{sys.prefix}/lib"}
    words = [sys.executable, "-c", FORKS_AFTER_WORK]
    alone = subprocess.run(words, env=environment() | found, capture_output=True, text=True, check=False)
    if alone.stdout != "tbb 0\n":
        pytest.skip("needs oneTBB (PyPI: tbb)")
    program = start.start(*agent.run("--malleability", malleability, *words), **found)
    assert (program.wait(), program.out, program.err) == (0, "tbb 0\n", "")
