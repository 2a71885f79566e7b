# SPDX-License-Identifier: Apache-2.0
"""The native command ``drom``: which Python it starts, and what of the user's environment that Python is spared."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.agents import SECONDS, environment
from tests.support.packages import copy_packages

DROM = Path(sys.executable).with_name("drom")
HOMES = sorted(Path("~/.pyenv/versions").expanduser().glob("3.*")) or [Path("/usr")]
COMMANDS = {
    "run": ["run", "--runtime-dir", "{none}", "--", "sh", "-c", "echo ran; exit 3"],
    "ps": ["ps", "--runtime-dir", "{none}"],
    "submit": ["submit", "--", "true"],
    "topology": ["topology", "--emulate", "pack:2 core:2", "--json"],
    "agent": ["agent", "--emulate", "core:1", "--runtime-dir", "/dev/null"],
    "version": ["--version"],
    "wrong": ["ps", "--nonsense"],
}


@pytest.fixture
def poisoned(tmp_path: Path) -> Path:
    """Return a folder of modules with the names of ours and of Python's that end whoever imports them."""
    folder = tmp_path / "poisoned"
    (folder / "scheduler").mkdir(parents=True)
    names = ("agent", "dromlib", "scheduler/__init__", "typer", "numba", "runpy", "sitecustomize", "usercustomize")
    for name in names:
        (folder / f"{name}.py").write_text("raise SystemExit('poisoned')", encoding="utf-8")
    return folder


def settings(poisoned: Path) -> dict[str, dict[str, str]]:
    """Return environments of Python users by what they are for."""
    modules = {
        "PYTHONPATH": str(poisoned),
        "PYTHONSTARTUP": str(poisoned / "agent.py"),
        "PYTHONUSERBASE": str(poisoned),
    }
    ways = {"PYTHONINSPECT": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "error", "PYTHONSAFEPATH": "1"}
    told = {"PYTHONVERBOSE": "1", "PYTHONPROFILEIMPORTTIME": "1", "PYTHONOPTIMIZE": "2", "PYTHONHASHSEED": "x"}
    streams = {"PYTHONIOENCODING": "utf-16", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "warn", "PYTHONDEVMODE": "1"}
    return {
        "modules": modules | ways | told | streams,
        "home": {"PYTHONHOME": str(HOMES[0]), "PYTHONPLATLIBDIR": "nowhere"},
        "nowhere": {"PYTHONHOME": "/nowhere", "PYTHONEXECUTABLE": "/nowhere/python"},
    }


def outcome(command: str, folder: Path, **extra: str) -> tuple[int, str, str]:
    """Return the status, stdout and stderr of a command run in a folder."""
    words = [str(DROM), *(word.format(none=folder.parent / "none") for word in COMMANDS[command])]
    env = environment(NUMBA_DISABLE_JIT="1", DROM_QUEUE=str(folder.parent / "none"), **extra)
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_users_python_settings_change_nothing_of_drom(poisoned: Path, command: str) -> None:
    """Modules in the current folder and on PYTHONPATH, another Python's home and all else give the same answers."""
    elsewhere = poisoned.parent / "elsewhere"
    elsewhere.mkdir()
    plain = outcome(command, elsewhere)

    assert "Traceback" not in plain[2]
    for name, variables in settings(poisoned).items():
        assert outcome(command, poisoned, **variables) == plain, name


def test_programs_find_these_settings_unchanged(poisoned: Path) -> None:
    """`drom run` passes every variable of Python on."""
    for variables in settings(poisoned).values():
        words = [str(DROM), "run", "--runtime-dir", "/nowhere", "--", "env", "-0"]
        done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=SECONDS, check=True)

        assert done.stdout.split("\0")[:-1] == [f"{name}={value}" for name, value in variables.items()]


@pytest.fixture
def moved(tmp_path: Path) -> Path:
    """Return a folder with a copy of the front end, and an interpreter that prints its arguments one by one."""
    folder = tmp_path / "with space" / "bin"
    folder.mkdir(parents=True)
    shutil.copy(DROM, folder)
    python = folder / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n', encoding="ascii")
    python.chmod(0o755)
    return folder


