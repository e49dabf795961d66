"""Errors as MQTT reasons, from the catalogue (`model/errors.py`); and where this front logs."""

from __future__ import annotations

import logging
from typing import Final

from penstock.model.errors import PenstockError
from penstock.wire.mqtt.reasons import Reason

TEXT_CHARACTERS_MAX: Final = 500

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
