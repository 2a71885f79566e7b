"""CPU sets as plain integers (bit *c* stands for OS CPU *c*) and the kernel's grammars for them.

>>> format_cpulist(parse_cpulist("0-3,8") | 1 << 9)
'0-3,8-9'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from dromlib.errors import DromError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "MAX_CPUS",
    "CpuListError",
    "count",
    "cpus",
    "format_cpulist",
    "from_words",
    "mask_of",
    "parse_cpulist",
    "parse_cpumask",
    "to_words",
]

MAX_CPUS = 1 << 15
"""OS CPU numbers end below this; the same as ``layout.MAX_MASK_BITS``, which would take longer to import."""
_SURROUNDING = " \t\r\n\0"
_SHOWN = 40
_HEX = frozenset("0123456789abcdefABCDEF")


class CpuListError(DromError, ValueError):
    """Raised when a text is not a CPU set; `part` is the faulty part of it."""

    def __init__(self, part: str, fault: str, advice: str) -> None:
        self.part = part
        super().__init__(f"{_short(part)!r} {fault}: {advice}.")


def parse_cpulist(text: str) -> int:
    """Return the set of OS CPUs that `text` names.

    Accepts a kernel list (``0-3,8``), ranges with a step (``0-30:2`` is every second CPU, as in taskset) and a
    hexadecimal mask (``0xff``); blanks, line ends and NULs around it do not count, and nothing at all is the empty set.
    Raises CpuListError, whose sentence names the faulty part.
    """
    text = text.strip(_SURROUNDING)
    if text[:2].lower() == "0x":
        return _parse_hex(text, text[2:])
    mask = 0
    for part in text.split(",") if text else ():
        mask |= _parse_part(part.strip(_SURROUNDING), text)
    return mask


def parse_cpumask(text: str) -> int:
    """Return the set of OS CPUs in a kernel mask: groups of 32 bits in hexadecimal (``00000000,00000101``).

    Raises CpuListError when the text is something else.
    """
    text = text.strip(_SURROUNDING)
    head, *tail = text.split(",")
    if any(len(group) != 8 for group in tail):
        _fail(text, "is not a kernel CPU mask", "write groups of eight hexadecimal digits, such as '00000000,0000000f'")
    return _parse_hex(text, head + "".join(tail))


def format_cpulist(mask: int) -> str:
    """Return the set of OS CPUs `mask` as an ascending kernel list; the empty set is the empty text."""
    _refuse_negative(mask)
    parts, base = [], 0
    while mask:
        gap = (mask & -mask).bit_length() - 1
        mask >>= gap
        run = (~mask & (mask + 1)).bit_length() - 1
        mask >>= run
        base += gap
        parts.append(str(base) if run == 1 else f"{base}-{base + run - 1}")
        base += run
    return ",".join(parts)


def cpus(mask: int) -> list[int]:
    """Return the OS CPU numbers in `mask`, ascending."""
    _refuse_negative(mask)
    if mask.bit_count() < mask.bit_length() >> 4:  # few of many: looking at every bit would take longer
        found = []
        while mask:
            found.append((mask & -mask).bit_length() - 1)
            mask &= mask - 1
        return found
    return [cpu for cpu, bit in enumerate(reversed(f"{mask:b}")) if bit == "1"]


def count(mask: int) -> int:
    """Return the number of CPUs in `mask`."""
    return mask.bit_count()


def mask_of(numbers: Iterable[int]) -> int:
    """Return the set of the given OS CPU numbers; raises ValueError for a negative one."""
    mask = 0
    for cpu in numbers:
        mask |= 1 << cpu
    return mask


def to_words(mask: int, n: int) -> bytes:
    """Return `mask` as `n` little-endian 64-bit words; raises ValueError when it needs more."""
    _refuse_negative(mask)
    if mask.bit_length() > 64 * n:
        message = f"CPU {mask.bit_length() - 1} does not fit in a mask of {64 * n} bits."
        raise ValueError(message)
    return mask.to_bytes(8 * n, "little")


def from_words(words: bytes | memoryview) -> int:
    """Return the set of OS CPUs in little-endian 64-bit words."""
    return int.from_bytes(words, "little")


def _parse_part(part: str, text: str) -> int:
    if not part:
        _fail(text, "has an empty part", "write one comma between CPU numbers and none at the end, such as '0-3,8'")
    span, colon, step_text = part.partition(":")
    first_text, dash, last_text = span.partition("-")
    first = _number(first_text, part)
    last = _number(last_text, part) if dash else first
    if last < first:
        _fail(part, "runs downwards", f"write '{last}-{first}'")
    if not colon:
        return ((1 << (last - first + 1)) - 1) << first
    if not dash:
        _fail(part, "has a step but no range", f"write a range before the step, such as '{first}-{first + 8}:2'")
    step = _number(step_text, part)
    if step == 0:
        _fail(part, "has a step of 0", f"write a step of at least 1, such as '{first}-{last}:1'")
    count = (last - first) // step + 1
    # One bit every `step` bits, `count` times, is the geometric sum of 2**step.
    return ((1 << step * count) - 1) // ((1 << step) - 1) << first


def _number(digits: str, part: str) -> int:
    if not (digits.isascii() and digits.isdigit()):
        _fail(part, "is not a CPU number or range", "write a list such as '0-3,8', '0-30:2' or '0xff'")
    digits = digits.lstrip("0")
    # The length is looked at first: int() of a very long text is slow, and refused above 4300 digits.
    if len(digits) > len(str(MAX_CPUS)) or int(digits or "0") >= MAX_CPUS:
        _fail(part, "goes beyond the largest CPU number", f"write numbers from 0 to {MAX_CPUS - 1}")
    return int(digits or "0")


def _parse_hex(text: str, digits: str) -> int:
    if not digits or not _HEX.issuperset(digits):
        _fail(text, "is not a hexadecimal mask", "write one number such as '0xff', or a list such as '0-7'")
    digits = digits.lstrip("0")
    if len(digits) > MAX_CPUS // 4:
        _fail(text, "goes beyond the largest CPU number", f"write a mask of at most {MAX_CPUS} bits")
    return int(digits or "0", 16)


def _fail(part: str, fault: str, advice: str) -> NoReturn:
    raise CpuListError(part, fault, advice)


def _refuse_negative(mask: int) -> None:
    if mask < 0:
        message = "A CPU set cannot be negative."
        raise ValueError(message)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def first_cpu(mask: int) -> int:
    """Return the lowest OS CPU of a set that is not empty."""
    return (mask & -mask).bit_length() - 1
