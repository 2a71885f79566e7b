# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dromlib import native
from dromlib.programs import BuildError
from tests.support.agents import SECONDS, environment

SOURCES = sorted(native.include_dir().with_name("bench").glob("*.c"))
"""The programs of the benchmarks, as they are installed."""

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs cc")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("CC", "MPICC", "CFLAGS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_benchmarks_program_compiles_without_a_warning(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each installed source compiles with the installed headers and library; warnings are errors."""
    if source.stem == "mpi" and shutil.which("mpicc") is None:
        pytest.skip("needs mpicc")
    monkeypatch.setenv("CFLAGS", "-std=gnu11 -Wall -Wextra -Werror")
    name = f"{source.stem}.so" if source.stem == "idle_tool" else source.stem

    assert native.bench_path(name).name == name


def test_a_program_is_compiled_once() -> None:
    """The second request returns the same file, which was not written again."""
    first = native.example_path("primes")
    before = first.stat()
    again = native.example_path("primes")

    assert (again, again.stat().st_ino, again.stat().st_mtime_ns) == (first, before.st_ino, before.st_mtime_ns)
    assert [path.name for path in first.parent.iterdir()] == ["primes"]


def test_other_flags_make_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program compiled with other flags lies in another folder; examples compiled alike share one."""
    plain = native.example_path("primes")
    monkeypatch.setenv("CFLAGS", "-O0")

    assert native.example_path("primes").parent != plain.parent
    assert native.example_path("jacobi").parent == native.example_path("primes").parent


def test_a_missing_compiler_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the compiler, and how to choose another."""
    monkeypatch.setenv("CC", "no-such-compiler -O3")
    with pytest.raises(BuildError) as error:
        native.example_path("primes")

    assert str(error.value) == (
        "primes.c is compiled on first use, by no-such-compiler: install it, or set CC or MPICC."
    )


def test_a_failing_compiler_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error has the compiler's own words, and nothing half-made is left."""
    monkeypatch.setenv("CFLAGS", "-include no-such-header.h")
    with pytest.raises(BuildError, match=r"^cc cannot compile primes\.c: .*no-such-header\.h"):
        native.example_path("primes")

    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_a_cache_that_cannot_be_written_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error names the folder and the variable that chooses another."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    sentence = rf"^{tmp_path}/file/drom/programs/\w+ cannot be written \(.*\): set XDG_CACHE_HOME\.$"
    with pytest.raises(BuildError, match=sentence):
        native.example_path("primes")


def test_the_command_prints_the_folder_of_the_examples(tmp_path: Path) -> None:
    """`python -m dromlib.examples` compiles what it is given; an example that there is not is one sentence."""
    env = environment(XDG_CACHE_HOME=str(tmp_path / "cache"))

    def command(*names: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "dromlib.examples", *names]
        return subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=SECONDS)

    done = command("jacobi", "primes")
    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, "", 1)
    assert {"jacobi", "primes"} <= {path.name for path in Path(done.stdout.strip()).iterdir()}

    done = command("nosuch")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("drom: dromlib/examples/nosuch.c is not built: ")
