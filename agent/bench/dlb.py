# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of a parallel region under DLB, if `$DLB_HOME` names an installation of it."""

from __future__ import annotations

import os
from pathlib import Path

from drom.agent.errors import ControlError

ARGS = "--drom --ompt"
"""DLB_ARGS as a user of DROM sets it, with a key of its own for the shared segments."""


def library(environment: dict[str, str] | None = None) -> Path | None:
    """Return libdlb.so of the installation in `$DLB_HOME`, or None if that is not set.

    Raises `ControlError` if the installation has none.
    """
    home = (os.environ if environment is None else environment).get("DLB_HOME")
    if not home:
        return None
    for pattern in ("lib/libdlb.so", "lib64/libdlb.so", "lib/*/libdlb.so"):
        for found in sorted(Path(home).glob(pattern)):
            return found
    raise ControlError(f"DLB_HOME is {home}, which has no lib/libdlb.so: name an installation of DLB, or unset it.")


def environment(preload: Path, llvm: str) -> dict[str, str]:
    """Return the environment variables of a program that runs on LLVM's runtime with DLB's tool."""
    return {"LD_PRELOAD": f"{preload}:{llvm}", "DLB_ARGS": f"{ARGS} --shm-key=drom-bench-{os.getpid()}"}
