# SPDX-License-Identifier: Apache-2.0
"""Base classes that define how `copy.deepcopy` copies the objects of a node; a dry run copies all of them. No I/O."""

from __future__ import annotations

import copy
from typing import Any

_ATOMS = frozenset({int, float, str, bytes, bool, type(None)})


class Value:
    """An object that never changes, and neither does anything in it: a copy is the object itself."""

    __slots__ = ()

    def __copy__(self) -> Any:  # noqa: ANN401 - the class that inherits this
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> Any:  # noqa: ANN401 - the class that inherits this
        return self


class State:
    """An object with ``__slots__``, copied slot by slot: several times as fast as through its pickled state."""

    __slots__ = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:  # noqa: ANN401 - the class that inherits this
        made = memo[id(self)] = object.__new__(type(self))
        names: tuple[str, ...] = type(self).__slots__
        for name in names:
            value = getattr(self, name)
            setattr(made, name, value if type(value) in _ATOMS else copy.deepcopy(value, memo))
        return made
