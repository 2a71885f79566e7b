"""libdrom as programs find it: CMake, pkg-config and Fortran; and the pages of the manual."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from drom.app import command_line
from dromlib import native
from dromlib.testing import FakeAgent
from tests.support.agents import drom
from tests.support.paths import ROOT

PREFIX = Path(native.include_dir()).parent
MANUAL = ROOT / "man"
HEADER = (native.include_dir() / "drom.h").read_text(encoding="utf-8")
FUNCTIONS = {
    name: 0 if parameters == "void" else parameters.count(",") + 1
    for name, parameters in re.findall(r"^[a-z].*?\b(drom_[a-z_]+)\((.*?)\)", HEADER, re.MULTILINE)
}
PROGRAM = """
#include <drom.h>
#include <stdio.h>

int main(void)
{
    drom *d = drom_attach();
    drom_grant g;
    int taken = drom_take(d, &g);
    printf("%d %u\\n", taken, (unsigned)g.ncpus);
    drom_detach(d);
}
"""
FORTRAN = """
program test
    use drom
    implicit none
    type(c_ptr) :: handle
    type(drom_grant) :: grant
    integer(c_int) :: cpus(8), got

    handle = drom_attach()
    call drom_want(handle, 1_c_int32_t, 3_c_int32_t)
    got = drom_wait(handle, -1_c_int)
    print *, "poll", drom_poll(handle), "take", drom_take(handle, grant), "ncpus", grant%ncpus
    got = drom_grant_cpus(grant, cpus, 8_c_int)
    print *, "cpus", cpus(1:got)
    print *, "apply", drom_apply(handle, grant), "mode", drom_mode(handle) == drom_responder, "slot", drom_slot(handle)
    print *, "poll", drom_poll(handle)
    call drom_progress(handle, 7_c_int64_t)
    call drom_detach(handle)
end program
"""


def run(*words: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command that has to succeed without a word on stderr; return what it says on stdout."""
    env = os.environ | environment
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), (words, done)
    return done.stdout


def needs(*names: str) -> str:
    """Return the first of these programs that is there; skip where none is."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"needs {names[0]}")
    return found


def test_flags_tell_the_prefix() -> None:
    """`drom flags --prefix` is where the other tests look."""
    assert drom("flags", "--prefix").stdout == f"{PREFIX}\n"


def test_flags_survive_a_path_with_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell or make reads each flag as one word wherever drom is installed."""
    monkeypatch.setattr(native, "library_path", lambda: Path("/my place/it's $here/lib/libdrom.so"))
    monkeypatch.setattr(native, "include_dir", lambda: Path("/my place/include"))

    told = CliRunner().invoke(command_line(), ["flags"]).stdout

    folder = "/my place/it's $here/lib"
    assert shlex.split(told) == ["-I/my place/include", f"-L{folder}", f"-Wl,-rpath,{folder}", "-ldrom"]


def is_linked_with_libdrom(program: Path) -> bool:
    """Return whether a program loads libdrom.so, rather than having it inside."""
    return "[libdrom.so.0]" in run("readelf", "--dynamic", program, cwd=program.parent)


@pytest.mark.parametrize("target", ["drom", "static"])
@pytest.mark.parametrize("suffix", ["c", "cpp"])
def test_a_cmake_project_finds_the_package(tmp_path: Path, suffix: str, target: str) -> None:
    """find_package(drom) by version and target; what is built runs without further settings."""
    (tmp_path / f"mine.{suffix}").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "CMakeLists.txt").write_text(
        f"""cmake_minimum_required(VERSION 3.18)
project(mine LANGUAGES {"C" if suffix == "c" else "CXX"})
find_package(drom 0.1 REQUIRED)
add_executable(mine mine.{suffix})
target_link_libraries(mine PRIVATE drom::{target})
""",
        encoding="utf-8",
    )
    cmake = needs("cmake")
    run(cmake, "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={PREFIX}", cwd=tmp_path)
    run(cmake, "--build", tmp_path / "build", cwd=tmp_path)
    assert is_linked_with_libdrom(tmp_path / "build" / "mine") == (target == "drom")
    with FakeAgent("0-2"):
        assert run(tmp_path / "build" / "mine", cwd=tmp_path) == "1 3\n"


