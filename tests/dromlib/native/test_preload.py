"""What drom-run loads into a command, and when it says that it cannot."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from dromlib import _handle, layout, native
from tests.dromlib.native.test_drom_run import clean_environment, run, start_run
from tests.support import native_build
from tests.support.agents import lives, wait_until
from tests.support.paths import ROOT
from tests.support.registration import serve_registrations
from tests.system.test_openmp import has_libomp

HOOK = ROOT / "dromlib" / "native" / "python" / "sitecustomize.py"
PRELOAD = ("sh", "-c", "echo $LD_PRELOAD")
OUTSIDE = "it is bound from outside."
ENDLESS = r"""
#include <stdio.h>
#include <unistd.h>
int main(void)
{
    FILE *file = fopen("PLACE/pid", "w");
    fprintf(file, "%d", getpid());
    fclose(file);
    for (;;)
        puts("libm.so.6 => /lib/libm.so.6");
}
"""
"""A loader that says in a file who it is, and does not stop to speak."""
REGION = """
int main(void)
{
#pragma omp parallel
    ;
    return 0;
}
"""


def run_granted(folder: Path, *words: str | Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run drom-run to its end, with a server that grants synthetic CPUs."""
    try:
        with serve_registrations(folder, lambda request: request.grant(1, flags=layout.HEADER_EMULATED)):
            return run(*words, DROM_RUNTIME_DIR=str(folder), **extra)
    finally:
        (folder / "door").unlink(missing_ok=True)


def install(folder: Path, source: Path) -> Path:
    """Copy a file into a folder; return it."""
    folder.mkdir(parents=True)
    return Path(shutil.copy(source, folder))


def shown(flags: str, file: Path) -> str:
    """Return what readelf says of a file."""
    return subprocess.run(["readelf", "-W", flags, file], capture_output=True, text=True, check=True).stdout


