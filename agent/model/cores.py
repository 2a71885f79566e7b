# SPDX-License-Identifier: Apache-2.0
"""The cores of a node as CPU masks, and the arithmetic between cores and hardware threads."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from drom.agent.text import counted

from dromlib.cpulist import cpus as cpus_of
from dromlib.cpulist import first_cpu

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True)
class Cores:
    """Disjoint masks over OS CPU numbers, one per usable core, in the order of the distribution kernel.

    `packages` and `domains` are the package and the memory domain of each core; without them all lie in one. The units
    handed out may also be hardware threads: then each mask has one CPU, every count of cores counts hardware threads,
    and `siblings` are the masks of the whole cores, by memory domain. `kinds` has the CPUs of each kind of core of a
    hybrid machine, by name.
    """

    masks: tuple[int, ...]
    packages: tuple[int, ...] = ()
    domains: tuple[int, ...] = ()
    siblings: tuple[tuple[int, ...], ...] = ()
    kinds: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, units: Sequence[Core], wholes: Sequence[Core] = (), kinds: tuple[tuple[str, int], ...] = ()) -> Cores:
        """Return the cores to hand out, from the rows of `drom.agent.topology.machine.usable_cores`.

        If the units are hardware threads, `wholes` are the rows of the cores; threads of a core are then adjacent.
        """
        core_of = {cpu: mask for _, _, mask in wholes for cpu in cpus_of(mask)}

        def core(unit: int) -> int:
            return core_of.get(first_cpu(unit), unit)

        rows = sorted(units, key=lambda row: (*row[:2], first_cpu(core(row[2])), first_cpu(row[2])))
        siblings: dict[int, dict[int, int]] = {}
        for _, domain, unit in rows if wholes else ():
            parts = siblings.setdefault(domain, {})
            parts[core(unit)] = parts.get(core(unit), 0) | unit
        packages, domains, masks = zip(*rows, strict=True) if rows else ((), (), ())
        return cls(masks, packages, domains, tuple(tuple(parts.values()) for parts in siblings.values()), kinds)

    def __len__(self) -> int:
        return len(self.masks)

    def __iter__(self) -> Iterator[int]:
        return iter(self.masks)

    @cached_property
    def all(self) -> int:
        """The mask of all CPUs."""
        return sum(self.masks)

    @cached_property
    def widest(self) -> int:
        """The largest number of hardware threads in any core."""
        return max(self._widths, default=1)

    @cached_property
    def _widths(self) -> list[int]:
        return sorted(mask.bit_count() for mask in self.masks)

    @cached_property
    def differ(self) -> bool:
        """Whether some cores have more hardware threads than others."""
        return self._widths[:1] != self._widths[-1:]

    @property
    def noun(self) -> str:
        """The unit of `shown`: CPUs, or cores if they differ, as the same number of cores may then have other CPUs."""
        return "core" if self.differ else "CPU"

    def shown(self, cores: int) -> int:
        """Return the number that represents `cores` cores in messages, in units of `noun`."""
        return cores if self.differ else self.cpus(cores)

    def amount(self, cores: int) -> str:
        """Return `cores` cores as text: ``4 CPUs``, or ``4 cores`` where cores differ."""
        return counted(self.shown(cores), self.noun)

    @cached_property
    def names(self) -> tuple[int, ...]:
        """The package of each socket. Sockets are the packages that have cores here, numbered from 0."""
        return tuple(sorted(set(self.packages))) or (0,)

    @cached_property
    def socket_of(self) -> tuple[int, ...]:
        """The socket of each core."""
        place = {package: socket for socket, package in enumerate(self.names)}
        return tuple(place[package] for package in self.packages) or (0,) * len(self)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of cores of each socket."""
        return tuple(self.socket_of.count(socket) for socket in range(len(self.names)))

    @cached_property
    def domain_of(self) -> tuple[int, ...]:
        """The memory domain of each core."""
        return self.domains or (0,) * len(self)

    @cached_property
    def domains_of_socket(self) -> tuple[tuple[int, ...], ...]:
        """The memory domains of each socket."""
        pairs = sorted(set(zip(self.socket_of, self.domain_of, strict=True)))
        return tuple(tuple(domain for s, domain in pairs if s == socket) for socket in range(len(self.names)))

    @cached_property
    def _number(self) -> dict[int, int]:
        return {cpu: number for number, mask in enumerate(self.masks) for cpu in cpus_of(mask)}

    def numbers(self, mask: int) -> list[int]:
        """Return the numbers, from 0, of the cores with a CPU in `mask`, ordered by their lowest CPU in it."""
        numbers = map(self._number.__getitem__, cpus_of(mask & self.all))
        return list(numbers if self.widest == 1 else dict.fromkeys(numbers))

    @cached_property
    def _least(self) -> list[int]:
        return [0, *accumulate(self._widths)]

    def count(self, mask: int) -> int:
        """Return the number of cores with a CPU in `mask`."""
        return (mask & self.all).bit_count() if self.widest == 1 else len(self.numbers(mask))

    def whole(self, mask: int) -> int:
        """Return the mask of all CPUs of the cores with a CPU in `mask`."""
        return mask & self.all if self.widest == 1 else sum(self.masks[number] for number in self.numbers(mask))

    def inside(self, mask: int) -> int:
        """Return the mask of the cores of which all CPUs are in `mask`."""
        return sum(core for core in self.masks if not core & ~mask)

    def cpus(self, cores: int) -> int:
        """Return the least number of hardware threads that any `cores` cores have."""
        return self._least[min(cores, len(self))]

    def cpus_at_most(self, cores: int) -> int:
        """Return the largest number of hardware threads that `cores` cores, at least one, have."""
        return sum(self._widths[-cores:])

    def needed_for(self, cpus: int) -> int:
        """Return how many whole cores hold `cpus` hardware threads if every core has as many as the widest."""
        return -(-cpus // self.widest)

    def sure_of(self, cpus: int) -> int:
        """Return how many cores hold `cpus` hardware threads, whichever cores they are.

        The result exceeds the number of cores if all of them together do not hold as many.
        """
        return bisect_left(self._least, cpus) if cpus <= self._least[-1] else max(len(self) + 1, self.needed_for(cpus))

    def within(self, cpus: int) -> int:
        """Return how many whole cores `cpus` hardware threads allow, at least one; 0 for 0."""
        return max(1, cpus // self.widest) if cpus else 0


Core = tuple[int, int, int]
"""Package index, leaf memory domain index, CPU mask (bit c for OS CPU c)."""
