"""Programs without a line of drom, each with a fake agent in its own process and libraries in name only."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from textwrap import indent
from typing import TYPE_CHECKING

import pytest

from dromlib.testing import FakeAgent

if TYPE_CHECKING:
    from pathlib import Path

TORCH = """
threads = 4

def get_num_threads():
    return threads

def set_num_threads(number):
    global threads
    threads = number
"""
NUMBA = """
class config: NUMBA_NUM_THREADS = 4
def set_num_threads(number): print("told", number)
"""
TORCH_ON_A_POOL = """
from threadpoolctl import pool

def get_num_threads():
    return pool.threads

def set_num_threads(number):
    pool.threads = number
"""
LIMITS_2 = """
class threadpool_limits:
    def __enter__(self): return self
    def __exit__(self, *error): pass
"""
LIMITS_3_5 = """
from contextlib import ContextDecorator

class pool:
    threads = 4

class ThreadpoolController:
    lib_controllers = [pool]
    def info(self): return []
    def limit(self, limits): pool.threads = limits

class _ThreadpoolLimiter:
    def __init__(self, limits):
        self.limits = limits
        self.find()
    def find(self): self.found, pool.threads = pool.threads, self.limits
    def __enter__(self): return self
    def __exit__(self, *error): pool.threads = self.found

class _ThreadpoolLimiterDecorator(_ThreadpoolLimiter, ContextDecorator):
    def __init__(self, limits): self.limits = limits
    def __enter__(self):
        self.find()
        return self

class threadpool_limits(_ThreadpoolLimiter):
    wrap = _ThreadpoolLimiterDecorator
"""


class Program:
    """A program that finds libraries in name only in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.library("torch", TORCH)

    def library(self, name: str, code: str) -> None:
        """Have a library in name."""
        (self.folder / f"{name}.py").write_text(code, encoding="utf-8")

    def run(self, code: str, *options: str) -> str:
        """Run a program under an agent that has granted CPUs 0-3 to its end without complaint; return what it says."""
        whole = f"import os, dromlib.testing\nwith dromlib.testing.FakeAgent('0-3') as fake:\n{indent(code, '    ')}"
        return self._run(whole, *options)

    def run_alone(self, code: str) -> str:
        """Do the same with the agent in this process: the program has no threads but its own and drom's."""
        with FakeAgent("0-3"):
            return self._run(code)

    def _run(self, code: str, *options: str) -> str:
        words = [sys.executable, *options, "-c", code]
        env = {**os.environ, "PYTHONPATH": str(self.folder)}
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=env)

        assert (done.stderr, done.returncode) == ("", 0)
        return done.stdout


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Return a program that computes with a torch in name."""
    return Program(tmp_path)


class TestLimits:
    """Blocks of threadpoolctl's, whatever its version."""

    def test_a_version_before_3_is_left_alone(self, program: Program) -> None:
        """An older threadpoolctl sizes no pools here; imports and grants go on."""
        program.library("threadpoolctl", LIMITS_2)
        code = """
import dromlib.auto, torch
fake.wait_applied(fake.grant("0-1"))
print(torch.threads)
"""
        assert program.run(code) == "2\n"

    def test_a_wrapped_function_is_a_block(self, program: Program) -> None:
        """Each call keeps its number of threads; after a call the pools have the size of the newest grant."""
        program.library("threadpoolctl", LIMITS_3_5)
        code = """
import dromlib.auto, torch
from threadpoolctl import pool, threadpool_limits

@threadpool_limits.wrap(limits=7)
def work(cpus):
    fake.wait_applied(fake.grant(cpus))
    print(pool.threads, end=" ")

for cpus in ("0-1", "0-2"):
    work(cpus)
    print(pool.threads)
fake.wait_applied(fake.grant("0"))
print(pool.threads)
with threadpool_limits(5):
    work("0-4")
    print(pool.threads)
print(pool.threads)
"""
        assert program.run(code) == "7 2\n7 3\n1\n7 5\n5\n"