def run_by(launcher: Path, folder: Path, *words: str | Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of drom-run to its end, with a server that grants synthetic CPUs."""
    with serve_registrations(folder, lambda request: request.grant(1, flags=layout.HEADER_EMULATED)):
        command = [str(launcher), "--runtime-dir", str(folder), "--", *map(str, words)]
        return subprocess.run(command, env=clean_environment(**extra), capture_output=True, text=True, check=True)


def compiled(
    folder: Path, name: str, *flags: str, compiler: str = "gcc", text: str = "int main(void) { return 0; }"
) -> Path:
    """Return a program; it does nothing, if nothing else is said."""
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}")
    target = folder / name
    command = [compiler, "-xc", "-", *flags, "-o", str(target)]
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"{compiler} {' '.join(flags)} does not work here")
    return target


def test_a_granted_command_finds_the_library_before_what_the_user_loads(tmp_path: Path) -> None:
    """LD_PRELOAD begins with the library and goes on with what was there."""
    mine = str(native.preload_path())

    assert run_granted(tmp_path, "--", *PRELOAD).stdout == f"{mine}\n"
    libc = "libc.so.6"
    assert run_granted(tmp_path, "--", *PRELOAD, LD_PRELOAD=libc).stdout == f"{mine}:{libc}\n"
    assert run_granted(tmp_path, "--", *PRELOAD, LD_PRELOAD=mine).stdout == f"{mine}\n"


@pytest.mark.parametrize("words", [("--malleability", "bind-only"), ("--class", "rigid"), ("--class", "moldable")])
def test_a_command_that_is_not_to_change_itself_is_left_as_it_is(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Nothing is loaded with bind-only, nor into a job whose CPUs never change."""
    assert run_granted(tmp_path, *words, "--", *PRELOAD).stdout == "\n"


@pytest.mark.parametrize("words", ["--malleability bind-only", "--class rigid", "--class moldable"])
def test_open_mpi_is_told_to_yield_only_where_the_program_follows_its_grant(tmp_path: Path, words: str) -> None:
    """A launch that does not follow takes out what one above it has set, and leaves what the user has set."""
    show = ["sh", "-c", "echo [$OMPI_MCA_mpi_yield_when_idle]"]
    below = ["sh", "-c", f"{native.run_path()} {words} -- sh -c '{show[-1]}'"]
    mine = {"OMPI_MCA_mpi_yield_when_idle": "1"}

    assert run_granted(tmp_path, "--", *show).stdout == "[1]\n"
    assert run_granted(tmp_path, *words.split(), "--", *show).stdout == "[]\n"
    assert run_granted(tmp_path, *words.split(), "--", *show, **mine).stdout == "[1]\n"
    assert run_granted(tmp_path, "--", *below).stdout == "[]\n"
    assert run_granted(tmp_path, "--", *below, **mine).stdout == "[1]\n"


@pytest.mark.parametrize("path", [None, "", "/nowhere:"])
def test_the_command_is_found_where_the_kernel_is_told_to_look(tmp_path: Path, path: str | None) -> None:
    """Without PATH that is where the system keeps its commands; an empty part of it is the folder one is in."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "command").symlink_to("/bin/sh")
    env = {**clean_environment(DROM_RUNTIME_DIR=str(tmp_path)), "PATH": path or ""}
    if path is None:
        del env["PATH"]
    command = [str(native.run_path()), "--", "sh" if path is None else "command", *PRELOAD[1:]]
    with serve_registrations(tmp_path, lambda request: request.grant(1, flags=layout.HEADER_EMULATED)):
        done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=True)

    assert (done.stdout, done.stderr) == (f"{native.preload_path()}\n", "")


@pytest.mark.parametrize("words", ["--malleability bind-only", "--class rigid"])
def test_a_launch_below_a_launch_takes_out_what_that_has_loaded(tmp_path: Path, words: str) -> None:
    """What the user loads stays, and a list of nothing else is unset."""
    show = "echo $LD_PRELOAD,$PYTHONPATH,${LD_PRELOAD-unset},${PYTHONPATH-unset}"
    command = f"{native.run_path()} {words} -- sh -c '{show}'; {native.run_path()} -- sh -c 'echo $LD_PRELOAD'"
    mine = {"LD_PRELOAD": "libc.so.6:libm.so.6", "PYTHONPATH": ":/mine"}

    bare = run_granted(tmp_path, "--", "sh", "-c", command, PYTHONPATH="")
    assert (bare.stdout, bare.stderr) == (f",,unset,unset\n{native.preload_path()}\n", "")
    assert run_granted(tmp_path, "--", "sh", "-c", command, **mine).stdout.splitlines() == [
        "libc.so.6:libm.so.6,:/mine,libc.so.6:libm.so.6,:/mine",
        f"{native.preload_path()}:libc.so.6:libm.so.6",
    ]


@pytest.mark.parametrize("malleability", ["auto", "bind-only"])
def test_a_library_of_another_launch_leaves_a_program_that_is_to_be_bound_only(
    tmp_path: Path, malleability: str
) -> None:
    """Such a library sends the agent no request."""
    program = compiled(tmp_path, "regions", "-fopenmp", text=REGION)
    with serve_registrations(tmp_path, lambda request: request.reply("unmanaged")) as server:
        loads = {"LD_PRELOAD": str(native.preload_path()), "DROM_MALLEABILITY": malleability}
        subprocess.run([program], env=clean_environment(DROM_RUNTIME_DIR=str(tmp_path), **loads), check=True)

    assert len(server.requests) == (malleability == "auto")


def test_nothing_is_loaded_without_a_grant(tmp_path: Path) -> None:
    """Without an agent the command's environment is the user's."""
    assert run("--", *PRELOAD, DROM_RUNTIME_DIR=str(tmp_path)).stdout == "\n"


def test_a_static_program_is_said_to_be_bound(tmp_path: Path) -> None:
    """A static program runs, and a sentence says why it does not adapt."""
    program = compiled(tmp_path, "alone", "-static")
    done = run_granted(tmp_path, "--", program)

    sentence = f"drom: '{program}' is linked statically; link it dynamically, or use drom.h: {OUTSIDE}\n"
    assert (done.returncode, done.stderr) == (0, sentence)


def test_a_program_of_the_address_sanitizer_is_said_to_be_bound(tmp_path: Path) -> None:
    """The sanitizer must be loaded first, so the program runs without the library."""
    program = compiled(tmp_path, "checked", "-fsanitize=address")
    done = run_granted(tmp_path, "--", program)

    said = "is built with the address sanitizer, which must be loaded first"
    assert (done.returncode, done.stderr) == (0, f"drom: '{program}' {said}: {OUTSIDE}\n")


def test_a_child_of_the_address_sanitizer_starts(tmp_path: Path) -> None:
    """A program that starts one built with it is not kept from that by what is loaded into both."""
    program = compiled(tmp_path, "checked", "-fsanitize=address")
    done = run_granted(tmp_path, "--", "sh", "-c", f"{program}; echo $? $ASAN_OPTIONS", ASAN_OPTIONS="color=never")

    assert done.stdout == "0 verify_asan_link_order=0:color=never\n", done.stderr


def test_a_child_of_musl_starts(tmp_path: Path) -> None:
    """Another C library lacks functions that glibc has: a program of it is not kept from starting."""
    program = compiled(tmp_path, "musl", compiler="musl-gcc")
    done = run_granted(tmp_path, "--", "sh", "-c", f"{program}; echo $?")

    assert done.stdout == "0\n", done.stderr


@pytest.mark.parametrize("file", [native.preload_path(), Path(_handle.__file__)], ids=lambda file: file.name)
def test_what_is_loaded_into_programs_needs_no_new_glibc(file: Path) -> None:
    """A program in a container starts where glibc is older than here, down to 2.17."""
    told = shown("-Vd", file).partition("Version needs section")[2] + shown("-d", file)
    versions = re.findall(r"Name: GLIBC_(\S+)", told)

    assert versions
    assert all(tuple(map(int, version.split("."))) <= (2, 17) for version in versions), versions
    assert re.findall(r"\[(lib.*\.so.*)\]", told) == ["libdl.so.2", "libpthread.so.0", "libc.so.6"]


def test_a_library_that_the_programs_loader_refuses_is_left_out(tmp_path: Path) -> None:
    """Where the C library of a program is too old after all, it runs without ours, and a sentence says so."""
    (tmp_path / "map").write_text("GLIBC_9.99 { global: newer; };", encoding="utf-8")
    version = f"-Wl,--version-script={tmp_path / 'map'}"
    libc = compiled(
        tmp_path, "libc.so.6", "-shared", version, "-Wl,-soname,libc.so.6", text="int newer(void) { return 0; }"
    )
    launcher = install(tmp_path / "place" / "bin", native.run_path())
    install(launcher.parent.parent / "startup", HOOK)
    library = launcher.parent.parent / "lib" / native.preload_path().name
    library.parent.mkdir()
    text = "int newer(void); int old(void) { return newer(); }"
    compiled(library.parent, library.name, "-shared", "-fPIC", "-nostdlib", "-xnone", str(libc), text=text)
    (ours,) = re.findall(r"interpreter: (\S+)\]", shown("-l", native.run_path()))
    loader = install(tmp_path / "container", Path(ours))
    program = compiled(tmp_path, "program", f"-Wl,--dynamic-linker={loader}")
    done = run_by(launcher, tmp_path, program)

    said = f"uses a C library that does not load {library.name}"
    assert (done.returncode, done.stderr) == (0, f"drom: '{program}' {said}: {OUTSIDE}\n")


def test_a_killed_launcher_leaves_no_loader_behind(tmp_path: Path) -> None:
    """A loader that is asked about a program ends when nobody reads any more what it says."""
    loader = compiled(tmp_path, "loader", "-static", text=ENDLESS.replace("PLACE", str(tmp_path)))
    program = compiled(tmp_path, "program", f"-Wl,--dynamic-linker={loader}")
    with serve_registrations(tmp_path, lambda request: request.grant(1, flags=layout.HEADER_EMULATED)):
        launcher = start_run("--runtime-dir", tmp_path, "--", program)
        file = tmp_path / "pid"
        pid = int(wait_until(lambda: file.read_text() if file.exists() else "", lambda: "the loader is not asked"))
        launcher.kill()
        launcher.communicate()

    wait_until(lambda: not lives(pid), lambda: f"{pid} lives")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a program of another user")
def test_a_setuid_program_is_said_to_be_bound(tmp_path: Path) -> None:
    """The loader ignores LD_PRELOAD in a setuid program: a sentence says so."""
    program = compiled(tmp_path, "other")
    os.chown(program, 65534, 65534)
    program.chmod(0o4755)
    done = run_granted(tmp_path, "--", program)

    said = "runs with another user's rights (setuid), for which the loader ignores LD_PRELOAD"
    assert (done.returncode, done.stderr) == (0, f"drom: '{program}' {said}: {OUTSIDE}\n")


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF\x02\x01\x01" + b"\x7f" * 200, b"#!/bin/true\n"])
def test_any_file_may_be_a_command(tmp_path: Path, content: bytes) -> None:
    """Damaged programs and scripts are looked at without harm; what becomes of them the kernel says."""
    command = tmp_path / "command"
    command.write_bytes(content)
    command.chmod(0o755)

    assert run_granted(tmp_path, "--", command).returncode in {0, 2, 126, 127}


def test_a_place_with_a_space_is_said(tmp_path: Path) -> None:
    """LD_PRELOAD cannot hold a space: the command runs without the library, and a sentence says what to do."""
    launcher = install(tmp_path / "with space" / "bin", native.run_path())
    library = install(tmp_path / "with space" / "lib", native.preload_path())
    install(tmp_path / "with space" / "startup", HOOK)
    done = run_by(launcher, tmp_path, *PRELOAD)

    assert done.stdout == "\n"
    assert done.stderr == (
        f"drom: '{library}' has a space or a colon in its path, which LD_PRELOAD cannot hold: "
        "the program is bound from outside. Install drom elsewhere.\n"
    )


@pytest.mark.parametrize(
    "place", ["lib/python3.9/site-packages", "lib64/python3.12/site-packages", "lib/python3/dist-packages"]
)
def test_the_parts_are_found_wherever_python_keeps_packages(tmp_path: Path, place: str) -> None:
    """Distributions have lib64 and dist-packages; no letter of the path is taken for a pattern."""
    root = tmp_path / "a[1]*"
    launcher = install(root / "bin", native.run_path())
    library = install(root / place / "dromlib" / "lib", native.preload_path())
    hook = install(root / place / "dromlib" / "startup", HOOK)
    (root / "lib" / "python2").mkdir(parents=True)
    done = run_by(launcher, tmp_path, "sh", "-c", "echo $LD_PRELOAD $PYTHONPATH", PYTHONPATH="")

    assert (done.stdout, done.stderr) == (f"{library} {hook.parent}\n", "")


def test_a_missing_part_is_said(tmp_path: Path) -> None:
    """What is not where drom-run is installed is named, and the command runs."""
    launcher = install(tmp_path / "bin", native.run_path())
    done = run_by(launcher, tmp_path, *PRELOAD)

    again = "bound from outside. Install drom again.\n"
    assert done.stdout == "\n"
    assert done.stderr == (
        f"drom: startup/sitecustomize.py is not where drom-run is installed: Python programs are {again}"
        f"drom: libdrom-preload.so is not where drom-run is installed: the program is {again}"
    )


def test_a_bad_malleability_is_one_sentence(tmp_path: Path) -> None:
    """A value that is none is wrong usage, as an option and in the environment."""
    said = "takes auto, next-region or bind-only, not 'soft'.\n"
    option = run("--malleability", "soft", "true", DROM_RUNTIME_DIR=str(tmp_path))
    variable = run("true", DROM_RUNTIME_DIR=str(tmp_path), DROM_MALLEABILITY="soft")

    assert (option.returncode, option.stderr) == (2, f"drom: --malleability {said}")
    assert (variable.returncode, variable.stderr) == (2, f"drom: DROM_MALLEABILITY {said}")


@pytest.mark.parametrize(
    ("name", "option"),
    [("DROM_MALLEABILITY", "--malleability=bind-only"), ("DROM_OPENMP_RUNTIME", "--openmp-runtime=libgomp")],
)
def test_a_variable_counts_where_no_option_is_given(tmp_path: Path, name: str, option: str) -> None:
    """What it says is not looked at beside an option, and an empty one says nothing."""
    beside = run(option, "true", DROM_RUNTIME_DIR=str(tmp_path), **{name: "soft"})
    empty = run("true", DROM_RUNTIME_DIR=str(tmp_path), **{name: ""})

    assert (beside.returncode, empty.returncode) == (0, 0)


ASKS = """
#include <omp.h>
#include <stdlib.h>
int main(void) {
#pragma omp parallel
    if (omp_get_thread_num() == 0)
        system("grep -q /libomp /proc/$PPID/maps && echo libomp; echo $LD_PRELOAD");
    return 0;
}
"""
TEAMS = """
int main(void) {
#pragma omp target teams num_teams(2)
    ;
    return 0;
}
"""


def openmp_program(folder: Path, text: str) -> Path:
    """Return a program built for GNU's OpenMP; skip where LLVM's runtime is missing."""
    if not has_libomp():
        pytest.skip("needs LLVM's OpenMP runtime (Debian: libomp-dev)")
    source, target = folder / "source.c", folder / "program"
    source.write_text(text, encoding="utf-8")
    subprocess.run(["gcc", "-fopenmp", "-w", source, "-o", target], check=True)
    return target


def test_a_program_of_gcc_runs_on_llvms_runtime(tmp_path: Path) -> None:
    """A program of gcc uses LLVM's runtime where it is installed, unless told otherwise; its children do not."""
    program = openmp_program(tmp_path, ASKS)
    mine = native.preload_path()

    assert run_granted(tmp_path, "--", program).stdout == f"libomp\n{mine}\n"
    assert run_granted(tmp_path, "--openmp-runtime", "libgomp", "--", program).stdout == f"{mine}\n"
    assert run_granted(tmp_path, "--", program, LD_PRELOAD="libc.so.6").stdout == f"libomp\n{mine}:libc.so.6\n"
    assert run_granted(tmp_path, "--", program, DROM_OPENMP_RUNTIME="libgomp").stdout == f"{mine}\n"


def test_a_launcher_that_ignores_its_children_still_asks_the_loader(tmp_path: Path) -> None:
    """And the program finds them ignored as before."""
    program = openmp_program(tmp_path, ASKS)
    command = ("env", "--ignore-signal=CHLD", native.run_path(), "--")
    with serve_registrations(tmp_path, lambda request: request.grant(1, flags=layout.HEADER_EMULATED)):
        words = [(program,), ("grep", "SigIgn", "/proc/self/status")]
        env = clean_environment(DROM_RUNTIME_DIR=str(tmp_path))
        said = [subprocess.check_output([*command, *word], text=True, env=env) for word in words]

    assert said[0] == f"libomp\n{native.preload_path()}\n"
    assert int(said[1].split()[1], 16) >> (signal.SIGCHLD - 1) & 1


TOOL = """
#include <dlfcn.h>
#include <stdio.h>
void GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags) {
    void (*next)(void (*)(void *), void *, unsigned, unsigned) = dlsym(RTLD_NEXT, "GOMP_parallel");
    puts("a region");
    next(body, data, threads, flags);
}
"""


@pytest.mark.parametrize("runtime", ["libomp", "libgomp"])
def test_a_tool_of_the_users_sees_regions(tmp_path: Path, runtime: str) -> None:
    """One that stands in front of GNU's runtime stands in front of LLVM's."""
    program = openmp_program(tmp_path, REGION)
    tool = compiled(tmp_path, "tool.so", "-shared", "-fPIC", "-D_GNU_SOURCE", text=TOOL)
    done = run_granted(tmp_path, "--openmp-runtime", runtime, "--", program, LD_PRELOAD=str(tool))

    assert (done.returncode, done.stdout) == (0, "a region\n"), done.stderr


SCHEDULE = """
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    omp_sched_t kind;
    int chunk, child = fork();
    if (child)
        waitpid(child, NULL, 0);
    omp_get_schedule(&kind, &chunk);
    printf("%d %d ", (int)kind, chunk);
    fflush(stdout);
    return child && system("echo $OMP_SCHEDULE");
}
"""


@pytest.mark.parametrize("runtime", ["libomp", "libgomp"])
def test_loops_are_scheduled_as_on_gnus_runtime(tmp_path: Path, runtime: str) -> None:
    """Those of schedule(runtime) are dynamic where the user says nothing; what the program starts is not told."""
    program = openmp_program(tmp_path, SCHEDULE)
    words = ("--openmp-runtime", runtime, "--", program)

    assert run_granted(tmp_path, *words).stdout == "2 1 2 1 \n"
    assert run_granted(tmp_path, *words, OMP_SCHEDULE="dynamic,4").stdout == "2 4 2 4 dynamic,4\n"


NESTED = """
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    omp_set_nested(0);
    printf("%d\\n", omp_get_max_threads());
    fflush(stdout);
    return system("echo $KMP_WARNINGS");
}
"""


def test_nobody_hears_of_llvms_runtime(tmp_path: Path) -> None:
    """Neither that it has a new name for a call, nor that drom asks for more threads than the user's limit allows."""
    done = run_granted(tmp_path, "--", openmp_program(tmp_path, NESTED), OMP_THREAD_LIMIT="1")

    assert done.stdout == "1\n\n"
    assert "OMP:" not in done.stderr


FORKS = """
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
#pragma omp parallel
    ;
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    printf("%d %d\\n", getpid(), child);
    fflush(stdout);
    return raise(SIGKILL);
}
"""


def test_a_runtime_that_was_chosen_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither that of a program that is killed, nor that of a child that ends without a word."""
    done = run_granted(tmp_path, "--", openmp_program(tmp_path, FORKS))
    notes = [Path(f"/dev/shm/__KMP_REGISTERED_LIB_{pid}_{os.getuid()}") for pid in done.stdout.split()]

    assert (done.returncode, [note.exists() for note in notes]) == (-signal.SIGKILL, [False, False])


TAKES_AWAY = """
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
    const char *what = argv[1];
    int threads = 0, tasks = -2, status = 1;
    DIR *folder = opendir("/proc/self/task");
    while (readdir(folder))
        tasks++;
    closedir(folder);
    if (strcmp(what, "number") == 0)
        setenv("OMP_NUM_THREADS", "5", 1);
    if (strcmp(what, "environment") == 0)
        clearenv();
    if (strcmp(what, "descriptors") == 0)
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){3, 3});
    if (strcmp(what, "folders") == 0 && chroot("/sys") < 0)
        return 1;
    if (strcmp(what, "descriptors") != 0) {
        pid_t child = fork();
        if (child > 0)
            return waitpid(child, &status, 0) < 0 || status != 0;
    }
