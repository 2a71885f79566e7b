from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from dromlib import native
from dromlib.testing import Registry
from tests.support.agents import wait_until
from tests.support.paths import ROOT
from tests.support.registration import serve_registrations

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCES = ROOT / "examples"
SHORT = {"jacobi": ("--size", "60", "--iterations", "500"), "primes": ("--below", "100000")}
"""Arguments of a run of some milliseconds."""
LONGER = ("1.5", "15", "60")
"""Seconds of a run on a machine that has little else to do, more, and much."""

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


def build(source: Path, folder: Path) -> Path:
    """Compile a program as examples/README.md says."""
    program = folder / source.stem
    include, library = native.include_dir(), native.library_path().parent
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-fopenmp"]
    command = ["gcc", *flags, str(source), f"-I{include}", f"-L{library}", f"-Wl,-rpath,{library}", "-ldrom", "-lm"]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program


def environment(runtime_dir: Path, threads: int) -> dict[str, str]:
    """Return an environment with this runtime directory and number of threads."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DROM_", "OMP_"))}
    return clean | {"DROM_RUNTIME_DIR": str(runtime_dir), "OMP_NUM_THREADS": str(threads)}


def run(program: Path, *arguments: str, threads: int = 2) -> subprocess.CompletedProcess[str]:
    """Run a program that finds no agent."""
    return subprocess.run(
        [str(program), *arguments],
        env=environment(program.parent / "no-agent", threads),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def await_epoch(registry: Registry, process: subprocess.Popen[str], epoch: int) -> None:
    """Wait until the program has acknowledged a grant, or has ended."""
    wait_until(lambda: registry.mail(0, "applied") == epoch or process.poll() is not None, lambda: f"no epoch {epoch}")


def await_regions(registry: Registry, process: subprocess.Popen[str]) -> None:
    """Wait until the program has been through some more parallel regions, or has ended."""
    polls = registry.mail(0, "polls")
    wait_until(lambda: registry.mail(0, "polls") > polls + 2 or process.poll() is not None, lambda: f"{polls} polls")


def affinities(pid: int) -> set[frozenset[int]]:
    """Return the different CPU sets of a process's threads."""
    found = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # libgomp ends surplus threads
            found.add(frozenset(os.sched_getaffinity(int(thread.name))))
    return found


def thread_count(pid: int) -> int:
    """Return how many threads a process has now."""
    return psutil.Process(pid).num_threads()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the compiled examples by name."""
    folder = tmp_path_factory.mktemp("examples")
    return {name: build(SOURCES / f"{name}.c", folder) for name in SHORT}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", sorted(SHORT))
def test_is_right_and_silent_without_an_agent(programs: dict[str, Path], name: str, threads: int) -> None:
    """Unmanaged, an example computes the right answer with any number of threads and says nothing on stderr."""
    done = run(programs[name], *SHORT[name], threads=threads)

    assert (done.returncode, done.stderr) == (0, "")
    answer, wall = done.stdout.splitlines()
    assert answer.startswith(f"{name}: ")
    assert answer.endswith(" ok")
    assert float(wall.removeprefix(f"{name}: ").removesuffix(" s")) > 0


@pytest.mark.parametrize(("name", "endless"), [("jacobi", ("--size", "100")), ("primes", ("--below", "4e9"))])
def test_follows_grants_and_stays_right(
    programs: dict[str, Path], tmp_path: Path, name: str, endless: tuple[str, ...]
) -> None:
    """While it runs an example shrinks and grows as granted, no thread stays on a lost CPU, and the answer is right."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")
    for seconds in LONGER:
        folder = tmp_path / seconds
        folder.mkdir()
        if resized([programs[name], *endless, "--seconds", seconds], folder) >= 2:
            return
    pytest.fail("it ends before it has been resized twice")


