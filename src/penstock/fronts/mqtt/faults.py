"""What the broker refuses, as the reason that MQTT has for it; and where this front logs."""

from __future__ import annotations

import logging
from typing import Final

from penstock.errors import (
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

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text[:TEXT_CHARACTERS_MAX]


def refusal_of(error: Exception) -> Refusal:
    """The same for what the broker raised."""
    return error if isinstance(error, Refusal) else Refusal(_reason(error), str(error))


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
