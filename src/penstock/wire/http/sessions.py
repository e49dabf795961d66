"""Shapes of sessions over HTTP."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from penstock.model.limits import SESSION_SECONDS_MAX, SESSION_SECONDS_MIN


class SessionRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: Annotated[float, Meta(ge=SESSION_SECONDS_MIN, le=SESSION_SECONDS_MAX)] = 30.0
    """The session ends when no request has named it for so long."""


class SessionAnswer(Struct, frozen=True, kw_only=True):
    id: str
    """What requests name as `session`. Anyone who knows it may use the session: keep it secret."""
    consumer: str
    """The name under which the session claims, for everybody to see."""
    seconds: float
