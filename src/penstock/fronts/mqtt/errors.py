"""Errors as MQTT reasons, from the catalogue (`model/errors.py`); and where this front logs."""

from __future__ import annotations

import logging
from typing import Final

from penstock.model.errors import PenstockError
from penstock.wire.mqtt.reasons import Reason

TEXT_CHARACTERS_MAX: Final = 500

SUBACK_REASONS: Final = frozenset(
    {
        Reason.UNSPECIFIED_ERROR,
        Reason.IMPLEMENTATION_SPECIFIC_ERROR,
        Reason.NOT_AUTHORIZED,
        Reason.TOPIC_FILTER_INVALID,
        Reason.QUOTA_EXCEEDED,
    }
)
"""Of the reasons that this front gives, those that a SUBACK may carry."""
UNSUBACK_REASONS: Final = SUBACK_REASONS - {Reason.QUOTA_EXCEEDED}

log = logging.getLogger("penstock.mqtt")


class Refusal(Exception):
    """A client cannot have what it asks for: the reason, and what was wrong."""

    def __init__(self, reason: Reason, text: str, *, is_unsure: bool = False) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text[:TEXT_CHARACTERS_MAX]
        self.is_unsure = is_unsure
        """It may have been carried out all the same."""


def refusal_of(error: Exception) -> Refusal:
    """The refusal for what the broker raised."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, PenstockError):
        return Refusal(Reason(error.row.mqtt), str(error), is_unsure=error.row.may_be_done)
    return Refusal(Reason.UNSPECIFIED_ERROR, str(error))


def connack_reason(error: PenstockError) -> Reason:
    """A CONNACK has a reason of its own for what may pass; the one for a name that is not known is about the will."""
    if error.row.retryable:
        return Reason.SERVER_UNAVAILABLE
    reason = refusal_of(error).reason
    return Reason.UNSPECIFIED_ERROR if reason == Reason.TOPIC_NAME_INVALID else reason


def suback_reason(error: Exception) -> Reason:
    """The reason for what the broker raised or this front refused, as a SUBACK can give it."""
    return _about_a_filter(error, SUBACK_REASONS)


def unsuback_reason(error: Exception) -> Reason:
    """The same of an UNSUBACK, which has fewer."""
    return _about_a_filter(error, UNSUBACK_REASONS)


def _about_a_filter(error: Exception, allowed: frozenset[Reason]) -> Reason:
    reason = refusal_of(error).reason
    if reason == Reason.TOPIC_NAME_INVALID:
        reason = Reason.TOPIC_FILTER_INVALID
    return reason if reason in allowed else Reason.UNSPECIFIED_ERROR
