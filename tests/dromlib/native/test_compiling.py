# SPDX-License-Identifier: Apache-2.0
"""docs/compiling.md: its lines build programs that take part."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from drom.agent.cli.commands import flags

from dromlib import native
from dromlib.testing import FakeAgent
from tests.support.agents import SECONDS

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "compiling.md").read_text(encoding="utf-8")
RECIPES = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PROGRAM = """
#include <drom.h>
#include <stdio.h>

int main(void)
{
    drom *d = drom_attach();
    drom_grant g;
    int taken = drom_take(d, &g);
    printf("%d %d\\n", taken, (int)g.ncpus);
    drom_detach(d);
}
"""
MPI = """
#include <drom_mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    drom_mpi *m = drom_mpi_init(MPI_COMM_WORLD, 1);
    printf("%d %d\\n", drom_mpi_point(m) == DROM_MPI_SAME, 3);
    drom_mpi_finalize(m);
    MPI_Finalize();
}
"""
FORTRAN = """
program mine
    use drom
    implicit none
    type(c_ptr) :: handle
    type(drom_grant) :: grant
    integer :: taken
    handle = drom_attach()
    taken = drom_take(handle, grant)
    print '(i0, 1x, i0)', taken, grant%ncpus
    call drom_detach(handle)
end program
"""
MPI_FORTRAN = """
program mine
    use mpi
    use drom_mpi
    implicit none
    type(c_ptr) :: m
    integer :: code
    call MPI_Init(code)
    m = drom_mpi_init(MPI_COMM_WORLD, 1)
    print '(i0, 1x, i0)', merge(1, 0, drom_mpi_point(m) == drom_mpi_same), 3
    call drom_mpi_finalize(m)
    call MPI_Finalize(code)
end program
"""


def build(folder: Path, lines: str) -> None:
    """Run lines of the page in a folder with programs in C and Fortran; skip if they name a tool that is missing."""
    for tool in ("gcc", "pkg-config", "gfortran", "cmake", "mpicc", "mpif90"):
        if re.search(rf"\b{tool} ", lines) and shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    (folder / "mine.c").write_text(PROGRAM, encoding="utf-8")
    (folder / "mine_mpi.c").write_text(MPI, encoding="utf-8")
    (folder / "mine.f90").write_text(FORTRAN, encoding="utf-8")
    (folder / "mine_mpi.f90").write_text(MPI_FORTRAN, encoding="utf-8")
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euc", lines], cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr


def answer(program: Path) -> str:
    """Return what a program prints that is granted three CPUs."""
    with FakeAgent("0-2"):
        return subprocess.run([program], capture_output=True, text=True, timeout=SECONDS, check=True).stdout


@pytest.mark.parametrize("lines", RECIPES, ids=["flags", "pkg-config", "static", "fortran", "mpi", "mpi-fortran"])
def test_the_lines_build_a_program_that_takes_part(tmp_path: Path, lines: str) -> None:
    """Each recipe is of two lines at most, and what it builds is granted CPUs."""
    build(tmp_path, lines)

    assert lines.count("\n") <= 2
    assert answer(tmp_path / "mine") == "1 3\n"


def test_the_lines_for_cmake_build_a_program_that_takes_part(tmp_path: Path) -> None:
    """The page's two lines complete a project."""
    (lines,) = re.findall(r"^```cmake\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    find, link = lines.splitlines()
    project = ["cmake_minimum_required(VERSION 3.18)", "project(mine C)", find, "add_executable(mine mine.c)", link]
    (tmp_path / "CMakeLists.txt").write_text("\n".join(project), encoding="utf-8")
    (option,) = re.findall(r"`(-DCMAKE_PREFIX_PATH=.*?)`", PAGE)
    build(tmp_path, f"cmake -S . -B built {option} && cmake --build built")

    assert answer(tmp_path / "built" / "mine") == "1 3\n"


@pytest.mark.parametrize("name", ["a b", "it's", "a$HOME", 'a"b', "a,b", "a;b&c(d)", "a\\b*"])
def test_the_flags_work_wherever_drom_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """The shell and make read each flag as one word, and a word on stderr says what a shell needs for that."""
    prefix = tmp_path / name
    shutil.copytree(native.include_dir(), prefix / "include")
    (prefix / "lib").mkdir()
    for library in native.library_path().parent.glob("libdrom.so*"):
        shutil.copy(library, prefix / "lib", follow_symlinks=False)
    monkeypatch.setattr(native, "include_dir", lambda: prefix / "include")
    monkeypatch.setattr(native, "library_path", lambda: prefix / "lib" / "libdrom.so")
    flags()
    out, err = capsys.readouterr()
    (tmp_path / "flags").write_text(out, encoding="utf-8")
    (tmp_path / "Makefile").write_text("made: mine.c\n\tgcc mine.c $(shell cat flags) -o made\n", encoding="utf-8")

    build(tmp_path, 'eval "gcc mine.c $(cat flags) -o mine"; make -s made')
    assert [answer(tmp_path / program) for program in ("mine", "made")] == ["1 3\n"] * 2
    hint = f"drom: {prefix} has characters with a meaning in shells: if the compiler misses files, write eval "
    assert err.startswith(hint) if name != "a,b" else not err
