# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: INP001 - a step of the build, in a folder of C sources
"""Hide the symbols that GNU's linker creates for a library's version names: `hide_versions.py LIBRARY`.

A program may have a symbol of its own with such a name (VERSION is a likely one), and must be bound to that.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

ABSOLUTE, DYNAMIC_SYMBOLS, VERSIONS, HIDDEN = 0xFFF1, 11, 0x6FFFFFFF, 0x8000
"""SHN_ABS, SHT_DYNSYM, SHT_GNU_versym and the bit that hides a version from references without one."""


def hide(library: bytearray) -> None:
    """Set the hidden bit of each absolute dynamic symbol of a 64-bit ELF file; a file without any is not changed."""
    order = "<" if library[5] == 1 else ">"
    (table,) = struct.unpack_from(f"{order}Q", library, 0x28)
    size, count = struct.unpack_from(f"{order}HH", library, 0x3A)
    sections = [struct.unpack_from(f"{order}IIQQQQ", library, table + i * size) for i in range(count)]
    places = {kind: (offset, length) for _, kind, _, _, offset, length in sections}
    if DYNAMIC_SYMBOLS not in places or VERSIONS not in places:
        return
    (symbols, length), (versions, _) = places[DYNAMIC_SYMBOLS], places[VERSIONS]
    for i in range(length // 24):
        (section,) = struct.unpack_from(f"{order}H", library, symbols + i * 24 + 6)
        if section == ABSOLUTE:
            (version,) = struct.unpack_from(f"{order}H", library, versions + i * 2)
            struct.pack_into(f"{order}H", library, versions + i * 2, version | HIDDEN)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    content = bytearray(path.read_bytes())
    hide(content)
    path.write_bytes(content)