def drom_of(folder: Path, *words: str, first: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of the front end beside a script that begins with these lines."""
    (folder / "drom-cli").write_text(first, encoding="utf-8")
    return subprocess.run([folder / "drom", *words], capture_output=True, text=True, timeout=SECONDS, check=False)


@pytest.mark.parametrize(
    "first",
    ["#!{python}\n", "#! {python} \r\n", "#!{python}", "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"],
)
def test_the_interpreter_is_the_one_that_drom_is_installed_for(moved: Path, first: str) -> None:
    """Installers name it in the first line of a script, or in its second where the first cannot hold it."""
    python = moved / "python"
    done = drom_of(moved, "ps", "", "--json", "a b", first=first.format(python=python))

    assert done.stderr == ""
    assert done.stdout.splitlines() == [str(python), "-I", str(moved / "drom-cli"), "ps", "", "--json", "a b"]


def test_a_link_to_drom_finds_its_installation(moved: Path, tmp_path: Path) -> None:
    """An administrator may link it from anywhere, under any name."""
    (tmp_path / "link").symlink_to(moved / "drom")
    (moved / "drom-cli").write_text(f"#!{moved}/python\n", encoding="ascii")
    done = subprocess.run([tmp_path / "link", "ps"], capture_output=True, text=True, timeout=SECONDS, check=True)

    assert done.stdout.splitlines() == [str(moved / "python"), "-I", str(moved / "drom-cli"), "ps"]


@pytest.mark.parametrize(
    ("first", "sentence"),
    [
        (
            "#!/nowhere/python\n",
            "cannot run /nowhere/python, the Python that drom is installed for (No such file or dir",
        ),
        ("#!/etc/passwd\n", "cannot run /etc/passwd, the Python that drom is installed for (Permission denied): inst"),
        ("#!python\n", "{script} cannot be read or names no Python: install drom again.\n"),
        ("", "{script} cannot be read or names no Python: install drom again.\n"),
        ("#!", "{script} cannot be read or names no Python: install drom again.\n"),
        ("#!/" + "x" * 5000, "{script} cannot be read or names no Python: install drom again.\n"),
        ("import sys\n", "{script} cannot be read or names no Python: install drom again.\n"),
    ],
)
def test_an_unusable_python_is_one_sentence(moved: Path, first: str, sentence: str) -> None:
    """The sentence names the file and what to do; `drom run` needs no Python."""
    done = drom_of(moved, "ps", first=first)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("drom: " + sentence.format(script=moved / "drom-cli"))
    assert done.stderr.count("\n") == 1
    (moved / "drom-cli").unlink()
    words = [str(moved / "drom"), "run", "--runtime-dir", "/nowhere", "true"]
    assert subprocess.run(words, capture_output=True, timeout=SECONDS, check=False).returncode == 0


def test_drom_starts_with_no_arguments_at_all() -> None:
    """An empty list of arguments, without even a name, is that of `drom` alone."""
    code = "import ctypes, os, sys; ctypes.CDLL(None).execv(os.fsencode(sys.argv[1]), (ctypes.c_char_p * 1)())"
    command = [sys.executable, "-c", code, str(DROM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)

    assert (done.returncode, "The node" in done.stdout) == (0, True)


def test_a_missing_module_is_one_sentence(tmp_path: Path) -> None:
    """An interpreter without what drom needs is named, with the module."""
    python = tmp_path / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], timeout=SECONDS, check=True)
    script = DROM.with_name("drom-cli").read_text(encoding="utf-8").partition("\n")[2]
    shutil.copy(DROM, tmp_path / "bin")
    done = drom_of(tmp_path / "bin", "ps", first=f"#!{python}\n{script}")
    assert done.stderr == f"drom: drom is not installed for {python}: install it again.\n"

    copy_packages(next((tmp_path / "lib").glob("python*/site-packages")))
    done = drom_of(tmp_path / "bin", "ps", first=f"#!{python}\n{script}")
    assert done.returncode == 1
    assert done.stderr == f"drom: typer, which drom needs, is not installed for {python}: install drom again.\n"


def test_jobs_and_programs_have_the_callers_locale() -> None:
    """Python replaces LC_CTYPE in the C locale for itself; what drom passes on is what it was given."""
    code = "import os, sys; from drom import __main__ as m; m._restore_locale(); print(os.environ.get('LC_CTYPE'))"
    for given in ({}, {"LC_CTYPE": "C"}, {"LC_CTYPE": "POSIX"}):
        env = {"LANG": "C", "PATH": os.environ["PATH"], **given}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=True)

        assert done.stdout == f"{given.get('LC_CTYPE')}\n"