#pragma omp parallel reduction(+ : threads)
    threads++;
    printf("%d before and %d in a region\\n", tasks, threads);
    return 0;
}
"""


@pytest.mark.parametrize("what", ["number", "environment", "descriptors", "folders"])
def test_a_runtime_that_was_chosen_needs_no_more_than_gnus(tmp_path: Path, what: str) -> None:
    """A program may take away what there was at its start, and set what is read then, before its first region."""
    if what == "folders" and os.geteuid() != 0:
        pytest.skip("needs root to change the root folder")
    program = openmp_program(tmp_path, TAKES_AWAY)
    done = run_granted(tmp_path, "--", program, what, OMP_NUM_THREADS="2")

    assert (done.returncode, done.stdout) == (0, "1 before and 2 in a region\n"), done.stderr


LOOKS_FOR_ITS_NOTE = """
#include <fcntl.h>
#include <omp.h>
#include <stdio.h>
#include <sys/mman.h>
int main(void) {
    int threads = omp_get_max_threads(), file = shm_open("/__KMP_REGISTERED_LIB_1_0", O_RDONLY, 0666);
    printf("%d %d\\n", threads, file >= 0 && mmap(NULL, 1024, PROT_READ, MAP_SHARED, file, 0) == MAP_FAILED);
    return 0;
}
"""


def test_a_runtime_that_was_chosen_finds_an_empty_note(tmp_path: Path) -> None:
    """LLVM 16 looks for what it has left in /dev/shm when a program ends, and aborts where it cannot open it."""
    done = run_granted(tmp_path, "--", openmp_program(tmp_path, LOOKS_FOR_ITS_NOTE), OMP_NUM_THREADS="2")

    assert (done.returncode, done.stdout) == (0, "2 1\n"), done.stderr


DENIES = """
#include <sys/syscall.h>
#include <unistd.h>
#include "refuse.h"
int main(int argc, char **argv) {
    return refuse_call(SYS_sched_setaffinity) < 0 ? 1 : execvp(argv[1], argv + 1);
}
"""


@pytest.mark.parametrize("what", ["files", "threads"])
def test_a_runtime_that_could_not_start_is_not_used(tmp_path: Path, what: str) -> None:
    """Where files may not grow, or threads not be bound, a program keeps GNU's, and a sentence says so."""
    limits = {
        "files": (("prlimit", "--fsize=0", "--"), "files may not have 4096 bytes (ulimit -f)"),
        "threads": (
            (compiled(tmp_path, "denies", f"-I{native_build.SOURCES}", text=DENIES),),
            "threads may not be bound (sched_setaffinity)",
        ),
    }
    (before, why), program = limits[what], openmp_program(tmp_path, REGION)
    with serve_registrations(tmp_path, lambda request: request.grant(1, flags=layout.HEADER_EMULATED)):
        command = [*before, native.run_path(), "--runtime-dir", tmp_path, "--", program]
        done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)

    said = f"drom: libomp.so.5 is not used where {why}: '{program}' keeps GNU's OpenMP runtime."
    assert (done.returncode, done.stderr.splitlines()[0]) == (0, said)


