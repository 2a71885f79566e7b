# SPDX-License-Identifier: Apache-2.0
"""Errors that several modules raise."""

from __future__ import annotations

from dromlib.errors import DromError


class Refused(DromError):  # noqa: N818 - a decision that is reported to a person, not a fault
    """Raised when the node cannot do what was requested; the message is a sentence that says what to do."""


class ControlError(DromError):
    """Raised when an order was refused or no agent answers; the message is a sentence for users."""


class RefusedError(ControlError):
    """Raised when the agent received an order and refused it: the same order would be refused again."""


class UnreachableError(ControlError):
    """Raised when nothing listens where an order should go: it was not sent."""


class NotYetError(ControlError):
    """Raised when an order cannot be accepted now but can be soon: the same order may be sent again then."""


class ElsewhereError(NotYetError):
    """Raised when another scheduler accepts the order; the message names it."""


class SlurmError(DromError):
    """Raised when Slurm cannot be read or refuses something; the message is a sentence that says what to do."""
