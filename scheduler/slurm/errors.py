# SPDX-License-Identifier: Apache-2.0
"""The error of this package."""

from __future__ import annotations

from dromlib.errors import DromError


class SlurmError(DromError):
    """Raised when Slurm cannot be read; the message is a sentence that says what to do."""
