"""Arguments of queues, exchanges and consumers, as options of the broker. One that is not honoured is refused.

Also the other way: what a queue that exists differs in from what a client declares, in the client's words. Knows no
socket and no broker; docs/protocols.md lists what is known here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from penstock.fronts.amqp091.errors import ChannelFault, ConnectionFault, precondition
from penstock.model import INTEGER_MAX, SPAN_MS_MAX, ExchangeConfig, QueueConfig
from penstock.model.limits import ATTEMPTS_MAX, PRIORITY_MAX
from penstock.wire.amqp091 import codes

DELIVERY_LIMIT: Final = 20
"""For quorum queues that name none, as in RabbitMQ."""
SPAN_UNITS_MS: Final = {
    "Y": 365 * 86_400_000,
    "M": 30 * 86_400_000,
    "D": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
}
NOT_HONOURED: Final = "it is not supported, so it is refused; leave it out"
_SPAN: Final = re.compile(r"([0-9]{1,9})([YMDhms])")

Arguments = dict[str, Any]


def whole(name: str, value: Any, low: int, high: int) -> int:
    """A whole number within its limits."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise precondition(f"invalid arg '{name}': {value!r} must be a whole number")
    if not low <= value <= high:
        raise precondition(f"invalid arg '{name}': {value} must be {low} to {high}")
    return int(value)


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise precondition(f"invalid arg '{name}': {value!r} must be text")
    return value


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise precondition(f"invalid arg '{name}': {value!r} must be true or false")
    return value


def span_ms(name: str, value: Any) -> int:
    """`7D`, `12h` …: a number with one of the units that RabbitMQ has."""
    match = _SPAN.fullmatch(text(name, value))
    if match is None:
        raise precondition(f"invalid arg '{name}': {value!r} must be a number and a unit, one of Y, M, D, h, m, s")
    return min(int(match[1]) * SPAN_UNITS_MS[match[2]], SPAN_MS_MAX)


# Queues --------------------------------------------------------------------------------------------------


def queue_options(
    *, durable: bool, exclusive: bool, auto_delete: bool, arguments: Arguments, keeps_transient: bool
) -> dict[str, Any]:
    """The options of a queue; raises a fault for an argument that cannot be honoured.

    `keeps_transient`: among several nodes a queue in memory could not be bound, so one that is not durable is stored.
    """
    left = dict(arguments)
    kind = text("x-queue-type", left.pop("x-queue-type", "classic"))
    if kind not in ("classic", "quorum", "stream"):
        raise precondition(f"invalid arg 'x-queue-type': {kind!r} must be classic, quorum or stream")
    options: dict[str, Any] = {
        "ephemeral": not durable and not keeps_transient,
        "exclusive": exclusive,
        "auto_delete": auto_delete,
        "max_attempts": 0,
        "backoff_ms": 0,
    }
    if kind != "classic" and (not durable or exclusive or auto_delete):
        raise precondition(f"a {kind} queue must be durable, not exclusive and not auto-delete")
    if kind == "stream":
        _take_stream(options, left)
    else:
        _take_work(options, left, kind)
    if left:
        name = sorted(left)[0]
        raise precondition(f"invalid arg '{name}' for a {kind} queue: {NOT_HONOURED}")
    return options


def _take_stream(options: dict[str, Any], left: Arguments) -> None:
    options["stream"] = True
    if "x-max-age" in left:
        options["retain_ms"] = span_ms("x-max-age", left.pop("x-max-age"))
    if "x-max-length" in left:
        options["retain_messages"] = whole("x-max-length", left.pop("x-max-length"), 0, INTEGER_MAX)
    if "x-max-length-bytes" in left:
        options["retain_bytes"] = whole("x-max-length-bytes", left.pop("x-max-length-bytes"), 0, INTEGER_MAX)


def _take_work(options: dict[str, Any], left: Arguments, kind: str) -> None:
    for name, option, low, high in (
        ("x-message-ttl", "ttl_ms", 0, SPAN_MS_MAX),
        ("x-expires", "unused_ms", 1, SPAN_MS_MAX),
        ("x-max-length", "max_length", 0, INTEGER_MAX),
        ("x-max-length-bytes", "max_bytes", 0, INTEGER_MAX),
    ):
        if name in left:
            options[option] = whole(name, left.pop(name), low, high)
    if "x-max-priority" in left:
        options["prioritized"] = True
        options["priority_max"] = whole("x-max-priority", left.pop("x-max-priority"), 1, PRIORITY_MAX)
    if "x-single-active-consumer" in left:
        value = left.pop("x-single-active-consumer")
        options["single_active_consumer"] = flag("x-single-active-consumer", value)
    if "x-delivery-limit" in left or kind == "quorum":
        limit = whole("x-delivery-limit", left.pop("x-delivery-limit", DELIVERY_LIMIT), -1, ATTEMPTS_MAX - 1)
        options["max_attempts"] = limit + 1  # -1 is no limit, as 0 attempts are
    _take_dead_letters(options, left)
    _take_overflow(options, left)


