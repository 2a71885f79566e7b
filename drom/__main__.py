# SPDX-License-Identifier: Apache-2.0
"""The entry point of `drom` in Python. `drom run` becomes the native launcher before anything heavy is imported."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import sys

from drom.agent.cli.launch import launch
from drom.agent.system.blas_threads import forgo_blas_threads
from drom.agent.system.process_title import set_title
from drom.agent.system.python_command import SERVE


def main() -> None:
    """Run the command line and exit with its status: 0 done, 1 refused or failed, 2 usage."""
    _end_at_ctrl_c()
    _open_missing_streams()
    _unbuffer_errors()
    _restore_locale()
    if os.path.isabs(sys.orig_argv[0]):  # noqa: PTH117 - pathlib is slow to import
        sys.executable = sys.orig_argv[0]  # PYTHONEXECUTABLE changes that of an isolated Python too
    if sys.argv[1:2] == ["run"]:
        launch(sys.argv[2:])
    forgo_blas_threads()
    if sys.argv[1:2] == [SERVE]:
        set_title("drom-agent", *sys.argv[3:])
        from drom.agent.daemon import startup

        startup.main(sys.argv[2])
        return
    if sys.argv[1:2] == ["scheduler"]:
        set_title("drom-scheduler", *sys.argv[2:])
    from drom.app import run_app

    try:
        run_app()
    finally:
        gc.freeze()  # otherwise Python searches all objects for cycles once more, for up to a quarter of a second


def _end_at_ctrl_c() -> None:
    """Restore the default action of SIGINT, without a traceback, until the command has begun: nothing is open yet.

    `drom` has blocked it while Python started. A caller that ignores it keeps doing so.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _restore_locale() -> None:
    """Restore the caller's LC_CTYPE, which Python replaces in the C locale (PEP 538), for programs and for jobs."""
    with contextlib.suppress(OSError):
        # The kernel shows the environment that the process was started with.
        with open("/proc/self/environ", "rb") as file:
            given = dict(entry.partition(b"=")[::2] for entry in file.read().split(b"\0"))
        if b"LC_CTYPE" in given:
            os.environb[b"LC_CTYPE"] = given[b"LC_CTYPE"]
        else:
            os.environb.pop(b"LC_CTYPE", None)


def _unbuffer_errors() -> None:
    """Make stderr unbuffered: with a closed reader, buffered text would cause the exit status 120 at the end."""
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        raw = open(2, "wb", buffering=0, closefd=False)  # noqa: SIM115 - until the end
        sys.stderr = io.TextIOWrapper(raw, sys.stderr.encoding, sys.stderr.errors, write_through=True)


def _open_missing_streams() -> None:
    """Open standard streams that the caller has closed, so that no other file gets their descriptors."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - until the end


if __name__ == "__main__":
    main()
