from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dromlib import layout
from dromlib.cpulist import (
    MAX_CPUS,
    CpuListError,
    count,
    cpus,
    format_cpulist,
    from_words,
    mask_of,
    parse_cpulist,
    parse_cpumask,
    to_words,
)

SETS = st.sets(st.integers(0, 300)) | st.sets(st.integers(0, MAX_CPUS - 1), max_size=20)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("0", [0]),
        ("0-3,8", [0, 1, 2, 3, 8]),
        ("8,0-3,2", [0, 1, 2, 3, 8]),
        ("0-7:2", [0, 2, 4, 6]),
        ("1-8:3,20", [1, 4, 7, 20]),
        ("5-5", [5]),
        ("007", [7]),
        ("0x0", []),
        ("0x11", [0, 4]),
        ("0XfF", [0, 1, 2, 3, 4, 5, 6, 7]),
        (" 0-1, 4\n\0", [0, 1, 4]),
        ("32767", [32767]),
    ],
)
def test_reads_lists_steps_and_masks(text: str, expected: list[int]) -> None:
    """Kernel lists, ranges with a step and hexadecimal masks name the CPUs that taskset would take."""
    assert expected == cpus(parse_cpulist(text))


@pytest.mark.parametrize(
    ("text", "part", "advice"),
    [
        ("0,,3", "0,,3", "one comma"),
        ("0-3,", "0-3,", "one comma"),
        ("0,3-1", "3-1", "write '1-3'"),
        ("1,0-7:0", "0-7:0", "at least 1"),
        ("4:2", "4:2", "a range before the step"),
        ("0-7:", "0-7:", "such as '0-3,8'"),
        ("0-30:2/4", "0-30:2/4", "such as '0-3,8'"),
        ("0,a", "a", "such as '0-3,8'"),
        ("-3", "-3", "such as '0-3,8'"),
        ("1_0", "1_0", "such as '0-3,8'"),
        ("\u0663", "\u0663", "such as '0-3,8'"),
        ("0x", "0x", "such as '0xff'"),
        ("0x1,2", "0x1,2", "such as '0xff'"),
        ("0,32768", "32768", "from 0 to 32767"),
        ("0-99999999999", "0-99999999999", "from 0 to 32767"),
        ("9" * 10_000, "9" * 10_000, "from 0 to 32767"),
        ("0x" + "f" * 8193, "0x" + "f" * 8193, "at most 32768 bits"),
    ],
)
def test_names_the_faulty_part_and_the_remedy(text: str, part: str, advice: str) -> None:
    """An error carries the faulty part and says in one short sentence what to write instead."""
    with pytest.raises(CpuListError) as caught:
        parse_cpulist(text)

    assert part == caught.value.part
    message = str(caught.value)
    assert advice in message
    assert message.startswith(repr(part[:30])[:-1])
    assert message.endswith(".")
    assert len(message) < 200


@pytest.mark.parametrize(
    ("text", "expected"),
    [("00000000,00000101\n", [0, 8]), ("ff", list(range(8))), ("1,00000000,00000000", [64]), ("0", [])],
)
def test_reads_kernel_masks(text: str, expected: list[int]) -> None:
    """Groups of 32 bits are read with the lowest CPUs last."""
    assert expected == cpus(parse_cpumask(text))


@pytest.mark.parametrize("text", ["", "1,1", "0-3", "0x1", "00000000,,00000001"])
def test_refuses_what_is_no_kernel_mask(text: str) -> None:
    """Lists and odd groups are not taken for masks."""
    with pytest.raises(CpuListError, match="mask"):
        parse_cpumask(text)


def test_writes_runs_as_the_kernel_does() -> None:
    """Runs are joined with a dash, two neighbours included, and the empty set is the empty text."""
    assert format_cpulist(0) == ""
    assert format_cpulist(mask_of([1, 0, 3, 5, 6, 7, 64])) == "0-1,3,5-7,64"
    assert format_cpulist((1 << MAX_CPUS) - 1) == "0-32767"


def test_agrees_with_the_kernel_about_this_process() -> None:
    """The list that the kernel prints of our own affinity is the one we print."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    printed = next(line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list"))

    assert printed == format_cpulist(parse_cpulist(printed))
    assert os.sched_getaffinity(0) <= set(cpus(parse_cpulist(printed)))


@given(SETS)
def test_every_set_survives_text_and_words(numbers: set[int]) -> None:
    """Whatever the set, lists, masks and words give it back."""
    mask = mask_of(numbers)

    assert sorted(numbers) == cpus(mask)
    assert len(numbers) == count(mask)
    assert mask == parse_cpulist(format_cpulist(mask))
    assert mask == parse_cpulist(hex(mask))
    assert mask == from_words(to_words(mask, 512))


def test_words_are_little_endian_and_must_suffice() -> None:
    """CPU 64 is bit 0 of word 1, and a mask that needs more words than given is refused."""
    assert to_words(1 << 64 | 1, 2) == b"\1" + bytes(7) + b"\1" + bytes(7)
    with pytest.raises(ValueError, match="CPU 64 does not fit in a mask of 64 bits"):
        to_words(1 << 64, 1)


def test_refuses_negative_sets() -> None:
    """A negative integer is no set of CPUs, and never loops for ever."""
    for function in (cpus, format_cpulist):
        with pytest.raises(ValueError, match="negative"):
            function(-1)
    with pytest.raises(ValueError, match="negative"):
        mask_of([-1])


def test_has_the_limit_of_the_layout() -> None:
    """The text of a set and the shared bytes hold the same number of CPUs."""
    assert layout.MAX_MASK_BITS == MAX_CPUS
