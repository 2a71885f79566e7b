# SPDX-License-Identifier: Apache-2.0
"""What another user does, in a process of theirs."""

from __future__ import annotations

import json
import os
import traceback
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

NOBODY = 65534


def as_user(do: Callable[[], Any], uid: int = NOBODY) -> Any:
    """Return what a function returns, a JSON value, in a process of another user."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            with open(writes, "w", encoding="utf-8") as out:
                json.dump(do(), out)
        except BaseException:  # noqa: BLE001 - the parent sees that nothing came
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writes)
    with open(reads, encoding="utf-8") as told:
        text = told.read()
    os.waitpid(child, 0)
    assert text, "the other user's process failed"
    return json.loads(text)
