"""What a program finds of what drom-run loads into it: nothing that it would not find without."""

from __future__ import annotations

import itertools
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from dromlib import native
from tests.dromlib.native.test_drom_run import clean_environment
from tests.dromlib.native.test_preload import compiled, run_granted
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

MPI_CALLS = ROOT / "dromlib" / "native" / "preload" / "mpi_calls.h"
MODES = list(itertools.product(("auto", "next-region", "bind-only"), ("auto", "libgomp", "libomp")))
LOOK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#define NAME(name) extern int name(void) __attribute__((weak));
#include NAMES
#undef NAME
#define NAME(name) \\
    if (name) puts("weak " #name); \\
    if (dlsym(RTLD_DEFAULT, #name)) puts("default " #name); \\
    if (dlsym(RTLD_NEXT, #name)) puts("next " #name);
int main(void)
{
#include NAMES
    return 0;
}
"""
"""A program that prints which names it finds, and how."""
OF_LIBC = {"shm_open"}
OURS = {"drom_preload_yield"}
"""What libdrom looks for: a program that attaches by itself is managed once."""


def defined(library: Path) -> set[str]:
    """Return the names that a library exports, those of its versions among them."""
    shown = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].partition("@")[0] for line in shown.splitlines()}


def names() -> list[str]:
    """Return the names of all functions that are called through drom's library, and others that it might have."""
    calls = re.findall(r"CALL\((\w+), (\w+), \d+\)", MPI_CALLS.read_text(encoding="utf-8"))
    assert len(calls) > 70
    mpi = {name for c, fortran in calls for name in (f"MPI_{c}", f"PMPI_{c}", f"MPI_{c}_c", f"mpi_{fortran}_")}
    others = {"MPI_Init", "__kmpc_fork_call", "GOMP_barrier", "omp_get_thread_num", "omp_get_level", "ompt_start_tool"}
    found = defined(native.preload_path()) | defined(native.tool_path())
    assert {"GOMP_parallel", "omp_get_num_threads", "drom_preload_yield"} <= found
    return sorted(name for name in found | mpi | others if re.fullmatch(r"\w+", name) and name not in OF_LIBC | OURS)


def looking(folder: Path, *flags: str) -> Path:
    """Compile the program that looks for names."""
    (folder / "names.h").write_text("".join(f"NAME({name})\n" for name in names()), encoding="utf-8")
    return compiled(folder, "looks", f'-DNAMES="{folder / "names.h"}"', *flags, text=LOOK)


@pytest.mark.parametrize("flags", [("-O0",), ("-O2", "-no-pie", "-Wl,-z,now")], ids=["lazy", "now"])
def test_a_program_without_openmp_and_mpi_finds_no_name_of_theirs(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Weak references are NULL, and the loader finds nothing by name, however the program is launched."""
    program = looking(tmp_path, *flags)
    for malleability, runtime in MODES:
        done = run_granted(tmp_path, "--malleability", malleability, "--openmp-runtime", runtime, "--", program)
        assert (done.stdout, done.stderr, done.returncode) == ("", "", 0), (malleability, runtime)


@pytest.mark.parametrize("malleability", ["auto", "next-region", "bind-only"])
def test_an_openmp_program_finds_the_names_that_it_finds_alone(tmp_path: Path, malleability: str) -> None:
    """Those of its runtime, and none of MPI."""
    program = looking(tmp_path, "-fopenmp", "-Wl,--no-as-needed")
    alone = subprocess.run([program], env=clean_environment(), capture_output=True, text=True, check=True).stdout
    assert "weak omp_get_num_threads\n" in alone
    words = ("--malleability", malleability, "--openmp-runtime", "libgomp")
    assert run_granted(tmp_path, *words, "--", program).stdout == alone


def test_the_library_shows_no_plain_name_but_droms() -> None:
    """All others have a version that a program must have been linked to, and none is the default."""
    command = ["nm", "-D", "--defined-only", str(native.preload_path())]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    versioned = [line.split()[-1] for line in shown.stdout.splitlines() if " A " not in line]
    assert [name for name in versioned if "@" not in name or "@@" in name] == ["drom_preload_yield@@DROM_0"]
    assert defined(native.tool_path()) == {"ompt_start_tool"}


def test_a_symbol_called_as_a_version_is_the_programs(tmp_path: Path) -> None:
    """The linker makes symbols of the names of versions: a library that shares data called VERSION finds its own."""
    data = compiled(tmp_path, "libdata.so", "-shared", "-fPIC", text='const char VERSION[] = "1.2";')
    text = "extern const char VERSION[]; const char *version(void) { return VERSION; }"
    user = compiled(tmp_path, "libuser.so", "-shared", "-fPIC", "-xnone", str(data), text=text)
    text = "#include <stdio.h>\nconst char *version(void); int main(void) { puts(version()); return 0; }"
    program = compiled(
        tmp_path, "asks", "-xnone", f"-Wl,-rpath,{tmp_path}", "-Wl,--no-as-needed", str(user), str(data), text=text
    )
    assert run_granted(tmp_path, "--", program).stdout == "1.2\n"


OPENS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int which(void) { return 1; }
int main(void)
{
    void *library = dlopen("libplugin.so", RTLD_NOW);
    int (*second)(void) = 0, (*call)(int (*)(void)) = 0;
    if (!library)
        return puts(dlerror());
    *(void **)&second = dlsym(RTLD_DEFAULT, "which");
    *(void **)&call = dlsym(library, "call");
    printf("%d", call(second));
    return 0;
}
"""
PLUGIN = """
#define _GNU_SOURCE
#include <dlfcn.h>
int which(void) { return 2; }
int call(int (*first)(void))
{
    int (*next)(void) = 0;
    *(void **)&next = dlsym(RTLD_NEXT, "getpid");
    return 10 * first() + (next != 0);
}
"""


def test_the_loader_sees_who_calls_it(tmp_path: Path) -> None:
    """A program opens libraries where it says that they are, and finds what comes next after the file that asks."""
    (tmp_path / "plugins").mkdir()
    compiled(tmp_path / "plugins", "libplugin.so", "-shared", "-fPIC", text=PLUGIN)
    for flags in (("-O0",), ("-O2", "-Wl,-z,now")):
        place = "-Wl,--enable-new-dtags,-rpath,$ORIGIN/plugins"
        program = compiled(tmp_path, "opens", "-rdynamic", place, *flags, text=OPENS)
        done = run_granted(tmp_path, "--", program)
        assert (done.stdout, done.stderr) == ("11", "")