@pytest.mark.parametrize("package", ["drom", "drom-static"])
def test_pkg_config_tells_the_flags(tmp_path: Path, package: str) -> None:
    """The flags build a program that runs without further settings."""
    (tmp_path / "mine.c").write_text(PROGRAM, encoding="utf-8")
    told = run(
        needs("pkg-config"), "--cflags", "--libs", package, cwd=tmp_path, PKG_CONFIG_PATH=f"{PREFIX}/lib/pkgconfig"
    )
    run("gcc", "mine.c", *told.split(), "-o", "mine", cwd=tmp_path)
    assert is_linked_with_libdrom(tmp_path / "mine") == (package == "drom")
    with FakeAgent("0-2"):
        assert run(tmp_path / "mine", cwd=tmp_path) == "1 3\n"


class TestFortran:
    """The module by iso_c_binding."""

    def test_a_program_takes_part(self, tmp_path: Path) -> None:
        """A Fortran program gets CPUs, applies and acknowledges them, and reports requested CPUs and progress."""
        (tmp_path / "mine.f90").write_text(FORTRAN, encoding="utf-8")
        compiler = needs("gfortran", "gfortran-12", "gfortran-13", "gfortran-14")
        flags = drom("flags").stdout.split()
        run(compiler, "-Wall", "-Werror", PREFIX / "include/drom.f90", "mine.f90", *flags, "-o", "mine", cwd=tmp_path)
        with FakeAgent("1,3") as fake:
            said = run(tmp_path / "mine", cwd=tmp_path).split()

        text = "poll 1 take 1 ncpus 2 cpus 1 3 apply 0 mode T slot 0 poll 0"
        assert said == text.split()
        assert (fake.wanted, fake.progress) == ((1, 3), 7)

    def test_has_every_function_of_the_header(self) -> None:
        """By name and number of arguments."""
        source = (PREFIX / "include/drom.f90").read_text(encoding="utf-8")
        found = re.findall(r'(?:function|subroutine) (drom_\w+)\((.*?)\) bind\(c(?:, name="(\w+)")?\)', source)
        mine = {bound or name: len(list(filter(None, parameters.split(",")))) for name, parameters, bound in found}

        assert mine == {name: count for name, count in FUNCTIONS.items() if name != "drom_poll"}

    def test_has_every_function_of_the_header_for_mpi(self) -> None:
        """By name and number of arguments; those with handles of MPI are bound to their form for Fortran."""
        source = (PREFIX / "include/drom_mpi.f90").read_text(encoding="utf-8")
        found = re.findall(r'(?:function|subroutine) (drom_\w+)\((.*?)\) bind\(c(?:, name="(\w+)")?\)', source)
        mine = {name: parameters.count(",") + 1 for name, parameters, _ in found}
        header = (PREFIX / "include/drom_mpi.h").read_text(encoding="utf-8")
        functions = re.findall(r"^[A-Za-z].*?\b(drom_[a-z_]+)\((.*?)\);", header, re.MULTILINE)
        bound = {name.removesuffix("_f") for name, _ in functions if name.endswith("_f")}

        assert mine == {name: parameters.count(",") + 1 for name, parameters in functions if not name.endswith("_f")}
        assert {name for name, _, other in found if other} == bound


class TestManual:
    """The pages tell all there is."""

    @pytest.mark.parametrize("page", ["drom.1", "drom-run.1", "drom.3"])
    def test_a_page_is_well_formed(self, page: str, tmp_path: Path) -> None:
        """Groff has nothing to complain of."""
        words = (needs("groff"), "-man", "-Tutf8", "-ww", "-z", MANUAL / page)
        assert run(*words, cwd=tmp_path) == ""

    def test_drom_run_has_every_option(self) -> None:
        """Those of `drom-run --help`, and no others."""
        done = subprocess.run([native.run_path(), "--help"], capture_output=True, text=True, check=True)
        page = (MANUAL / "drom-run.1").read_text(encoding="utf-8").replace("\\-", "-").partition("ENVIRONMENT")[0]

        assert set(re.findall(r"--[a-z-]+", page)) == set(re.findall(r"--[a-z-]+", done.stdout))

    def test_drom_has_every_command(self) -> None:
        """Each is explained, and no others."""
        page = (MANUAL / "drom.1").read_text(encoding="utf-8").replace("\\-", "-").partition(".SH FILES")[0]
        names = get_command(command_line()).commands  # type: ignore[attr-defined] # a group

        assert set(re.findall(r"^\.TP\n\.B ([a-z-]+)$", page, re.MULTILINE)) == set(names)

    def test_the_library_has_every_function(self) -> None:
        """The synopsis has those of the header."""
        page = (MANUAL / "drom.3").read_text(encoding="utf-8").partition(".SH DESCRIPTION")[0]

        assert set(re.findall(r"\b(drom_[a-z_]+)\(", page)) == FUNCTIONS.keys()
