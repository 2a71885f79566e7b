# SPDX-License-Identifier: Apache-2.0
"""The wheel, installed beside packages and below a user's own modules that are called as parts of drom are."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import sysconfig
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.support.agents import SECONDS, environment
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

OTHERS = {"agent": "agent/__init__.py", "scheduler": "scheduler/__init__.py", "workloads": "workloads.py"}
"""Packages of other people, and what they install."""

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


def run(*words: str | Path) -> None:
    """Run a command that is to succeed."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def other_wheel(folder: Path, name: str, path: str) -> Path:
    """Make the wheel of another package."""
    wheel, info = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(path, f"OF = {name!r}\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", f"{path},,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source distribution of this checkout, and the wheel from that."""
    folder = tmp_path_factory.mktemp("wheel")
    words: list[str | Path] = [sys.executable, "-m", "build", "--outdir", folder, ROOT]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode and "No matching distribution found" in done.stdout + done.stderr:
        pytest.skip("there is no package index with what builds wheels here.")
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("drom-*.whl"))


def pip(folder: Path, command: str, *words: str | Path) -> None:
    """Run a command of this environment's pip for another environment."""
    run(sys.executable, "-m", "pip", "--python", folder / "bin" / "python", command, "--quiet", *words)


def install(wheel: Path, folder: Path) -> Path:
    """Install drom into an environment of its own, with the others; return the folder of its packages."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    others = [other_wheel(folder, name, path) for name, path in OTHERS.items()]
    pip(folder, "install", "--no-deps", "--no-index", wheel, *others)
    packages = next((folder / "lib").glob("python*/site-packages"))
    # What drom depends on is that of this environment; its .pth files, that of this checkout among them, are not read.
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n", encoding="utf-8")
    return packages


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an environment with drom and the others."""
    folder = tmp_path_factory.mktemp("installed")
    install(wheel, folder)
    return folder


def test_the_wheel_installs_drom_and_dromlib(wheel: Path) -> None:
    """No other name comes into anybody's site-packages."""
    with zipfile.ZipFile(wheel) as file:
        tops = {name.split("/")[0] for name in file.namelist()}

    version = next(name for name in tops if name.endswith(".dist-info")).removesuffix(".dist-info")
    assert tops == {"drom", "dromlib", f"{version}.dist-info", f"{version}.data"}


def test_its_programs_and_libraries_need_glibc_alone(wheel: Path, tmp_path: Path) -> None:
    """Nothing compiled in the wheel depends on an MPI library, an OpenMP runtime or another part of the builder."""
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path)
    compiled = [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
    told = {
        path.name: subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
        for path in compiled
    }
    needed = {name: set(re.findall(r"\(NEEDED\).*\[(.*)\]", text)) for name, text in told.items()}

    assert {"drom", "drom-run", "drom-step", "libdrom.so", "libdrom-preload.so", "_handle.abi3.so"} <= needed.keys()
    assert [name for name, names in needed.items() if not names <= {"libc.so.6", "libdl.so.2", "libpthread.so.0"}] == []


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_old_systems_can_install_it(wheel: Path) -> None:
    """The tool auditwheel finds no function newer than glibc 2.28, the oldest that is still common."""
    words: list[str | Path] = [sys.executable, "-m", "auditwheel", "show", wheel]
    told = subprocess.run(words, capture_output=True, text=True, check=True, timeout=SECONDS).stdout
    tags = re.findall(r"following platform tag:\s+\"manylinux_2_(\d+)_", told)

    assert len(tags) == 1, told
    assert int(tags[0]) <= 28, told


def test_dromlib_needs_no_other_package(installed: Path, tmp_path: Path) -> None:
    """A program imports dromlib and attaches where drom's dependencies are missing."""
    packages = next((installed / "lib").glob("python*/site-packages"))
    program = (
        f"import sys; sys.path.insert(0, {str(packages)!r}); import dromlib\n"
        "with dromlib.attach() as session: session.poll()\n"
        "print(dromlib.__version__, sorted({'numba', 'numpy', 'psutil', 'typer', 'zmq'} & sys.modules.keys()))\n"
        "try: import zmq\n"
        "except ModuleNotFoundError: print('alone')\n"
    )
    env = environment(DROM_RUNTIME_DIR=str(tmp_path / "none"))
    words: list[str | Path] = [installed / "bin" / "python", "-I", "-S", "-c", program]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=SECONDS)

    version = wheel_version(packages)
    assert (done.stdout, done.stderr) == (f"{version} []\nalone\n", "")


def wheel_version(packages: Path) -> str:
    """Return the version in the name of the installed metadata."""
    return next(packages.glob("drom-*.dist-info")).name.removeprefix("drom-").removesuffix(".dist-info")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--version"], "drom "),
        (["--help"], "Scheduling"),
        (["topology", "--emulate", "core:2"], "1 package"),
        (["config", "check"], "ok"),
        (["workload", "--help"], "convert"),
        (["simulate", "--help"], "--policy"),
        (["flags"], "-ldrom"),
        (["run", "--", "echo", "ran"], "ran"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_every_name_is_its_owners(installed: Path, tmp_path: Path, words: list[str], shown: str) -> None:
    """Commands work beside packages of these names, and where a user's own modules of these names are on PYTHONPATH."""
    (tmp_path / "scheduler").mkdir()
    for name in ("agent.py", "scheduler/__init__.py", "workloads.py", "drom.py"):
        (tmp_path / name).write_text("raise SystemExit('the user\\'s own')", encoding="utf-8")
    env = environment(PYTHONPATH=str(tmp_path), DROM_RUNTIME_DIR=str(tmp_path / "none"), HOME=str(tmp_path))
    env["PATH"] = f"{installed / 'bin'}{os.pathsep}{env.get('PATH', os.defpath)}"
    done = subprocess.run(
        [installed / "bin" / "drom", *words],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )

    assert (done.returncode, shown in done.stdout) == (0, True), done.stdout + done.stderr


def test_an_uninstalled_drom_leaves_the_others_whole(wheel: Path, tmp_path: Path) -> None:
    """Removing drom removes nothing of packages with these names."""
    packages = install(wheel, tmp_path)
    pip(tmp_path, "uninstall", "--yes", "drom")

    assert not (packages / "drom").exists()
    assert {name: (packages / path).read_text(encoding="utf-8") for name, path in OTHERS.items()} == {
        name: f"OF = {name!r}\n" for name in OTHERS
    }
