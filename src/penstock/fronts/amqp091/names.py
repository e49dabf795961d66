"""Names that mean something: `amq.…`, vhosts, and the addresses `$queue/<name>/<key or filter>` of queues.

A filter after a queue's name is an MQTT one, on the message's key: it becomes the condition of a consumer group, and a
check of our own where a condition cannot say exactly the same.
"""

from __future__ import annotations

import re
import secrets
from base64 import urlsafe_b64encode
from typing import Final, NamedTuple

from penstock.fronts.amqp091.errors import ChannelFault, precondition
from penstock.model import DEFAULT_NAMESPACE
from penstock.model.options import ExchangeKind
from penstock.wire.amqp091 import codes

QUEUE_PREFIX: Final = "$queue/"
RESERVED: Final = "amq."
COMMIT: Final = "$commit"
BUILT_IN: Final[dict[str, ExchangeKind]] = {
    "amq.direct": "direct", "amq.topic": "topic", "amq.fanout": "fanout", "amq.headers": "headers",
    "amq.match": "headers",
}  # fmt: skip
"""Exchanges that every namespace has, made when they are first named."""


def namespace_of(vhost: str) -> str:
    """`/` is the namespace `default`; any other vhost the namespace of its name."""
    return DEFAULT_NAMESPACE if vhost == "/" else vhost


def new_queue_name() -> str:
    return "amq.gen-" + urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")


def new_consumer_tag() -> str:
    return "amq.ctag-" + urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")


def check_not_reserved(what: str, name: str) -> None:
    """Raise where a client would declare what only the server may."""
    if name.startswith(RESERVED):
        raise ChannelFault(codes.ACCESS_REFUSED, f"{what} name '{name}' contains reserved prefix 'amq.*'")


class Address(NamedTuple):
    """A queue, and what of it: a key to publish under, or a filter to consume with."""

    queue: str
    rest: str


def address_of(name: str) -> Address:
    """`$queue/<name>/<rest>`, or the plain name of a queue."""
    if not name.startswith(QUEUE_PREFIX):
        return Address(name, "")
    queue, _, rest = name[len(QUEUE_PREFIX) :].partition("/")
    if not queue:
        raise precondition(f"'{name}' names no queue; write $queue/<name> or $queue/<name>/<key>")
    return Address(queue, rest)


def queue_of(name: str) -> str:
    """A queue where only a queue can stand."""
    queue, rest = address_of(name)
    if rest not in ("", "#"):
        raise precondition(f"'{name}' has a filter after the queue's name, which only a consumer can have")
    return queue


# Filters -------------------------------------------------------------------------------------------------


class Filter(NamedTuple):
    """An MQTT filter on keys."""

    text: str
    condition: str
    """What a group is given: never leaves out a message that matches."""
    is_exact: bool
    """Whether it lets no other through."""
    pattern: re.Pattern[str]

    def matches(self, key: str | None) -> bool:
        return self.pattern.fullmatch(key or "") is not None


def filter_of(text: str) -> Filter | None:
    """The filter after a queue's name; None where it lets everything through."""
    if text in ("", "#"):
        return None
    levels = text.split("/")
    for index, level in enumerate(levels):
        if ("#" in level and (level != "#" or index != len(levels) - 1)) or ("+" in level and level != "+"):
            raise precondition(f"'{text}' is no filter: + stands for a level, # for all levels at the end")
    open_ended = levels[-1] == "#"
    known = levels[:-1] if open_ended else levels
    shape = "/".join("[^/]*" if level == "+" else re.escape(level) for level in known)
    pattern = re.compile(shape + "(/.*)?" if open_ended else shape, re.DOTALL)
    is_exact = not open_ended or "+" not in known
    return Filter(text, _condition(known, open_ended), is_exact, pattern)


def _condition(known: list[str], open_ended: bool) -> str:
    """On the key: with + before a last #, it lets some through that only look alike."""
    if "+" not in known:
        whole = "/".join(known)
        under = f" OR $key LIKE '{_like(whole)}/%' ESCAPE '\\'" if open_ended else ""
        return f"$key = '{_quoted(whole)}'{under}"
    shape = "/".join("%" if level == "+" else _like(level) for level in known)
    if open_ended:
        return f"$key LIKE '{shape}' ESCAPE '\\' OR $key LIKE '{shape}/%' ESCAPE '\\'"
    # As many slashes as levels but one, all of them accounted for: no % can hold one.
    deeper = "%/" * len(known) + "%"
    return f"$key LIKE '{shape}' ESCAPE '\\' AND NOT $key LIKE '{deeper}'"


def _quoted(text: str) -> str:
    return text.replace("'", "''")


def _like(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return _quoted(escaped)
