# SPDX-License-Identifier: Apache-2.0
"""Errors that several modules raise."""

from __future__ import annotations


class Refused(Exception):  # noqa: N818 - a decision that is told to a person, not a fault
    """Raised when the node cannot do what was asked; the message is a sentence that says what to do."""


class ControlError(Exception):
    """Raised when an order was refused or no agent answers; the message is a sentence for people."""


class RefusedError(ControlError):
    """Raised when an order was heard and refused: it would be again."""


class NotYetError(ControlError):
    """Raised when an order cannot be taken now and can be soon: the same one may be given again then."""