class TestHeeding:
    """Numbers of threads that the program has spoken of; numba's are in test_adapters.py."""

    @pytest.mark.parametrize(("words", "number"), [("get_num_threads()", 4), ("set_num_threads(3)", 3)])
    def test_torch_keeps_its_number(self, program: Program, words: str, number: int) -> None:
        """Also where the OpenMP runtime whose number it is has been sized before it."""
        program.library("threadpoolctl", LIMITS_3_5)
        program.library("torch", TORCH_ON_A_POOL)
        code = f"""
import dromlib.auto, torch
from threadpoolctl import pool
fake.wait_applied(fake.grant("0-1"))
print(pool.threads)
fake.wait_applied(fake.grant("0-3"))
torch.{words}
fake.wait_applied(fake.grant("0"))
print(pool.threads)
"""
        assert program.run(code) == f"2\n{number}\n"

    def test_torch_speaks_for_its_own_thread(self, program: Program) -> None:
        """A loader that pins memory has a thread which sets its own number: that is not the program's."""
        code = """
import dromlib.auto, torch
exec("torch.set_num_threads(1)", {"__name__": "torch.utils.data._utils.pin_memory", "torch": torch})
fake.wait_applied(fake.grant("0-1"))
print(torch.threads)
"""
        assert program.run(code) == "2\n"

    @pytest.mark.parametrize(("frames", "words"), [(0, "with lock:"), (1, "if True:")], ids=["at work", "after it"])
    def test_a_number_that_torch_has_compiled_for(self, program: Program, frames: int, words: str) -> None:
        """The number stays while PyTorch compiles, which would fail, and afterwards, when it would recompile."""
        code = f"""
import sys, threading, types, dromlib.auto, torch
lock = threading.RLock()
compiler = types.SimpleNamespace(compile_lock=lock, FRAME_COUNTER=0)
sys.modules["torch._dynamo.convert_frame"] = compiler
fake.wait_applied(fake.grant("0-1"))
print(torch.threads)
compiler.FRAME_COUNTER = {frames}
{words}
    fake.wait_applied(fake.grant("0"))
    print(torch.threads)
"""
        assert program.run(code) == "2\n2\n"

    def test_a_real_torch_that_compiles(self, program: Program) -> None:
        """A grant that comes meanwhile, or afterwards, has nothing fail and nothing compiled again."""
        if not importlib.util.find_spec("torch"):
            pytest.skip("needs PyTorch: pip install torch; builds without CUDA have their own index (pytorch.org)")
        (program.folder / "torch.py").unlink()
        code = """
import dromlib.auto, torch
compiled = []
def compile(graph, inputs):
    compiled.append(torch._C.get_num_threads())
    fake.wait_applied(fake.grant("0-1"))
    return graph.forward
doubled = torch.compile(lambda values: values * 2, backend=compile)
print(doubled(torch.ones(3)).sum().item())
fake.wait_applied(fake.grant("0-2"))
print(doubled(torch.ones(3)).sum().item(), compiled, torch._C.get_num_threads())
"""
        assert program.run(code) == "6.0\n6.0 [4] 4\n"


class TestImports:
    """Grants that come while a library is being imported."""

    @pytest.mark.parametrize("name", ["torch", "numba"])
    def test_a_library_finds_itself_as_it_left_itself(self, program: Program, name: str) -> None:
        """PyTorch documents its functions long after it has made them, and cannot do so with any other."""
        program.library("numpy", "")
        made = "def get_num_threads(): return 4\ntold = []\nset_num_threads = told.append\n"
        config = "class config: NUMBA_NUM_THREADS = 4\n"
        meanwhile = "from __main__ import fake\nbefore = dict(globals())\nfake.wait_applied(fake.grant('0-1'))\n"
        kept = "kept = all(globals()[name] is value for name, value in before.items()) and not told\n"
        program.library(name, made + config + meanwhile + kept)
        assert program.run(f"import dromlib.auto, numpy, {name}\nprint({name}.kept, {name}.told)") == "True [2]\n"


