# SPDX-License-Identifier: Apache-2.0
"""The Python packages of this checkout, laid out as a wheel installs them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

INSTALLED = {
    "drom": "drom",
    "agent": "drom/agent",
    "scheduler": "drom/scheduler",
    "workloads": "drom/workloads",
    "dromlib": "dromlib",
}
"""Where each folder of the checkout is installed, parents first."""


def copy_packages(folder: Path) -> None:
    """Copy the sources of all packages to a folder."""
    for source, package in INSTALLED.items():
        shutil.copytree(ROOT / source, folder / package, ignore=shutil.ignore_patterns("__pycache__", "native"))
