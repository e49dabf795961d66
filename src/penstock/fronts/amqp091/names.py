"""Names that mean something: `amq.…`, vhosts, and the addresses `$queue/<name>/<key or filter>` of queues.

A filter after a queue's name is an MQTT one, on the message's key: see `fronts/key_filter.py`.
"""

from __future__ import annotations

import secrets
from typing import Final

from penstock.fronts.amqp091.errors import ChannelFault, precondition
from penstock.fronts.key_filter import KeyFilter, key_filter
from penstock.model import DEFAULT_NAMESPACE
from penstock.model.options import ExchangeKind
from penstock.wire.amqp091 import codes

QUEUE_PREFIX: Final = "$queue/"
RESERVED: Final = "amq."
COMMIT: Final = "$commit"
BUILT_IN: Final[dict[str, ExchangeKind]] = {
    "amq.direct": "direct",
    "amq.topic": "topic",
    "amq.fanout": "fanout",
    "amq.headers": "headers",
    "amq.match": "headers",
}
"""Exchanges that every namespace has, made when they are first named."""


def namespace_of(vhost: str) -> str:
    """`/` is the namespace `default`; any other vhost the namespace of its name."""
    return DEFAULT_NAMESPACE if vhost == "/" else vhost


def new_name(prefix: str) -> str:
    """A name that no other has, as RabbitMQ makes them."""
    return prefix + secrets.token_urlsafe(16)


def check_not_reserved(what: str, name: str) -> None:
    """Raise where a client would declare what only the server may."""
    if name.startswith(RESERVED):
        raise ChannelFault(codes.ACCESS_REFUSED, f"{what} name '{name}' contains reserved prefix 'amq.*'")


def address_of(name: str) -> tuple[str, str]:
    """`$queue/<name>/<rest>`, or the plain name of a queue; the rest is a key to publish under or a filter."""
    if not name.startswith(QUEUE_PREFIX):
        return name, ""
    queue, _, rest = name[len(QUEUE_PREFIX) :].partition("/")
    if not queue:
        raise precondition(f"'{name}' names no queue; write $queue/<name> or $queue/<name>/<key>")
    return queue, rest


def queue_of(name: str) -> str:
    """A queue where only a queue can stand."""
    queue, rest = address_of(name)
    if rest not in ("", "#"):
        raise precondition(f"'{name}' has a filter after the queue's name, which only a consumer can have")
    return queue


def filter_of(pattern: str) -> KeyFilter | None:
    """The filter after a queue's name; None where it lets everything through."""
    found = key_filter(pattern)
    return None if found.condition is None else found