def test_a_runtime_that_fails_in_children_is_not_used(tmp_path: Path) -> None:
    """LLVM 19 aborts in each process forked off where loops are guided."""
    program = openmp_program(tmp_path, SCHEDULE)
    done = run_granted(tmp_path, "--", program, OMP_SCHEDULE="Guided,4")

    why = f"libomp.so.5 is not used where OMP_SCHEDULE is guided: '{program}' keeps GNU's OpenMP runtime."
    assert (done.stdout, done.stderr.splitlines()[0]) == ("3 4 3 4 Guided,4\n", f"drom: {why}")


def test_a_runtime_without_a_tool_is_not_used(tmp_path: Path) -> None:
    """Such a runtime reports no regions; where a program has no other runtime, a sentence says so."""
    program = openmp_program(tmp_path, REGION)
    gnus = run_granted(tmp_path, "--", program, OMP_TOOL="disabled").stderr
    llvms = run_granted(tmp_path, "--", program, OMP_TOOL="DISABLED", LD_PRELOAD="libomp.so.5").stderr

    why = f"libomp.so.5 is not used where OMP_TOOL is disabled: '{program}' keeps GNU's OpenMP runtime."
    assert gnus.splitlines()[0] == f"drom: {why}"
    assert llvms == f"drom: OMP_TOOL is disabled: regions of '{program}' are no malleability points.\n"


