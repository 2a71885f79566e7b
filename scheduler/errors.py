# SPDX-License-Identifier: Apache-2.0
"""The error of this package, apart from what needs numpy, so that a command line can name it cheaply."""

from __future__ import annotations

from dromlib.errors import DromError


class SchedulerError(DromError, ValueError):
    """Raised when a policy, an option or a saved run cannot be used; the text is one sentence that says what to do."""
