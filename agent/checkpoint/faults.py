# SPDX-License-Identifier: Apache-2.0
"""The sentence for what CRIU or runc reports when it cannot save or restore a job. Pure.

Only the first error counts: the others follow from it. The patterns are those of CRIU 4.1.
"""

from __future__ import annotations

import re

LONGEST = 300
"""Most characters of CRIU's own words in a sentence."""

_HARMLESS = re.compile(r"Can't setup RLIMIT_NOFILE")
_MESSAGE = re.compile(r'level=error msg="((?:[^"\\]|\\.)*)"')
_ERROR = re.compile(r"Error\s+\([^)]*\): (.*)")
_FAULTS = (
    (
        r"sockets: Can't [gs]et \d+:\d+ opt.*not supported",
        "it has a network socket open that CRIU cannot save on this kernel: close sockets before a save",
    ),
    (
        r"nested \w+ namespace",
        "it has made namespaces of its own, as sandboxes and containers do: run it without these",
    ),
    (r"Connected TCP socket", "it has an open TCP connection: close connections before a save"),
    (r"session leader \d+\(\d+\) outside|shell-job|dangling tty|tty|ctty", "it uses a terminal: run it without one"),
    (
        r"Can't dump file \d+ of that type \[\d+\] \((?:chr|blk) (\d+:\d+)",
        "it has a GPU or another device open (number {0}): close devices before a save",
    ),
    (
        r"(?:CPU|FPU|xsave|xfeatures|instruction capabilities).*(?:match|required|unsupported|missing)",
        "it was saved on a node with another type of CPU: restore it on one of that type",
    ),
    (
        r"No space left on device|File too large|Disk quota exceeded",
        "its image does not fit into the store: free space there or raise the quota",
    ),
    (
        r"Can't get rlimit|CAP_\w+|Can't setup CAP|capset",
        "CRIU lacks a capability on this node: run the agent as root with all capabilities, also CAP_SYS_RESOURCE",
    ),
    (r"Can't fork for (\d+): File exists", "the process number {0} is in use on this node: restore it on another"),
    (r"Can't dump ghost file (\S+)", "it has the deleted file {0} open, which is too large: close it before a save"),
    (r"File (\S+) has bad (?:size|mode|build-id)", "the file {0} has changed since the save: restore its contents"),
    (r"post-restore script ret code", "a path of a file that it has open leads elsewhere since the save: restore that"),
    (r"[Mm]agic doesn't match for (\S+?)\.?$", "its image is damaged (file {0}): cancel the job and submit it again"),
    (
        r"Unexpected EOF|Failed unpacking object|ELF header magic mismatch",
        "its image is damaged: cancel the job and submit it again",
    ),
    (r"Can't open file (\S+) on restore", "the file {0} is missing on this node: make it available"),
    (
        r"External socket is used|half of stream unix|unixsk",
        "it is connected to another process by a socket: close that before a save",
    ),
    (r"already traced|is being traced|(?:SEIZE|seize).*not permitted", "a debugger is attached to it: detach that"),
    (
        r"Can't lookup mount=\d+ for fd=-?\d+ path=(\S+)",
        "the file {0} is not in a folder that it is saved with: open files within the job's own folders",
    ),
    (r"(\S+) .*is not (?:a directory|mounted)|bind-mount|Can't mount at", "a folder of its node is missing here"),
)
_KILLED = re.compile(r"broken pipe|signal: killed|unexpected EOF|connection reset", re.IGNORECASE)
"""What runc reports if the process that was to become the container was killed."""


def of_criu(log: str, fallback: str) -> str:
    """Return why CRIU failed, from its log, as the end of a sentence; `fallback` if the log has no error."""
    errors = [found[1] for found in _ERROR.finditer(log) if not _HARMLESS.search(found[1])]
    for error in errors:
        for pattern, text in _FAULTS:
            if found := re.search(pattern, error):
                return f"{text.format(*(part[:LONGEST] for part in found.groups()))}."
    return f"CRIU reports: {errors[0][:LONGEST].rstrip('.')}." if errors else fallback


def was_killed(log: str) -> bool:
    """Return whether runc failed because a process of its own was killed, from its log."""
    return any(_KILLED.search(found) for found in _MESSAGE.findall(log))


def of_runc(log: str) -> str:
    """Return why runc failed, from its log, as the end of a sentence."""
    found = _MESSAGE.findall(log)
    return f"runc reports: {found[-1][:LONGEST].rstrip('.')}." if found else "no reason was reported."