UNSOUND = {
    "dependences": """
#include <stdio.h>
int a[9];
int main(void) {
#pragma omp parallel for ordered(1) num_threads(1)
    for (int i = 1; i < 9; i++) {
#pragma omp ordered depend(sink : i - 1)
        a[i] = a[i - 1] + i;
#pragma omp ordered depend(source)
    }
    return printf("%d\\n", a[8]) != 3;
}
""",
    "scan": """
#include <stdio.h>
int main(void) {
    int sum = 0, sums[9];
#pragma omp parallel for reduction(inscan, + : sum)
    for (int i = 0; i < 9; i++) {
        sum += i;
#pragma omp scan inclusive(sum)
        sums[i] = sum;
    }
    return printf("%d\\n", sums[8]) != 3;
}
""",
    "cancel": """
#include <stdio.h>
int main(void) {
    for (int i = 0; i < 300; i++) {
#pragma omp parallel sections num_threads(2)
        {
#pragma omp section
            {
#pragma omp cancel sections
            }
#pragma omp section
            ;
        }
    }
    return printf("%d\\n", 36) != 3;
}
""",
    "teams": """
#include <stdio.h>
int main(void) {
    int sum = 0;
#pragma omp teams distribute parallel for reduction(+ : sum)
    for (int i = 0; i < 9; i++)
        sum += i;
    return printf("%d\\n", sum) != 3;
}
""",
    "taskloop": """
#include <stdio.h>
int main(void) {
    int sum = 0;
#pragma omp parallel
#pragma omp single
#pragma omp taskloop reduction(+ : sum)
    for (int i = 8; i > 0; i--)
        sum += i;
    return printf("%d\\n", sum) != 3;
}
""",
    "task": """
#include <stdio.h>
int main(void) {
    int found = 0, given[9] = {[8] = 36};
#pragma omp parallel
#pragma omp single
#pragma omp task if (0) firstprivate(given) shared(found)
    found = given[8];
    return printf("%d\\n", found) != 3;
}
""",
    "unsigned long": """
#include <stdio.h>
unsigned long from = 8, to = 0;
int main(void) {
    int sum = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : sum)
    for (unsigned long i = from; i > to; i--)
        sum += i;
    return printf("%d\\n", sum) != 3;
}
""",
    "conditional": """
#include <stdio.h>
int main(void) {
    int last = 0;
#pragma omp parallel sections lastprivate(conditional : last)
    {
#pragma omp section
        last = 36;
#pragma omp section
        ;
    }
    return printf("%d\\n", last) != 3;
}
""",
}
"""Programs that are right on GNU's runtime, by what LLVM's makes them, or such ones, fail in."""


