# SPDX-License-Identifier: Apache-2.0
"""The hook that every Python of a job loads, on every Python that is here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

HOOK = ROOT / "dromlib" / "native" / "python" / "sitecustomize.py"
VERSIONS = ("2.7", "3.6", "3.7", "3.8", "3.9", "3.10", "3.12", "3.13")


def interpreter(version: str) -> str:
    """Return a Python of this version; skip where none runs."""
    places = [
        shutil.which(f"python{version}"),
        *sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python")),
    ]
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    for place in map(str, filter(None, places)):
        told = subprocess.run([place, "-c", code], capture_output=True, text=True, check=False)
        if told.stdout.strip() == version:
            return place
    pytest.skip(f"needs Python {version}")


def run_hooked(python: str, folder: Path, own: str | None) -> subprocess.CompletedProcess[str]:
    """Run a program with the hook in front of a sitecustomize of the user's."""
    hook, mine = folder / "hook", folder / "mine"
    hook.mkdir()
    mine.mkdir()
    shutil.copy(HOOK, hook)
    if own is not None:
        (mine / "sitecustomize.py").write_text(own)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{hook}:{mine}", "PYTHONDONTWRITEBYTECODE": "1"}
    code = "import sys; print(getattr(sys, 'mine', None)); print([p for p in sys.path if p.endswith('/hook')])"
    return subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(params=[*VERSIONS, "this"])
def python(request: pytest.FixtureRequest) -> str:
    """Each Python in turn."""
    return sys.executable if request.param == "this" else interpreter(request.param)


def test_the_users_own_module_is_loaded(python: str, tmp_path: Path) -> None:
    """The hook is silent, hands over to the sitecustomize behind it, and leaves the search path."""
    done = run_hooked(python, tmp_path, "import sys\nsys.mine = 'loaded'\n")

    assert (done.returncode, done.stdout, done.stderr) == (0, "loaded\n[]\n", "")


def test_a_user_needs_no_module_of_their_own(python: str, tmp_path: Path) -> None:
    """The program starts without a word."""
    done = run_hooked(python, tmp_path, None)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_fault_of_the_users_own_module_is_reported_as_without_drom(python: str, tmp_path: Path) -> None:
    """Python names what the user's module cannot do; the program goes on as it does alone."""
    own = "raise ValueError('of the user')\n"
    done = run_hooked(python, tmp_path, own)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "mine"), "PYTHONDONTWRITEBYTECODE": "1"}
    plain = subprocess.run([python, "-c", "pass"], env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == plain.returncode
    assert ("of the user" in done.stderr) == ("of the user" in plain.stderr)
