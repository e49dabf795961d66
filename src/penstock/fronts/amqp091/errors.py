"""Errors as AMQP replies: those that close a channel, and those that close the connection.

What the broker raises has its reply code in the catalogue (`model/errors.py`); what only AMQP can get wrong is raised
here, with the codes of the specification. Knows no socket: `channel.py` and `connection.py` do the closing.
"""

from __future__ import annotations

from typing import Final

from penstock.model.errors import PenstockError
from penstock.wire.amqp091 import codes


class ChannelFault(Exception):
    """Closes the channel, and only it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code: Final = code
        self.text: Final = text


class ConnectionFault(ChannelFault):
    """Closes the connection."""


def fault_of(error: PenstockError) -> ChannelFault:
    """The reply to what the broker raised."""
    kind = ConnectionFault if error.row.closes == "connection" else ChannelFault
    return kind(error.row.amqp091, str(error))


def not_found(what: str, name: str, vhost: str) -> ChannelFault:
    return ChannelFault(codes.NOT_FOUND, f"no {what} '{name}' in vhost '{vhost}'")


def precondition(text: str) -> ChannelFault:
    return ChannelFault(codes.PRECONDITION_FAILED, text)


def not_implemented(text: str) -> ConnectionFault:
    return ConnectionFault(codes.NOT_IMPLEMENTED, text)