@pytest.mark.parametrize("construct", UNSOUND)
def test_a_runtime_that_would_fail_is_not_used(tmp_path: Path, construct: str) -> None:
    """A program keeps the runtime on which it is right, and a sentence says why."""
    program = openmp_program(tmp_path, UNSOUND[construct])
    done = run_granted(tmp_path, "--", program, OMP_CANCELLATION="true")

    said = rf"drom: libomp\.so\.5 may fail in GOMP_\w+, which '{program}' needs: it keeps GNU's OpenMP runtime\."
    assert (done.returncode, done.stdout) == (0, "36\n")
    assert re.fullmatch(said, done.stderr.splitlines()[0])


WHICH = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
    char line[4096];
    int has_llvms = 0;
    volatile int never = 0;
#pragma omp parallel
    ;
#ifdef TASK
    if (never)
#pragma omp task
        never = 1;
#endif
    if (argc > 1 && !dlopen(argv[1], RTLD_NOW))
        return puts(dlerror());
    for (FILE *maps = fopen("/proc/self/maps", "r"); fgets(line, sizeof line, maps);)
        has_llvms |= strstr(line, "libomp") != NULL;
    puts(has_llvms ? "LLVM" : "GNU");
    return 0;
}
"""
"""Says on which runtime it is."""


def test_llvms_runtime_can_be_insisted_on(tmp_path: Path) -> None:
    """LLVM's runtime is then used even where it may fail."""
    program = openmp_program(tmp_path, f"#define TASK\n{WHICH}")

    assert run_granted(tmp_path, "--", program).stdout == "GNU\n"
    insisted = run_granted(tmp_path, "--openmp-runtime", "libomp", "--", program)
    assert (insisted.stdout, "keeps" in insisted.stderr) == ("LLVM\n", False)


