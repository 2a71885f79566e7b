from __future__ import annotations

import itertools
import mmap
import re
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import pytest

from dromlib import layout, native
from tests.support import native_build

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = (layout.HEADER, layout.SLOT, layout.MAILBOX, layout.REQUEST, layout.REPLY)
WIDTHS = (64, 192, 1024, 32768)
STRIDE = 4096
C_TYPES = {"u64": "uint64_t", "u32": "uint32_t", "i32": "int32_t", "u8": "uint8_t", "char": "signed char"}
CODES = {"u64": "Q", "u32": "I", "i32": "i", "u8": "B", "char": "b"}

Values = dict[tuple[str, int], int]


@pytest.fixture(scope="module")
def conform(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the C side of the conformance test."""
    folder = tmp_path_factory.mktemp("conform")
    lines = [
        f"FIELD({number}, {record.name}, {field.name}, {C_TYPES[field.kind]}, {field.count})"
        for number, record in enumerate(RECORDS)
        for field in record.fields.values()
    ]
    lines += [f"MASK({len(RECORDS)}, {name}, DROM_MASK_{name.upper()})" for name in layout.MASKS]
    (folder / "conform_fields.inc").write_text("\n".join(lines) + "\n", encoding="utf-8")
    native_build.compile_c(folder / "conform", [native_build.SOURCES / "conform.c"], [])
    return folder / "conform"


def run_conform(program: Path, verb: str, data: Path, mask_bits: int) -> Values:
    """Let the C program dump or fill a file; return every element it saw."""
    words = str(layout.mask_words(mask_bits))
    done = subprocess.run([program, verb, data, words], capture_output=True, text=True, check=True)
    seen: Values = {}
    for line in done.stdout.splitlines():
        label, index, value = line.split()
        seen[label, int(index)] = int(value)
    return seen


def elements(mask_bits: int) -> dict[tuple[str, int], tuple[int, str]]:
    """Return where Python believes every element is, and how it is packed."""
    places: dict[tuple[str, int], tuple[int, str]] = {}
    for number, record in enumerate(RECORDS):
        for field in record.fields.values():
            size = struct.calcsize(CODES[field.kind])
            for i in range(field.count):
                at = number * STRIDE + field.offset + i * size
                places[f"{record.name}.{field.name}", i] = (at, "<" + CODES[field.kind])
    for name in layout.MASKS:
        for i in range(layout.mask_words(mask_bits)):
            at = len(RECORDS) * STRIDE + layout.mask_offset(name, mask_bits) + 8 * i
            places[f"mask.{name}", i] = (at, "<Q")
    return places


def as_signed(value: int) -> int:
    """Return 64 bits as the C program prints them."""
    return value - (1 << 64) if value >= 1 << 63 else value


@pytest.mark.parametrize("mask_bits", WIDTHS)
def test_c_reads_every_field_that_python_wrote(conform: Path, tmp_path: Path, mask_bits: int) -> None:
    """Every element of every record and mask has in C the value that Python stored."""
    data, expected = bytearray(64 * STRIDE), {}
    for (key, (at, code)), seed in zip(elements(mask_bits).items(), itertools.count(1)):
        raw = (seed * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(8, "little")[: struct.calcsize(code)]
        data[at : at + len(raw)] = raw
        expected[key] = as_signed(struct.unpack(code, raw)[0])
    (tmp_path / "data").write_bytes(data)

    assert run_conform(conform, "dump", tmp_path / "data", mask_bits) == expected


@pytest.mark.parametrize("mask_bits", WIDTHS)
def test_python_reads_every_field_that_c_wrote(conform: Path, tmp_path: Path, mask_bits: int) -> None:
    """Every element of every record and mask has in Python the value that C stored."""
    (tmp_path / "data").write_bytes(bytes(64 * STRIDE))
    written = run_conform(conform, "fill", tmp_path / "data", mask_bits)
    data = (tmp_path / "data").read_bytes()

    read = {key: as_signed(struct.unpack_from(code, data, at)[0]) for key, (at, code) in elements(mask_bits).items()}
    assert read == written


def test_records_unpack_what_c_wrote(conform: Path, tmp_path: Path) -> None:
    """Record.unpack, the agent's way to read, agrees with C on every field."""
    (tmp_path / "data").write_bytes(bytes(64 * STRIDE))
    written = run_conform(conform, "fill", tmp_path / "data", 64)
    data = (tmp_path / "data").read_bytes()

    for number, record in enumerate(RECORDS):
        for name, value in record.unpack(data, number * STRIDE).items():
            field = record.fields[name]
            if isinstance(value, bytes):
                value = struct.unpack(f"{field.count}{CODES[field.kind]}", value)  # noqa: PLW2901 - one shape for all
            values = value if isinstance(value, tuple) else (value,)
            assert [as_signed(v) for v in values] == [written[f"{record.name}.{name}", i] for i in range(field.count)]


@pytest.mark.parametrize("mask_bits", WIDTHS)
def test_numpy_reads_every_field_of_a_slot(conform: Path, tmp_path: Path, mask_bits: int) -> None:
    """slot_dtype places every field and mask where the records do."""
    dtype = layout.slot_dtype(mask_bits)
    assert dtype.itemsize == layout.slot_size(mask_bits)
    assert dtype.fields is not None
    for field in layout.SLOT.fields.values():
        assert dtype.fields[field.name][1] == field.offset
        assert dtype.fields[field.name][0].itemsize == field.size
    (tmp_path / "data").write_bytes(bytes(64 * STRIDE))
    written = run_conform(conform, "fill", tmp_path / "data", mask_bits)
    data = (tmp_path / "data").read_bytes()
    slot = np.frombuffer(data, dtype, count=1, offset=len(RECORDS) * STRIDE)[0]

    for name in layout.MASKS:
        expected = [written[f"mask.{name}", i] % (1 << 64) for i in range(layout.mask_words(mask_bits))]
        assert slot[name].tolist() == expected


@numba.njit
def read_grant(slots: np.ndarray[Any, Any], index: int) -> tuple[int, int, int, int]:
    """Return epoch, CPUs, reason and the first mask word of a slot's grant in force."""
    slot = slots[index]
    copy = slot.epoch & 1
    word = slot.grant1[0] if copy else slot.grant0[0]
    return slot.epoch, slot.ncpus[copy], slot.reason[copy], word


@numba.njit
def write_grant(slots: np.ndarray[Any, Any], index: int, word: int) -> None:
    """Put a word in the copy in force."""
    slots[index].grant1[0] = word


def test_numba_reads_a_grant_that_c_published() -> None:
    """A kernel compiled over slot_dtype sees what drom_publish wrote in either copy."""
    slots = np.zeros(3, layout.slot_dtype(192))
    for epoch, mask in enumerate((0b1011, 0b100, 1 << 190 | 1), start=1):
        assert native.publish(slots[1:].ctypes.data, mask, 3, 4) == epoch
        assert tuple(read_grant(slots, 1)) == (epoch, mask.bit_count(), 4, mask % (1 << 64))
    assert not slots[0].tobytes().strip(b"\0")
    assert not slots[2].tobytes().strip(b"\0")


def test_c_takes_up_where_numpy_and_numba_wrote() -> None:
    """drom_publish goes on from an epoch stored by NumPy and leaves the copy in force to its readers."""
    slots = np.zeros(2, layout.slot_dtype(64))
    slots[1]["epoch"] = 41
    write_grant(slots, 1, 0b111)

    assert native.publish(slots[1:].ctypes.data, 0b1, 1, 2) == 42
    assert slots[1]["grant1"][0] == 0b111
    assert slots[1]["grant0"][0] == 0b1


def test_retire_sets_the_last_epoch() -> None:
    """A retired slot has EPOCH_RETIRED and takes no further grant."""
    slots = np.zeros(1, layout.slot_dtype(64))
    native.retire(slots.ctypes.data)

    assert slots[0]["epoch"] == layout.EPOCH_RETIRED
    assert native.publish(slots.ctypes.data, 1, 1, 1) == layout.EPOCH_RETIRED
    assert slots[0]["grant0"][0] == 0


@pytest.mark.parametrize("compiler", ["gcc -x c -std=c90", "gcc -x c -std=c17", "g++ -x c++ -std=c++98", "g++ -x c++"])
def test_header_compiles_without_warnings(compiler: str, tmp_path: Path) -> None:
    """Programs in each C and C++ include drom.h without a warning, also about conversions."""
    source = tmp_path / "use"
    source.write_text('#include "drom.h"\nint main(void) { return drom_poll(drom_attach()); }\n', encoding="utf-8")
    command = [*compiler.split(), "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Werror"]
    command += [f"-I{native.include_dir()}", "-c", str(source), "-o", str(tmp_path / "use.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.stderr == ""


def test_library_exports_the_public_functions_alone() -> None:
    """The library libdrom.so.0 shows the functions of drom.h and, for the agent, those of publish.h alone."""
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", str(native.library_path())]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    exported = {line.split("@")[0].split()[0] for line in names} - {"DROM_0.1"}
    dynamic = ["readelf", "--dynamic", str(native.library_path())]

    soname = subprocess.run(dynamic, capture_output=True, text=True, check=True).stdout

    header = (native.include_dir() / "drom.h").read_text(encoding="utf-8")
    public = set(re.findall(r"^(?:\w+ )+\*?(drom_\w+)\(", header, re.MULTILINE)) - {"drom_poll"}
    assert exported == public | {"drom_publish", "drom_retire"}
    assert "Library soname: [libdrom.so.0]" in soname


def test_an_integer_is_never_half_written(tmp_path: Path) -> None:
    """Another process that looks all the time sees the old or the new one: so would who comes after a kill."""
    file, begin = tmp_path / "slot", bytearray(4096)
    layout.SLOT.write(begin, applied_epoch=5)
    file.write_bytes(begin)
    writer = (
        "import mmap, sys; from dromlib.layout import SLOT\n"
        "file = open(sys.argv[1], 'r+b'); memory = memoryview(mmap.mmap(file.fileno(), 4096))\n"
        "for turn in range(200_000): SLOT.write(memory, applied_epoch=5 + 2 * (turn % 2))"
    )
    with file.open("rb") as shared, mmap.mmap(shared.fileno(), 4096, prot=mmap.PROT_READ) as mapped:
        seen, memory = set(), memoryview(mapped)
        with subprocess.Popen([sys.executable, "-c", writer, str(file)]) as process:
            while process.poll() is None:
                seen |= {layout.SLOT.read(memory, "applied_epoch") for _ in range(10_000)}
        memory.release()

    assert (process.returncode, seen) == (0, {5, 7})
