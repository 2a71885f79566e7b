# SPDX-License-Identifier: Apache-2.0
"""Conversion of errors that a policy raises into sentences."""

from __future__ import annotations

import sys
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

from drom.scheduler.errors import SchedulerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drom.scheduler.engine.compiler import Policy


@contextmanager
def policy_errors_as_sentences(policy: Policy, now: Callable[[], int]) -> Iterator[None]:
    """Raise SchedulerError for any error that the policy raises, as plain Python or as machine code.

    Machine code that is called through a pointer cannot raise: numba passes its error to `sys.unraisablehook` and
    returns 0.
    """
    raised: list[BaseException | None] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda found: raised.append(found.exc_value)
    try:
        yield
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _name(policy)]
        if not lines:
            raise
        msg = f"Policy {policy.name}, at {now()} s: {_words(error)} ({policy.file or policy.name}, line {lines[-1]})."
        raise SchedulerError(msg) from error
    finally:
        sys.unraisablehook = before
    if raised:
        msg = f"Policy {policy.name}, at {now()} s: {_words(raised[0])}: set NUMBA_DISABLE_JIT=1 to see the line."
        raise SchedulerError(msg)


def _name(policy: Policy) -> str:
    return str(policy.source)


def _words(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"