@pytest.mark.parametrize("schedule", ["static", "dynamic", "guided", "runtime"])
def test_a_runtime_that_formats_messages_for_each_chunk_is_not_used(tmp_path: Path, schedule: str) -> None:
    """A debug build of LLVM's runtime, such as Debian's, takes half a microsecond for each chunk of a loop."""
    is_debug = hasattr(ctypes.CDLL("libomp.so.5"), "kmp_a_debug")
    loop = f"#pragma omp parallel for schedule({schedule})\nfor (int i = 0; i < 9; i++) never |= i < 0;"
    program = openmp_program(tmp_path, WHICH.replace("#ifdef TASK", f"{loop}\n#ifdef TASK"))

    done = run_granted(tmp_path, "--", program)
    keeps = is_debug and schedule in ("dynamic", "runtime")
    assert (done.stdout, "keeps" in done.stderr) == ("GNU\n" if keeps else "LLVM\n", False)
    assert run_granted(tmp_path, "--openmp-runtime", "libomp", "--", program).stdout == "LLVM\n"


def test_a_library_that_a_program_opens_is_not_looked_at(tmp_path: Path) -> None:
    """What LLVM's runtime may fail in is not known before it is opened; GNU's can be asked for."""
    library = compiled(tmp_path, "own.so", "-shared", "-fPIC", "-fopenmp", text=UNSOUND["task"])
    program = openmp_program(tmp_path, WHICH)

    opened = run_granted(tmp_path, "--", program, library)
    assert (opened.stdout, "keeps" in opened.stderr) == ("LLVM\n", False)
    assert run_granted(tmp_path, "--openmp-runtime", "libgomp", "--", program, library).stdout == "GNU\n"


def test_a_library_of_the_users_is_looked_at_too(tmp_path: Path) -> None:
    """What he loads into a program may need what LLVM's runtime fails in."""
    program = openmp_program(tmp_path, REGION)
    library = compiled(tmp_path, "own.so", "-shared", "-fPIC", "-fopenmp", text=UNSOUND["task"])
    done = run_granted(tmp_path, "--", program, LD_PRELOAD=str(library))

    assert re.match(r"drom: libomp\.so\.5 may fail in GOMP_task\w*, which", done.stderr), done.stderr


@pytest.mark.parametrize("choice", ["auto", "libomp"])
def test_a_runtime_that_lacks_a_symbol_is_not_used(tmp_path: Path, choice: str) -> None:
    """A program that needs more than LLVM's runtime has keeps libgomp, and a sentence names what is missing."""
    program = openmp_program(tmp_path, TEAMS)
    done = run_granted(tmp_path, "--openmp-runtime", choice, "--", program)

    said = rf"drom: libomp\.so\.5 lacks GOMP_\w+, which '{program}' needs: it keeps GNU's OpenMP runtime\.\n"
    assert re.fullmatch(said, done.stderr), done.stderr
    assert done.returncode == 0
