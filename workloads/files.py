# SPDX-License-Identifier: Apache-2.0
"""Files that are written completely or not at all."""

from __future__ import annotations

import gzip
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces `path` once it is complete; gzip if the name ends in ``.gz``.

    A path that is not a regular file (a pipe, ``/dev/stdout``) is written directly. A failure leaves nothing behind.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        with open(target, "wb") as direct:
            yield direct
        return
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as raw:
            if target.suffix == ".gz":
                with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed:
                    yield cast("IO[bytes]", packed)
            else:
                yield raw
        Path(name).chmod(_mode(target))
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _mode(target: Path) -> int:
    """Return the permissions of the file to be replaced, or those of a new file."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
