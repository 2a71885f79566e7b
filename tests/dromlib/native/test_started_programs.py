"""What programs start that drom-run has launched, where its library cannot be loaded: nobody hears of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dromlib import native
from tests.dromlib.native.test_preload import run_granted

LOADER_32 = Path("/lib/ld-linux.so.2")
NARROW = """
__attribute__((used)) void _start(void)
{
    __asm__ volatile("int $0x80" : : "a"(1), "b"(7));
}
"""
"""A 32-bit program that ends with 7 and needs no library."""
WAYS = {
    "shell": ["sh", "-c", "$0; exit $?"],
    "bash": ["bash", "-c", "$0; exit $?"],
    "env": ["env"],
    "name": ["sh", "-c", "PATH=$(dirname $0):$PATH; env $(basename $0); exit $?"],
    "xargs": ["sh", "-c", "echo | xargs $0 || exit 7"],
    "subprocess": [sys.executable, "-c", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"],
    "spawn": [
        sys.executable,
        "-c",
        "import os, sys; p = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ); os._exit(os.waitpid(p, 0)[1] >> 8)",
    ],
    "exec": [sys.executable, "-c", "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"],
}
"""Ways to start a program, whose path comes behind these words."""


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 32-bit program that has the loader's help."""
    if not LOADER_32.exists() or not shutil.which("gcc"):
        pytest.skip(f"needs gcc and {LOADER_32} (Debian: libc6-i386)")
    program = tmp_path_factory.mktemp("narrow") / "narrow"
    flags = ["-m32", "-nostdlib", "-fPIE", "-pie", f"-Wl,--dynamic-linker={LOADER_32}"]
    done = subprocess.run(["gcc", "-xc", "-", *flags, "-o", program], input=NARROW, text=True, check=False)
    if done.returncode:
        pytest.skip("gcc makes no 32-bit programs here")
    plain = subprocess.run([program], env={"LD_PRELOAD": str(native.preload_path())}, capture_output=True, check=False)
    assert b"cannot be preloaded" in plain.stderr
    return program


@pytest.mark.parametrize("way", WAYS)
def test_a_32_bit_program_starts_without_a_word(tmp_path: Path, narrow: Path, way: str) -> None:
    """However it is started by what is managed."""
    done = run_granted(tmp_path, "--", *WAYS[way], narrow)
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def script(path: Path, *lines: str) -> Path:
    """Return a new script of these lines."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("line", ["#!{}", "#! {}", "#!\t{} -a  b", "#!{}\t"])
@pytest.mark.parametrize("scripts", [1, 5])
def test_a_script_of_a_32_bit_interpreter_starts_without_a_word(
    tmp_path: Path, narrow: Path, line: str, scripts: int
) -> None:
    """The interpreter line counts as the kernel reads it, through as many scripts as the kernel follows."""
    program = narrow
    for i in range(scripts):
        program = script(tmp_path / f"script{i}", line.format(program))
    for words in (["sh", "-c", "$0; exit $?"], WAYS["subprocess"]):
        done = run_granted(tmp_path, "--", *words, program)
        assert (done.returncode, done.stdout, done.stderr) == (7, "", ""), words

    done = run_granted(tmp_path, "--", program)
    reason = "is for another processor or word size: it is bound from outside."
    assert (done.returncode, done.stderr) == (7, f"drom: '{program}' is run by '{narrow}', which {reason}\n")


@pytest.mark.parametrize("line", ["", "#!", "#! \t", "# !{}", "#!/bin/sh", "#!/" + 260 * "/" + "{}"])
def test_other_scripts_find_the_library(tmp_path: Path, narrow: Path, line: str) -> None:
    """A first line counts that names a 32-bit interpreter within the bytes that the kernel reads; no other one does."""
    program = script(tmp_path / "script", line.format(narrow), 'test "$LD_PRELOAD" && echo found')
    done = run_granted(tmp_path, "--", "sh", "-c", f"{program}; exit $?")
    assert (done.returncode, done.stdout, done.stderr) == (0, "found\n", "")


def test_what_the_user_loads_stays(tmp_path: Path, narrow: Path) -> None:
    """A library of the user's is named to a 32-bit program as ever."""
    done = run_granted(tmp_path, "--", "env", narrow, LD_PRELOAD="/nowhere/users.so")
    assert "users.so" in done.stderr
    assert native.preload_path().name not in done.stderr


def test_programs_of_this_machine_still_find_the_library(tmp_path: Path) -> None:
    """What can load it does."""
    show = "grep -c libdrom-preload /proc/self/maps; printenv LD_PRELOAD"
    for words in (["sh", "-c", show], ["env", "bash", "-c", show], [*WAYS["subprocess"], "sh", "-c", show]):
        count, preload = run_granted(tmp_path, "--", *words).stdout.split()
        assert (int(count) > 0, preload) == (True, str(native.preload_path())), words


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for another root directory")
def test_a_program_in_another_root_starts_without_a_word(tmp_path: Path) -> None:
    """Where the library's file is not found its name is not passed on, there and below."""
    root = tmp_path / "root"
    shell = shutil.which("sh")
    assert shell
    needed = subprocess.run(["ldd", shell], capture_output=True, text=True, check=True).stdout
    for name in [shell, *re.findall(r"(/\S+) \(0x", needed)]:
        place = root / name.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, place)
    done = run_granted(tmp_path, "--", "chroot", root, shell, "-c", f"{shell} -c 'echo [$LD_PRELOAD]'")
    assert (done.stdout, done.stderr) == ("[]\n", "")
