# SPDX-License-Identifier: Apache-2.0
"""The base of drom's errors, apart from all else, so that it is cheap to import."""

from __future__ import annotations


class DromError(Exception):
    """Base of the errors with a message for users: one or more sentences, one per line, that say what to do."""
