# SPDX-License-Identifier: Apache-2.0
"""drom_may_rest() and grants without CPUs, through libdrom as programs call it."""

from __future__ import annotations

import ctypes
import errno
from typing import TYPE_CHECKING

import pytest

from dromlib import layout, native
from dromlib.testing import FakeAgent

if TYPE_CHECKING:
    from collections.abc import Iterator

MASK_WORDS = 512


class Grant(ctypes.Structure):
    """drom_grant."""

    _fields_ = (
        ("epoch", ctypes.c_uint64),
        ("ncpus", ctypes.c_uint32),
        ("reason", ctypes.c_uint32),
        ("mask_words", ctypes.c_uint32),
        ("spare", ctypes.c_uint32),
        ("mask", ctypes.c_uint64 * MASK_WORDS),
    )


@pytest.fixture
def library() -> ctypes.CDLL:
    """Return libdrom."""
    found = ctypes.CDLL(str(native.library_path()))
    found.drom_attach.restype = ctypes.c_void_p
    return found


@pytest.fixture
def fake() -> Iterator[FakeAgent]:
    """Open an agent that grants two CPUs."""
    with FakeAgent("0-1") as agent:
        yield agent


def test_the_report_is_in_the_mailbox_beside_the_wish(library: ctypes.CDLL, fake: FakeAgent) -> None:
    """The largest numbers of a process count, and drom_want() leaves them as they are."""
    one, two = (ctypes.c_void_p(library.drom_attach()) for _ in range(2))
    library.drom_may_rest(one, 3, 0)
    library.drom_may_rest(two, 2, 5)
    library.drom_want(one, 1, 4)

    assert (fake._mail("min_tasks"), fake._mail("max_tasks")) == (3, 5)
    library.drom_detach(one)
    assert fake._mail("min_tasks") == 2
    library.drom_may_rest(two, 0, 0)
    assert fake._mail("min_tasks") == 0
    library.drom_detach(two)


def test_a_grant_without_cpus_is_taken_and_acknowledged(library: ctypes.CDLL, fake: FakeAgent) -> None:
    """It cannot be applied; the next grant wakes who waits for it."""
    handle, grant = ctypes.c_void_p(library.drom_attach()), Grant()
    assert library.drom_take(handle, ctypes.byref(grant)) == 1
    epoch = fake._registry.publish(FakeAgent.SLOT, 0)

    assert library.drom_wait(handle, 0) == 1
    assert library.drom_take(handle, ctypes.byref(grant)) == 1
    assert (grant.epoch, grant.ncpus) == (epoch, 0)
    assert library.drom_acknowledge(handle, ctypes.byref(grant)) == 0
    fake.wait_applied(epoch)

    fake.grant("1")
    assert library.drom_wait(handle, -1) == 1
    library.drom_detach(handle)


def test_a_grant_without_cpus_cannot_be_applied(library: ctypes.CDLL) -> None:
    """drom_apply() returns -EINVAL where CPUs are real, and acknowledges nothing."""
    with FakeAgent("0", binds=True) as fake:
        handle, grant = ctypes.c_void_p(library.drom_attach()), Grant()
        library.drom_take(handle, ctypes.byref(grant))
        fake._registry.publish(FakeAgent.SLOT, 0)
        library.drom_take(handle, ctypes.byref(grant))

        assert library.drom_apply(handle, ctypes.byref(grant)) == -errno.EINVAL
        assert fake.applied == 0 != layout.EPOCH_RETIRED
        library.drom_detach(handle)
