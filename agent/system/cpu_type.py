# SPDX-License-Identifier: Apache-2.0
"""The type of this machine's CPUs: equal for machines that can run each other's saved programs."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from drom.agent.system.files import read_plain

_MOST = 1 << 24
_FIELDS = ("vendor_id", "CPU implementer", "flags", "Features")
"""Fields of /proc/cpuinfo, of x86 and Arm, that name the instruction set."""


def cpu_type(root: Path = Path("/")) -> str:
    """Return a short text for the vendor and the instructions of the first CPU; empty if /proc does not tell them."""
    try:
        text = read_plain(root / "proc/cpuinfo", _MOST).decode(errors="replace")
    except OSError:
        return ""
    return parse_cpu_type(text)


def parse_cpu_type(text: str) -> str:
    """Return the type of the first CPU in the text of /proc/cpuinfo."""
    found: dict[str, str] = dict(reversed(re.findall(r"^([^\t:]+?)\s*:\s*(.*)$", text, re.MULTILINE)))
    vendor, *_ = (*(found[name] for name in _FIELDS[:2] if name in found), "unknown")
    words = sorted({word for name in _FIELDS[2:] for word in found.get(name, "").split()})
    return f"{vendor}-{hashlib.sha256(' '.join(words).encode()).hexdigest()[:16]}" if words else ""
