# SPDX-License-Identifier: Apache-2.0
"""The energy of this machine's packages by RAPL, if the kernel provides it (/sys/class/powercap)."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/class/powercap")


class Meter:
    """Reads the counters of all packages; they may be readable by their owner only, and many machines have none."""

    def __init__(self, root: Path = ROOT) -> None:
        self._packages = sorted(root.glob("intel-rapl:[0-9]*"))
        self._packages = [path for path in self._packages if path.name.count(":") == 1]
        self._begun: list[int] | None = None

    def begin(self) -> None:
        """Record the values of the counters."""
        self._begun = self._read()

    def end(self) -> float | None:
        """Return the joules since `begin`; None without counters. Each counter may have wrapped around once."""
        ended = self._read()
        if not ended or not self._begun:
            return None
        spans = [_number(path / "max_energy_range_uj") for path in self._packages]
        used = [(b - a) % (span + 1) for a, b, span in zip(self._begun, ended, spans, strict=True)]
        return sum(used) / 1e6

    def _read(self) -> list[int]:
        try:
            return [_number(path / "energy_uj") for path in self._packages]
        except OSError:
            return []


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))