def resized(command: Sequence[str | Path], folder: Path) -> int:
    """Shrink and grow a program until it ends with the right answer; return how often its threads were seen to obey."""
    cpus = sorted(os.sched_getaffinity(0))
    one, two = {cpus[1]}, {cpus[0], cpus[1]}
    registry = Registry(folder)
    with serve_registrations(folder, lambda request: request.attach(registry)):
        process = subprocess.Popen(
            command,
            env=environment(folder, threads=2),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            changes = 0
            for granted in itertools.cycle((two, one)):
                epoch = registry.publish(0, sum(1 << cpu for cpu in granted))
                await_epoch(registry, process, epoch)
                await_regions(registry, process)
                if process.poll() is not None:
                    break
                assert affinities(process.pid) == {frozenset(granted)}
                changes += 1
            output, complaints = process.communicate(timeout=60)

    assert (process.returncode, complaints) == (0, "")
    assert output.splitlines()[0].endswith(" ok")
    assert registry.mail(0, "progress") > 0
    return changes


def test_never_uses_more_threads_than_at_its_start(programs: dict[str, Path], tmp_path: Path) -> None:
    """A grant of more CPUs than the launch had binds the threads to all of them and makes no more."""
    cpus = sorted(os.sched_getaffinity(0))
    registry = Registry(tmp_path)
    with serve_registrations(tmp_path, lambda request: request.attach(registry)):
        process = subprocess.Popen(
            [str(programs["jacobi"]), "--size", "50", "--seconds", "1e6"],
            env=environment(tmp_path, threads=1),
            stdout=subprocess.DEVNULL,
            text=True,
        )
        try:
            epoch = registry.publish(0, sum(1 << cpu for cpu in cpus))
            await_epoch(registry, process, epoch)
            await_regions(registry, process)

            assert process.poll() is None
            assert thread_count(process.pid) == 1
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("below", "count"), [(0, 0), (2, 0), (3, 1), (10, 4), (26, 9), (32768, 3512), (99991, 9591), (99992, 9592)]
)
def test_primes_below_any_number_are_counted(programs: dict[str, Path], below: int, count: int) -> None:
    """N itself does not count, and the edges of blocks lose nothing."""
    assert f"primes: pi({below})={count} ok" == run(programs["primes"], "--below", str(below)).stdout.splitlines()[0]


def test_primes_detects_a_wrong_count(programs: dict[str, Path]) -> None:
    """A count that differs from the expected one ends with exit code 1."""
    done = run(programs["primes"], "--below", "1000", "--expect", "167")

    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "primes: pi(1000)=168 WRONG"


@pytest.mark.parametrize("iterations", [0, 1, 7, 3000])
def test_jacobi_knows_the_answer_after_any_number_of_sweeps(programs: dict[str, Path], iterations: int) -> None:
    """The closed form holds from the first sweep to convergence."""
    done = run(programs["jacobi"], "--size", "30", "--iterations", str(iterations))

    assert done.returncode == 0
    assert f" iterations={iterations} " in done.stdout


@pytest.mark.parametrize(("name", "grain"), [("jacobi", ("--size", "30")), ("primes", ("--below", "4e9"))])
def test_stops_when_its_seconds_are_over(programs: dict[str, Path], name: str, grain: tuple[str, str]) -> None:
    """A run limited by time takes about that long and still checks its answer."""
    done = run(programs[name], *grain, "--seconds", "0.2")

    assert done.returncode == 0
    assert float(done.stdout.split()[-2]) >= 0.2


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("jacobi", "0.25 *", "0.2500001 *"),
        ("jacobi", "i <= n; i++) {\n        const double *u", "i < n; i++) {\n        const double *u"),
        ("jacobi", "+ source * sine[j];", "+ (i == 9 ? 0 : source) * sine[j];"),
        ("primes", "number = from;", "number = from + 3;"),
        ("primes", "divisor <= number / divisor", "divisor < number / divisor"),
        ("primes", "reduction(+ : count)", "firstprivate(count)"),
    ],
)
def test_a_broken_copy_notices_that_it_is_wrong(tmp_path: Path, name: str, right: str, wrong: str) -> None:
    """The check is a real one: a small mistake in the computation ends with exit code 1."""
    source = (SOURCES / f"{name}.c").read_text()
    assert source.count(right) == 1
    (tmp_path / f"{name}.c").write_text(source.replace(right, wrong))
    done = run(build(tmp_path / f"{name}.c", tmp_path), *SHORT[name])

    assert done.returncode == 1
    assert done.stdout.splitlines()[0].endswith(" WRONG")


@pytest.mark.parametrize("name", sorted(SHORT))
@pytest.mark.parametrize("arguments", [("--seconds",), ("--seconds", "soon"), ("--seconds", "-1"), ("--what", "1")])
def test_wrong_usage_is_one_sentence(programs: dict[str, Path], name: str, arguments: tuple[str, ...]) -> None:
    """Arguments that make no sense end with exit code 2 and the usage on stderr."""
    done = run(programs[name], *arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{name}: usage: {name} [")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", sorted(SHORT))
def test_the_malleable_part_stays_short(name: str) -> None:
    """An example shows that malleability costs fewer than 20 lines and a program fewer than 120."""
    lines = (SOURCES / f"{name}.c").read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("static void malleability_point"))
    end = lines.index("}", start)
    calls = [line for line in lines[end:] if "drom_" in line or "malleability_point(" in line]

    assert end + 1 - start + len(calls) < 20
    assert len(lines) < 120
