# SPDX-License-Identifier: Apache-2.0
"""Become the native launcher of `drom run`. Imports nothing heavy."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def launch(words: list[str]) -> NoReturn:
    """Become the native launcher with these arguments. The native command `drom` does so by itself, without Python."""
    from dromlib import native

    try:
        launcher = os.fspath(native.run_path())
    except FileNotFoundError as error:
        sys.exit(f"drom: {error}")
    # Python ignores these at its start: whether the caller ignored them is lost by then.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    os.execv(launcher, ["drom run", *words])  # noqa: S606 - the launcher takes our place
