# SPDX-License-Identifier: Apache-2.0
"""Commands of drom in forks of this process, which has imported what they need: each saves most of a second."""

from __future__ import annotations

import faulthandler
import gc
import os
import subprocess
import sys
import threading
import traceback
import warnings
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, NoReturn

from drom.__main__ import main

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Fork(subprocess.Popen[Any]):
    """A `drom` command, as ``Popen(["drom", *words], cwd=..., env=..., stdout=...)`` would run it.

    It has arguments, environment, folder, descriptors and exit status of its own; only the start of Python is left out.
    The parent must have closed its connections to an SQLite database that the command opens: SQLite, like some other
    libraries, remembers descriptors that are closed in the fork.
    """

    def _execute_child(
        self,
        args: Sequence[str],
        _executable: object,
        _preexec_fn: object,
        _close_fds: object,
        pass_fds: Sequence[int],
        cwd: str | None,
        env: Mapping[str, str] | None,
        _startupinfo: object,
        _creationflags: object,
        _shell: object,
        *rest: int,
    ) -> None:
        """Fork in place of starting a program. The first of the `rest` are the ends of pipes, ours and the child's."""
        streams = rest[0], rest[3], rest[5]
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forks while threads run are meant
            self.pid = os.fork()
        if not self.pid:
            _become(list(args), dict(os.environ if env is None else env), cwd or ".", streams, pass_fds)
        self._child_created = True
        self._close_pipe_fds(*rest[:6])  # type: ignore[attr-defined] # private


def _become(
    words: list[str], env: Mapping[str, str], folder: str, streams: Sequence[int], kept: Sequence[int]
) -> NoReturn:
    """Run the command line in the fork, and end it without what its parent does at its end."""
    status: object = 1
    try:
        gc.freeze()  # what is garbage of the parent has descriptors that belong to others here
        faulthandler.disable()
        threading.excepthook, sys.excepthook = threading.__excepthook__, sys.__excepthook__  # pytest has its own
        sys.unraisablehook = sys.__unraisablehook__
        for number, given in enumerate(streams):
            if given != -1:
                os.dup2(given, number)
        first = 3
        for descriptor in (*sorted(kept), 1 << 20):
            os.closerange(first, descriptor)
            first = descriptor + 1
        for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - until the end
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        vars(resource_tracker._resource_tracker).update(_fd=None, _pid=None)  # its pipe is closed here
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(env)
        if "numba" in sys.modules:
            sys.modules["numba"].config.reload_config()
        sys.argv = words
        main()
        status = 0
    except SystemExit as end:
        status = end.code
    except BaseException:  # noqa: BLE001 - the parent goes on elsewhere
        traceback.print_exc()
    finally:
        if isinstance(status, str):
            sys.stderr.write(f"{status}\n")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else bool(status))
