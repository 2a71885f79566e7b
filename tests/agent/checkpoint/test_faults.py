# SPDX-License-Identifier: Apache-2.0
"""What CRIU's logs mean. The lines are those of CRIU 4.1.1 and runc 1.1.5."""

from __future__ import annotations

import pytest
from drom.agent.checkpoint import faults

HARMLESS = "Error (criu/util.c:1533): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "Error (criu/sk-inet.c:191): inet: Connected TCP socket, consider using --tcp-established option.",
            "open TCP connection: close",
        ),
        (
            "Error (criu/sockets.c:523): sockets: Can't get 1:16 opt: Operation not supported",
            "network socket open that CRIU cannot save on this kernel: close",
        ),
        ("Error (criu/namespaces.c:345): Can't dump nested user namespace for 25528", "namespaces of its own"),
        ("Error (criu/namespaces.c:345): Can't dump nested pid namespace for 7", "namespaces of its own"),
        ("Error (criu/tty.c:1830): tty: Found dangling tty with sid 9 pgid 9 (x) on peer fd 1.", "without one"),
        (
            "Error (criu/files-ext.c:94): Can't dump file 3 of that type [20666] (chr 195:255 /dev/nvidiactl)",
            "device open (number 195:255)",
        ),
        ("Error (criu/arch/x86/cpu.c:297): cpu: CPU capabilities do not match run time", "another type of CPU"),
        ("Error (criu/page-xfer.c:1): Can't write 4096 bytes: No space left on device", "does not fit into the store"),
        ("Error (criu/page-xfer.c:1): Can't write 4096 bytes: File too large", "does not fit into the store"),
        ("Error (criu/cr-dump.c:371): Can't get rlimit 0: Operation not permitted", "CAP_SYS_RESOURCE"),
        ("Error (criu/cr-restore.c:1230): Can't fork for 4711: File exists", "process number 4711 is in use"),
        (
            "Error (criu/files-reg.c:1031): Can't dump ghost file /tmp/x of 99 size, increase limit",
            "deleted file /tmp/x",
        ),
        ("Error (criu/files-reg.c:2175): File tmp/out has bad size 9 (expect 7)", "file tmp/out has changed"),
        ("Error (criu/files-reg.c:2353): Can't open file tmp/out on restore: No such file", "file tmp/out is missing"),
        (
            "Error (criu/image.c:494): Head magic doesn't match for cpuinfo.img",
            "its image is damaged (file cpuinfo.img): cancel",
        ),
        ("Error (criu/protobuf.c:1): Unexpected EOF", "its image is damaged: cancel"),
        ("Error (criu/protobuf.c:95): Failed unpacking object 0x7 from /core-1.img", "its image is damaged: cancel"),
        ("Error (criu/vdso.c:1): vdso: ELF header magic mismatch", "its image is damaged: cancel"),
        ("Error (criu/sk-unix.c:874): unix: External socket is used. Consider using", "by a socket"),
        (
            "Error (criu/files-reg.c:1): Can't lookup mount=27 for fd=1 path=/tmp/out",
            "file /tmp/out is not in a folder",
        ),
    ],
)
def test_an_error_becomes_a_sentence(line: str, words: str) -> None:
    """The sentence says what to do; it ends with a full stop."""
    found = faults.of_criu(
        f"(00.01) Warn  (criu/x.c:1): CPU\n{HARMLESS}(00.04) {line}\n(00.5) Error (x): Dumping FAILED.", ""
    )

    assert words in found
    assert found.endswith(".")


def test_an_unknown_error_is_quoted() -> None:
    """CRIU's own words are the sentence, up to a length."""
    assert faults.of_criu(f"Error (criu/x.c:1): {'x' * 999}\n", "") == f"CRIU reports: {'x' * faults.LONGEST}."


def test_a_long_path_is_cut() -> None:
    """A user chooses the path of a deleted file, and others see the sentence."""
    found = faults.of_criu(f"Error (criu/files-reg.c:1031): Can't dump ghost file /{'x' * 999} of 99 size\n", "")

    assert (
        found
        == f"it has the deleted file /{'x' * (faults.LONGEST - 1)} open, which is too large: close it before a save."
    )


def test_without_an_error_of_criu_the_other_reason_counts() -> None:
    """A log without errors, or none at all, tells nothing."""
    assert faults.of_criu(HARMLESS, "the other.") == "the other."


@pytest.mark.parametrize(
    ("said", "killed"),
    [
        ("runc run failed: can't copy bootstrap data to pipe: write init-p: broken pipe", True),
        ("runc run failed: waiting for init: signal: killed", True),
        ("runc run failed: exec: no such file or directory", False),
    ],
)
def test_a_killed_part_of_runc_is_no_fault_of_the_node(said: str, killed: bool) -> None:
    """Runc reports as an error of its own that the process which was to become the container is gone."""
    assert faults.was_killed(f'time="now" level=error msg="{said}"\n') is killed


def test_the_last_error_of_runc_counts() -> None:
    """The text is that of the message, without its time and level."""
    log = 'time="x" level=warning msg="no"\ntime="x" level=error msg="one \\"two\\" three."\n'

    assert faults.of_runc(log) == 'runc reports: one \\"two\\" three.'
    assert faults.of_runc("") == "no reason was reported."
