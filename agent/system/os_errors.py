# SPDX-License-Identifier: Apache-2.0
"""Sentences for errors of the operating system: what they concern, the reason, and what to do."""

from __future__ import annotations

import errno
import io
import os
import sys

OUTPUT = "standard output"
NO_CURRENT_FOLDER = "the current folder does not exist any more: change to one that does (cd)."
REMEDIES = {
    errno.ENOENT: "check its name",
    errno.ENOTDIR: "check its name",
    errno.EISDIR: "name a file",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "it is a link to itself",
    errno.EACCES: "name one that this user may use, or be its owner",
    errno.EPERM: "name one that this user may use, or be its owner",
    errno.EEXIST: "choose another name",
    errno.EROFS: "choose a place that can be written",
    errno.ENOSPC: "free space there, or choose another place",
    errno.EDQUOT: "free space there, or choose another place",
    errno.EFBIG: "allow larger files (ulimit -f), or choose another place",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENFILE: "close programs: the whole machine has too many files open",
    errno.ENOMEM: "request less, or use a machine with more memory",
    errno.EAGAIN: "allow this user more processes (ulimit -u)",
    errno.EIO: "check the device with dmesg",
}


class _Output(io.FileIO):
    """Descriptor 1, with errors that name it."""

    def write(self, data: object) -> int:
        """Write bytes, as the base class does."""
        try:
            return super().write(data)  # type: ignore[arg-type] # any bytes
        except OSError as error:
            error.filename = OUTPUT
            raise


def name_output() -> None:
    """Make errors of standard output name it."""
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper):
        buffer = io.BufferedWriter(_Output(1, "w", closefd=False))
        sys.stdout = io.TextIOWrapper(buffer, sys.stdout.encoding, line_buffering=sys.stdout.line_buffering)


def discard_output() -> None:
    """Discard all pending and further standard output: nothing can be written there any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def reason_of(error: OSError) -> str:
    """Return the reason of an error and what to do about it, without its subject and without a full stop."""
    why = error.strerror or str(error) or type(error).__name__
    # Our own errors have a number too, but not the system's text for it.
    is_known = error.errno in REMEDIES and why == os.strerror(error.errno)
    return f"{why}: {REMEDIES[error.errno]}" if error.errno and is_known else why


def sentence_of(error: OSError) -> str:
    """Return the sentence for users that describes an error of the system."""
    if lacks_current_folder(error):
        return NO_CURRENT_FOLDER
    if error.filename is None:
        why = error.strerror or str(error) or type(error).__name__
        return f"the system refuses what drom needs ({why}): {REMEDIES.get(error.errno or 0, 'see drom doctor')}."
    name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else f"descriptor {error.filename}"
    return f"{name}: {reason_of(error)}."


def lacks_current_folder(error: BaseException | None) -> bool:
    """Return whether an error, or one that caused it, comes from a current folder that was deleted."""
    while error is not None:
        if isinstance(error, FileNotFoundError):
            name = error.filename or ""
            return isinstance(name, (str, bytes)) and not os.path.isabs(name) and _is_lost()  # noqa: PTH117 - or bytes
        error = error.__cause__
    return False


def _is_lost() -> bool:
    """Return whether the current folder was deleted."""
    try:
        os.stat(os.getcwd())  # noqa: PTH109, PTH116 - both as the system has them
    except OSError:
        return True
    return False