class TestThread:
    """The thread that waits for grants."""

    def test_the_thread_is_none_of_threadings(self, program: Program) -> None:
        """Where all threads are made to take turns in the main thread, as gevent does, the program goes on."""
        code = """
import dromlib.auto, _thread, threading
def start_new_thread(function, args=(), kwargs={}):
    function(*args, **kwargs)
    return 1
threading._start_new_thread = _thread.start_new_thread = start_new_thread
import torch
print(torch.threads, threading.active_count())
"""
        assert program.run_alone(code) == "4 1\n"

    def test_the_thread_takes_no_signals(self, program: Program) -> None:
        """One that the program blocks waits for the program to ask for it."""
        code = """
import os, signal, dromlib.auto, torch
print(len(os.listdir("/proc/self/task")))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigwait({signal.SIGUSR1}).name, signal.pthread_sigmask(signal.SIG_BLOCK, ()) == {signal.SIGUSR1})
"""
        assert program.run_alone(code) == "2\nSIGUSR1 True\n"


class TestWords:
    """What a program hears of it that did not ask for it: nothing."""

    def test_without_threadpoolctl_nothing_is_said(self, program: Program) -> None:
        """Not even where every warning is an error."""
        program.library("threadpoolctl", "raise ImportError")
        code = """
import dromlib.auto, torch
fake.wait_applied(fake.grant("0-1"))
print(torch.threads)
"""
        assert program.run(code, "-W", "error") == "2\n"

    def test_of_two_openmp_runtimes_nothing_is_said(self, program: Program) -> None:
        """Both are sized, also where the warning of threadpoolctl about Intel's and LLVM's would be an error."""
        code = f"""
import ctypes, shutil
runtimes = [ctypes.CDLL("libgomp.so.1")]
path = next(word for word in open("/proc/self/maps").read().split() if "libgomp.so" in word)
for name in ("libomp.so", "libiomp5.so"):
    runtimes.append(ctypes.CDLL(shutil.copy(path, {str(program.folder)!r} + "/" + name)))
import dromlib.auto, torch
fake.wait_applied(fake.grant("0-2"))
print([runtime.omp_get_max_threads() for runtime in runtimes])
"""
        assert program.run(code, "-W", "error::RuntimeWarning") == "[3, 3, 3]\n"

    def test_what_goes_wrong_stays_out_of_the_program(self, program: Program) -> None:
        """Neither the import nor an instruction raises it; a program that logs can read it, and later grants count."""
        program.library("torch", TORCH + "    if number != 1: raise ValueError(number)")
        code = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
import dromlib.auto, torch
fake.wait_applied(fake.grant("0"))
print(torch.threads)
"""
        assert program.run(code) == "A grant could not be applied in full: ValueError(4).\n1\n"

    def test_a_program_that_attaches_is_warned(self, program: Program) -> None:
        """From then on it has asked."""
        code = """
import warnings, dromlib.auto
with warnings.catch_warnings(record=True) as caught, dromlib.attach([], min_cpus=9):
    print(len(caught))
"""
        assert program.run(code) == "1\n"

    def test_a_follower_looks_for_no_pools(self, program: Program) -> None:
        """A follower has no pools to size."""
        program.library("threadpoolctl", "print('imported')")
        code = """
import subprocess, sys
with dromlib.attach([]):
    code = "import dromlib.auto, torch; print(dromlib.auto._auto._session.mode)"
    print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout, end="")
"""
        assert program.run(code) == "follower\n"


class TestSignals:
    """Handlers of signals, which may run while a grant is applied."""

    # Not an OSError: the fake agent, whose methods it would come out of here, takes that for one of its own.
    @pytest.mark.parametrize("raised", ["KeyboardInterrupt", "RuntimeError"])
    def test_what_a_handler_raises_comes_through(self, program: Program, raised: str) -> None:
        """The program hears of it, once, and the next grant is applied."""
        program.library("torch", TORCH + "    if number == 2: import os; os.kill(os.getpid(), 10)")
        code = f"""
