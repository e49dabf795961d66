"""What the broker refuses, as the reason that MQTT has for it; and where this front logs."""

from __future__ import annotations

import logging
from typing import Final

from penstock.model.errors import (
    Forbidden,
    InvalidArgument,
    MessageTooLarge,
    NotFound,
    Overloaded,
    PenstockError,
    QueueFull,
    Unavailable,
)
from penstock.wire.mqtt.reasons import Reason

TEXT_CHARACTERS_MAX: Final = 500

log = logging.getLogger("penstock.mqtt")


class Refusal(Exception):
    """A client asks for something that it cannot have: the reason, and what was wrong."""

    def __init__(self, reason: Reason, text: str, *, is_unsure: bool = False) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text[:TEXT_CHARACTERS_MAX]
        self.is_unsure = is_unsure
        """Whether it may have been carried out all the same: the store did not say."""


def refusal_of(error: Exception) -> Refusal:
    """The same for what the broker raised."""
    if isinstance(error, Refusal):
        return error
    return Refusal(_reason(error), str(error), is_unsure=isinstance(error, Unavailable))


def _reason(error: Exception) -> Reason:
    if isinstance(error, QueueFull | Overloaded | MessageTooLarge | Unavailable):
        return Reason.QUOTA_EXCEEDED  # the one that says: not now, or not so much
    if isinstance(error, NotFound):
        return Reason.TOPIC_NAME_INVALID
    if isinstance(error, Forbidden):
        return Reason.NOT_AUTHORIZED
    if isinstance(error, InvalidArgument | PenstockError):
        return Reason.IMPLEMENTATION_SPECIFIC_ERROR
    return Reason.UNSPECIFIED_ERROR
