# SPDX-License-Identifier: Apache-2.0
"""What a program finds of itself under ``drom run``, beside what it finds without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DROM = Path(sys.executable).with_name("drom")
OWN_OF_A_PROCESS = ("Pid", "Tgid", "Ngid", "NStgid", "NSpid", "NSpgid", "NSsid", "PPid", "Threads", "SigQ")
COUNTED = ("Vm", "Rss", "Hugetlb", "voluntary", "nonvoluntary", "THP")
LOOK = """
import json, os, resource
lines = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
print(json.dumps({
    "status": lines,
    "environment": open("/proc/self/environ").read().split(chr(0)),
    "descriptors": {number: os.readlink(f"/proc/self/fd/{number}") for number in ("0", "7") if os.path.exists(f"/proc/self/fd/{number}")},
    "limits": {name: resource.getrlimit(getattr(resource, name)) for name in names},
    "niceness": os.nice(0),
    "folder": os.getcwd(),
    "arguments": open("/proc/self/cmdline").read().split(chr(0)),
}))
"""  # noqa: E501 - a program


def looked(folder: Path, *before: str, **environment: str) -> dict[str, Any]:
    """Return what a program sees of itself that a shell starts with some things unlike others."""
    script = f'umask 0027; ulimit -n 200; ulimit -c 0; exec 7<{folder}; nice -n 3 "$@" </dev/null'
    program = [*before, sys.executable, "-c", LOOK, "an argument", "--help"]
    told = subprocess.run(
        ["sh", "-c", script, "sh", *program], env=environment, cwd=folder, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(told.stdout)
    found["status"] = {
        name: value
        for name, value in found["status"].items()
        if name not in OWN_OF_A_PROCESS and not name.startswith(COUNTED)
    }
    return found


@pytest.mark.parametrize("locale", [{}, {"LANG": "C"}, {"LC_CTYPE": "C.UTF-8"}, {"LC_CTYPE": "C"}, {"LC_ALL": "POSIX"}])
def test_a_program_finds_itself_as_without_drom(tmp_path: Path, locale: dict[str, str]) -> None:
    """Signals, environment, descriptors, limits, umask, niceness, folder, masks and arguments are the caller's."""
    environment = {"PATH": os.environ["PATH"], "ODD": "a=b", "DROM_RUNTIME_DIR": str(tmp_path / "none"), **locale}

    plain = looked(tmp_path, **environment)
    managed = looked(tmp_path, str(DROM), "run", "--", **environment)

    assert managed == plain
    assert plain["descriptors"]["7"] == str(tmp_path)


def test_a_pipe_that_nobody_reads_ends_a_program(tmp_path: Path) -> None:
    """SIGPIPE ends a program under ``drom run`` as it does without."""
    environment = {**os.environ, "DROM_RUNTIME_DIR": str(tmp_path / "none")}
    with subprocess.Popen(
        [DROM, "run", "--", "yes"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as writer:
        assert writer.stdout
        assert writer.stdout.readline() == b"y\n"
        writer.stdout.close()

        assert writer.wait(60) == -13
