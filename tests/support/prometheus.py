"""Programs of Debian's packages, where scripts/setup.sh has unpacked them or somebody has installed them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest


def tool(name: str, package: str = "prometheus") -> str:
    """Return the path of a program; skip the test where there is none."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"needs {name} (Debian's package {package})")
    return found