def _take_dead_letters(options: dict[str, Any], left: Arguments) -> None:
    exchange = left.pop("x-dead-letter-exchange", None)
    key = left.pop("x-dead-letter-routing-key", None)
    if exchange is None:
        if key is not None:
            raise precondition("invalid arg 'x-dead-letter-routing-key': it needs an x-dead-letter-exchange")
        return
    name = text("x-dead-letter-exchange", exchange)
    if "/" in name:
        raise precondition(f"invalid arg 'x-dead-letter-exchange': {name!r} has a slash, which cannot be honoured")
    options["dead_letter_to"] = f"exchange:{name}"
    if key is not None:
        options["dead_letter_to"] += f"/{text('x-dead-letter-routing-key', key)}"
    options["dead_kept"] = False
    options["expired"] = "dead"


def _take_overflow(options: dict[str, Any], left: Arguments) -> None:
    overflow = text("x-overflow", left.pop("x-overflow", "drop-head"))
    if overflow == "reject-publish":
        options["overflow"] = "reject"
    elif overflow == "drop-head":
        options["overflow"] = "dead_letter_oldest" if "dead_letter_to" in options else "drop_oldest"
    else:
        raise precondition(f"invalid arg 'x-overflow': {overflow!r} must be drop-head or reject-publish")


def _dead_letters(config: QueueConfig) -> tuple[str | None, str | None]:
    kind, _, rest = (config.dead_letter_to or "").partition(":")
    if kind == "queue":
        return "", rest
    name, slash, key = rest.partition("/")
    return (name, key if slash else None) if kind == "exchange" else (None, None)


def _overflow(config: QueueConfig) -> str | None:
    if config.max_length is None and config.max_bytes is None:
        return None
    return "reject-publish" if config.overflow == "reject" else "drop-head"


Said = Callable[[QueueConfig], Any]

_SAID: Final[dict[str, Said]] = {
    "durable": lambda config: not config.ephemeral,
    "exclusive": lambda config: config.exclusive,
    "auto_delete": lambda config: config.auto_delete,
    "x-queue-type": lambda config: "stream" if config.stream else "classic",
    "x-message-ttl": lambda config: config.ttl_ms,
    "x-expires": lambda config: config.unused_ms,
    "x-max-length": lambda config: config.retain_messages if config.stream else config.max_length,
    "x-max-length-bytes": lambda config: config.retain_bytes if config.stream else config.max_bytes,
    "x-max-age": lambda config: config.retain_ms,
    "x-max-priority": lambda config: config.priority_max if config.prioritized else None,
    "x-single-active-consumer": lambda config: config.single_active_consumer,
    "x-dead-letter-exchange": lambda config: _dead_letters(config)[0],
    "x-dead-letter-routing-key": lambda config: _dead_letters(config)[1],
    "x-overflow": _overflow,
    "x-delivery-limit": lambda config: config.max_attempts - 1 if config.max_attempts else None,
}
"""Each argument, as it would be declared for a queue with these options."""


def check_same(
    name: str, vhost: str, existing: QueueConfig, wanted: QueueConfig, *, is_transient_kept: bool = False
) -> None:
    """Raise the fault that RabbitMQ raises where a queue is declared with other properties than it has."""
    plain = QueueConfig()
    is_plain = (existing.max_attempts, existing.backoff_ms) == (plain.max_attempts, plain.backoff_ms)
    for argument, said in _SAID.items():
        if argument == "x-delivery-limit" and is_plain:
            # Declared over another protocol without this option: AMQP has no value for the broker's default.
            continue
        if argument == "durable" and is_transient_kept:
            continue
        now, then = said(wanted), said(existing)
        if now != then:
            raise inequivalent(argument, "queue", name, vhost, now, then)


def inequivalent(argument: str, what: str, name: str, vhost: str, received: Any, current: Any) -> ChannelFault:
    return precondition(
        f"inequivalent arg '{argument}' for {what} '{name}' in vhost '{vhost}': "
        f"received {_word(received)} but current is {_word(current)}"
    )


def _word(value: Any) -> str:
    if value is None:
        return "none"
    return f"'{str(value).lower() if isinstance(value, bool) else value}'"


# Exchanges -----------------------------------------------------------------------------------------------

EXCHANGE_KINDS: Final = ("direct", "topic", "fanout", "headers", "filter", "mqtt")


def exchange_options(
    kind: str, *, durable: bool, auto_delete: bool, internal: bool, arguments: Arguments
) -> dict[str, Any]:
    """The options of an exchange; raises a fault for what cannot be honoured."""
    if kind not in EXCHANGE_KINDS:
        there = ", ".join(EXCHANGE_KINDS)
        raise ConnectionFault(codes.COMMAND_INVALID, f"unknown exchange type '{kind}'; there are {there}")
    left = dict(arguments)
    options: dict[str, Any] = {
        "kind": kind,
        "ephemeral": not durable,
        "auto_delete": auto_delete,
        "internal": internal,
    }
    if "alternate-exchange" in left:
        options["alternate"] = text("alternate-exchange", left.pop("alternate-exchange"))
    if left:
        name = sorted(left)[0]
        raise precondition(f"invalid arg '{name}' for an exchange: {NOT_HONOURED}")
    return options


def check_same_exchange(name: str, vhost: str, existing: ExchangeConfig, wanted: ExchangeConfig) -> None:
    for argument, option in (
        ("type", "kind"),
        ("durable", "ephemeral"),
        ("auto_delete", "auto_delete"),
        ("internal", "internal"),
        ("alternate-exchange", "alternate"),
    ):
        now, then = getattr(wanted, option), getattr(existing, option)
        if now != then:
            if option == "ephemeral":
                now, then = not now, not then
            raise inequivalent(argument, "exchange", name, vhost, now, then)
