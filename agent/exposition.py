# SPDX-License-Identifier: Apache-2.0
"""Metrics as text, in the words of `prometheus_client`, which writes only the lines that have changed.

A scrape of a node with a thousand jobs is four thousand lines, and few of them differ from those of the last one.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prometheus_client.core import Metric
    from prometheus_client.samples import Sample

    Key = tuple[str, tuple[str, ...], float]


class Only:
    """A collector of these metric families."""

    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._families


class Exposition:
    """The text, from scrape to scrape, in the format that the header `accept` of a request asks for.

    `kind` is the content type. The lines of gauges that say what they said last time are not written anew.
    """

    def __init__(self, accept: str) -> None:
        from prometheus_client.exposition import choose_encoder

        try:
            self._encode, self.kind = choose_encoder(accept)
        except (TypeError, ValueError):  # no version that there could be
            self._encode, self.kind = choose_encoder("")
        self._end = self._encode(Only())
        self._lines: dict[Key, bytes] = {}

    def text(self, families: Iterable[Metric]) -> bytes:
        """Return the text of all families."""
        before, self._lines = self._lines, {}
        return b"".join([*(self._family(family, before) for family in families), self._end])

    def _family(self, family: Metric, before: Mapping[Key, bytes]) -> bytes:
        if family.type != "gauge":
            return self._written(family)
        keys = [_key(sample) for sample in family.samples]
        new = copy.copy(family)
        new.samples = [sample for key, sample in zip(keys, family.samples, strict=True) if key not in before]
        text = [line + b"\n" for line in self._written(new).split(b"\n")[:-1]]
        head = len(text) - len(new.samples)
        lines = iter(text[head:])
        said = [before[key] if key in before else next(lines) for key in keys]
        self._lines.update(zip(keys, said, strict=True))
        return b"".join([*text[:head], *said])

    def _written(self, family: Metric) -> bytes:
        return self._encode(Only(family)).removesuffix(self._end)


def _key(sample: Sample) -> Key:
    return sample.name, tuple(sample.labels.values()), sample.value
