# SPDX-License-Identifier: Apache-2.0
"""Replaces this process by the native launcher of `drom run`. Imports only light modules."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def launch(words: list[str]) -> NoReturn:
    """Replace this process by the native launcher with these arguments; the native `drom` does so without Python."""
    from dromlib import native

    try:
        launcher = os.fspath(native.run_path())
    except FileNotFoundError as error:
        sys.exit(f"drom: {error}")
    # Python ignores these at its start, so it is not known whether the caller ignored them.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    os.execv(launcher, ["drom run", *words])  # noqa: S606 - the launcher takes our place