import signal
def handle(*_): raise {raised}("mine")
signal.signal(signal.SIGUSR1, handle)
import dromlib.auto, torch
try:
    fake.wait_applied(fake.grant("0-1"))
except {raised} as error:
    print(error)
fake.wait_applied(fake.grant("0-2"))
print(torch.threads)
"""
        assert program.run(code) == "mine\n3\n"


class TestEnds:
    """Who is left alone."""

    def test_an_interpreter_beside_the_main_one(self, program: Program) -> None:
        """Such as those of mod_wsgi: nothing is sized from it, and its end is not that of the process."""
        code = """
try:
    import _xxsubinterpreters as interpreters
    other = interpreters.create(isolated=False)
except ImportError:  # from 3.13 on
    import _interpreters as interpreters
    other = interpreters.create("legacy")
code = "import dromlib.auto, sys, torch; print(torch.threads, dromlib.auto._auto._watch in sys.meta_path, flush=True)"
interpreters.run_string(other, code)
interpreters.destroy(other)
import dromlib.auto, torch
print(torch.threads)
"""
        program.library("torch", TORCH.replace("threads = 4", "threads = 3"))
        assert program.run_alone(code) == "3 False\n4\n"

    def test_a_program_that_is_to_be_bound_only(self, program: Program) -> None:
        """Nothing is done in it, also where it, or an outer launch, loads this all the same."""
        code = """
import os
os.environ["DROM_MALLEABILITY"] = "bind-only"
import dromlib.auto, torch
print(torch.threads, dromlib.auto._auto._session)
"""
        program.library("torch", TORCH.replace("threads = 4", "threads = 3"))
        assert program.run_alone(code) == "3 None\n"

    def test_a_program_attaches_once(self, program: Program) -> None:
        """Also when another call is due meanwhile."""
        code = """
import dromlib.auto, dromlib.session
from dromlib._handle import call_soon
class Session(dromlib.session.Session):
    made = 0
    def __init__(self, *args):
        Session.made += 1
        call_soon(dromlib.auto._auto._apply)
        super().__init__(*args)
dromlib.session.Session = Session
import torch
print(Session.made)
"""
        assert program.run(code) == "1\n"

    def test_a_program_that_attached_by_itself_is_not_attached_again(self, program: Program) -> None:
        """A call that was due when the program attached by itself does nothing any more."""
        code = """
import dromlib.auto, torch
dromlib.auto.stop()
fake.wait_left()
dromlib.auto._auto._apply()

again = dromlib.auto.Auto()
with dromlib.attach([]):
    again.stop()
    again._apply()
    print(again._session)
"""
        assert program.run(code) == "None\n"

    def test_it_has_left_when_it_has_stopped(self, program: Program) -> None:
        """The thread that follows the grants says so to the agent, and may not do so after another copy attaches."""
        code = """
import dromlib.auto, torch
from dromlib.layout import EPOCH_RETIRED
fake.wait_applied(fake.grant("0-1"))
while not dromlib.auto._auto._following.locked():
    pass
dromlib.auto.stop()
print(fake.applied == EPOCH_RETIRED)
"""
        assert program.run(code) == "True\n"

    def test_a_stopped_agent_has_no_say_any_more(self, program: Program) -> None:
        """What is imported after it keeps the threads that it starts with."""
        program.library("numba", NUMBA)
        code = """
import sys, time
import dromlib.auto, torch
fake.wait_applied(fake.grant("0-1"))
fake.retire()
while dromlib.auto._auto._watch in sys.meta_path:
    time.sleep(0.001)
import numba
print(dromlib.auto._auto._session.mode)
"""
        assert program.run(code) == "unmanaged\n"

    def test_a_forked_process_is_not_sized(self, program: Program) -> None:
        """What it imports late has the threads that its parent's division of work left it."""
        program.library("numba", NUMBA)
        code = """
import dromlib.auto, torch
fake.wait_applied(1)
child = os.fork()
if not child:
    import numba
    print(torch.threads, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
        assert program.run(code) == "4\n"
