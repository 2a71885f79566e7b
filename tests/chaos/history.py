# SPDX-License-Identifier: Apache-2.0
"""Published epochs, replayed: what must not happen to a slot between two readings of the registry.

The rules hold however much was missed in between, and whether one agent wrote both readings or another one took over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.checker import list_of

if TYPE_CHECKING:
    from tests.support.checker import Reading, Slot


def violations(before: Reading, after: Reading) -> list[str]:
    """Return what must not have happened to tasks that are in both readings of one registry."""
    if after.file != before.file or after.retired:
        return []
    earlier = {(slot.index, slot.who, slot.arrival): slot for slot in before.slots}
    found = []
    for slot in after.slots:
        if one := earlier.get((slot.index, slot.who, slot.arrival)):
            found += _between(one, slot)
    return found


def _between(one: Slot, two: Slot) -> list[str]:
    found = []
    if two.epoch < one.epoch:
        found.append(f"{two}: its epoch was {one.epoch} before")
    if two.epoch == one.epoch and one.grant and two.grant != one.grant:
        found.append(f"{two}: its grant was {list_of(one.grant)} and is {list_of(two.grant)} now")
    # A first grant is written down as in force before it is published.
    if two.applied_epoch < one.applied_epoch or two.applied_epoch > two.epoch + 1:
        found.append(f"{two}: applied epoch {one.applied_epoch} became {two.applied_epoch}")
    # What was granted is given up when something newer is in force, and not before.
    lost = (one.grant | one.in_force) & one.held & ~two.held
    if lost and two.applied_epoch <= one.applied_epoch:
        found.append(f"{two}, before {one!r}: gave up {list_of(lost)} with nothing newer in force")
    return found
