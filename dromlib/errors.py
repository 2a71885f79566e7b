# SPDX-License-Identifier: Apache-2.0
"""The base of drom's errors, apart from all else, so that it is cheap to import."""

from __future__ import annotations


class DromError(Exception):
    """The base of errors whose message is for users: one or more sentences, a line each, that say what to do."""
