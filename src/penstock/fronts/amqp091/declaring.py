"""Exchanges, queues and bindings: declare, delete, bind, unbind, purge, with RabbitMQ's rules of what is equal.

Each function does what one method asks and gives the answer that is sent. Faults are raised. Next stop: the broker.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

from pamqp.commands import Exchange, Queue

from penstock.api.inspect import QueueStats
from penstock.fronts.amqp091 import replies
from penstock.fronts.amqp091.arguments import (
    Arguments,
    check_same,
    check_same_exchange,
    exchange_options,
    queue_options,
    text,
)
from penstock.fronts.amqp091.errors import ChannelFault, not_found, precondition
from penstock.fronts.amqp091.mapping import plain_headers
from penstock.fronts.amqp091.names import BUILT_IN, check_not_reserved, new_name, queue_of
from penstock.model import DEFAULT_GROUP, ExchangeConfig, Headers, QueueConfig, make_config
from penstock.model.errors import AlreadyExists, NotFound
from penstock.wire.amqp091 import codes
from penstock.wire.amqp091.methods import make

if TYPE_CHECKING:
    from pamqp.base import Frame

    from penstock.fronts.amqp091.channel import Channel

COUNT_MAX: Final = 2**32 - 1


# Exchanges -----------------------------------------------------------------------------------------------


async def have_exchange(channel: Channel, name: str) -> None:
    """The exchanges that are always there, are: made when one is first named."""
    if name in BUILT_IN and name not in await channel.broker.exchanges():
        with suppress(AlreadyExists):  # by another client just now, or long ago with other options
            await channel.broker.declare_exchange(name, kind=BUILT_IN[name])


async def declare_exchange(channel: Channel, method: Exchange.Declare) -> Frame | None:
    name, broker = method.exchange, channel.broker
    await have_exchange(channel, name)
    existing = (await broker.exchanges()).get(name)
    if method.passive:
        if existing is None and name:
            raise not_found("exchange", name, channel.vhost)
        return _answer(method, make(Exchange.DeclareOk))
    if not name:
        raise ChannelFault(codes.ACCESS_REFUSED, "operation not permitted on the default exchange")
    options = exchange_options(
        method.exchange_type,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
        arguments=_arguments(method.arguments),
    )
    if existing is None:
        check_not_reserved("exchange", name)
        with suppress(AlreadyExists):  # by another connection, a moment ago: compared below
            await broker.declare_exchange(name, **options)
        existing = (await broker.exchanges()).get(name, options)
    wanted = make_config(ExchangeConfig, options)
    check_same_exchange(name, channel.vhost, make_config(ExchangeConfig, existing), wanted)
    return _answer(method, make(Exchange.DeclareOk))


async def delete_exchange(channel: Channel, method: Exchange.Delete) -> Frame | None:
    name = method.exchange
    if not name or name in BUILT_IN:
        raise ChannelFault(codes.ACCESS_REFUSED, f"exchange '{name}' in vhost '{channel.vhost}' cannot be deleted")
    with suppress(NotFound):  # one that is not there is deleted already
        if method.if_unused and await channel.broker.bindings(name):
            raise precondition(f"exchange '{name}' in vhost '{channel.vhost}' in use")
        await channel.broker.delete_exchange(name)
    return _answer(method, make(Exchange.DeleteOk))


async def bind_exchange(channel: Channel, method: Exchange.Bind) -> Frame | None:
    await _bind(channel, method.source, method.destination, "exchange", method.routing_key, method.arguments)
    return _answer(method, make(Exchange.BindOk))


async def unbind_exchange(channel: Channel, method: Exchange.Unbind) -> Frame | None:
    await _unbind(channel, method.source, method.destination, "exchange", method.routing_key, method.arguments)
    return _answer(method, make(Exchange.UnbindOk))


# Bindings ------------------------------------------------------------------------------------------------

Kind = Literal["queue", "exchange"]


async def bind_queue(channel: Channel, method: Queue.Bind) -> Frame | None:
    queue = queue_of(channel.queue_name(method.queue))
    key = queue if not method.queue and not method.routing_key else method.routing_key
    await channel.check_queue(queue)
    await _bind(channel, method.exchange, queue, "queue", key, method.arguments)
    return _answer(method, make(Queue.BindOk))


async def unbind_queue(channel: Channel, method: Queue.Unbind) -> Frame | None:
    queue = queue_of(channel.queue_name(method.queue))
    await _unbind(channel, method.exchange, queue, "queue", method.routing_key, method.arguments)
    return make(Queue.UnbindOk)


async def _bind(channel: Channel, source: str, target: str, kind: Kind, key: str, arguments: Any) -> None:
    for name in (source, target) if kind == "exchange" else (source,):
        if not name:
            raise ChannelFault(codes.ACCESS_REFUSED, "operation not permitted on the default exchange")
        await have_exchange(channel, name)
        if name not in await channel.broker.exchanges():
            raise not_found("exchange", name, channel.vhost)
    headers, match = _matched(arguments)
    await channel.broker.bind(source, target, key, target_kind=kind, headers=headers, match=match)


async def _unbind(channel: Channel, source: str, target: str, kind: Kind, key: str, arguments: Any) -> None:
    if not source:
        raise ChannelFault(codes.ACCESS_REFUSED, "operation not permitted on the default exchange")
    headers, match = _matched(arguments)
    with suppress(NotFound):  # what is not bound is unbound already
        await channel.broker.unbind(source, target, key, target_kind=kind, headers=headers, match=match)


def _matched(arguments: Any) -> tuple[Headers | None, Literal["all", "any"]]:
    """Arguments of a binding: what a headers exchange asks for, all of it or any."""
    left = _arguments(arguments)
    match = text("x-match", left.pop("x-match", "all"))
    if match not in ("all", "any"):
        raise precondition(f"invalid arg 'x-match': {match!r} must be all or any")
    return plain_headers(left) or None, "any" if match == "any" else "all"


# Queues --------------------------------------------------------------------------------------------------


async def declare_queue(channel: Channel, method: Queue.Declare) -> Frame | None:
    name, broker = method.queue, channel.broker
    if replies.is_reply_queue(name):
        return _reply_queue_declared(channel, method)
    if method.passive:
        name = queue_of(channel.queue_name(name))
        await channel.check_queue(name)
        return await _declared(channel, method, name)
    options = queue_options(
        durable=method.durable,
        exclusive=method.exclusive,
        auto_delete=method.auto_delete,
        arguments=_arguments(method.arguments),
        keeps_transient=broker.is_shared,
    )
    if not name:
        name = new_name("amq.gen-")
    else:
        name = queue_of(name)
        if not await broker.has_queue(name):
            check_not_reserved("queue", name)
    if await broker.has_queue(name):
        existing = make_config(QueueConfig, await broker.queue_options(name))
        wanted = make_config(QueueConfig, options)
        check_same(name, channel.vhost, existing, wanted, is_transient_kept=broker.is_shared)
        await broker.declare_queue(name)  # it counts as a use
    else:
        await _make_queue(channel, name, options)
    return await _declared(channel, method, name)


async def _make_queue(channel: Channel, name: str, options: dict[str, Any]) -> None:
    await channel.broker.declare_queue(name, **options)
    if not options.get("stream"):
        # From now on messages wait for a consumer: they expire, are counted and dead-lettered before anybody comes.
        await channel.broker.declare_group(name, DEFAULT_GROUP)


async def make_reply_queue(channel: Channel) -> str:
    """A queue for the answers to one channel, which goes with its consumer; its name."""
    keeps_transient = channel.broker.is_shared
    options = queue_options(
        durable=False, exclusive=True, auto_delete=True, arguments={}, keeps_transient=keeps_transient
    )
    name = new_name(replies.PREFIX)
    await _make_queue(channel, name, options)
    return name


def _reply_queue_declared(channel: Channel, method: Queue.Declare) -> Frame | None:
    """A replier may ask this way whether anybody still waits, although the queue belongs to another."""
    name = method.queue
    if name != replies.REPLY_TO and not channel.broker.knows_queue(name, "publish"):
        raise not_found("queue", name, channel.vhost)
    return _answer(method, make(Queue.DeclareOk, queue=name, message_count=0, consumer_count=1))


async def _declared(channel: Channel, method: Queue.Declare, name: str) -> Frame | None:
    channel.last_queue = name
    if method.nowait:
        return None
    stats = await channel.broker.stats(name)
    told = method.queue or name  # clients look for the answer to what they have asked
    return make(Queue.DeclareOk, queue=told, message_count=ready_in(stats), consumer_count=stats.consumers)


def ready_in(stats: QueueStats) -> int:
    """Messages that could be delivered now; of a stream, those that are kept."""
    ready = next((group.ready for group in stats.groups if group.group == DEFAULT_GROUP), stats.messages)
    return min(ready, COUNT_MAX)


async def delete_queue(channel: Channel, method: Queue.Delete) -> Frame | None:
    name, broker = queue_of(channel.queue_name(method.queue)), channel.broker
    if not await broker.has_queue(name):
        return _answer(method, make(Queue.DeleteOk, message_count=0))
    await channel.check_queue(name)
    stats = await broker.stats(name)
    if method.if_unused and stats.consumers:
        raise precondition(f"queue '{name}' in vhost '{channel.vhost}' in use")
    if method.if_empty and ready_in(stats):
        raise precondition(f"queue '{name}' in vhost '{channel.vhost}' is not empty")
    with suppress(NotFound):
        await broker.delete_queue(name)
    channel.connection.host.queue_deleted()
    return _answer(method, make(Queue.DeleteOk, message_count=ready_in(stats)))


async def purge_queue(channel: Channel, method: Queue.Purge) -> Frame | None:
    name = queue_of(channel.queue_name(method.queue))
    await channel.check_queue(name)
    if (await channel.broker.queue_options(name)).get("stream"):
        raise precondition(f"queue '{name}' is a stream, which cannot be purged")
    count = await channel.broker.purge(name)
    return _answer(method, make(Queue.PurgeOk, message_count=min(count, COUNT_MAX)))


def _answer(method: Any, answer: Frame) -> Frame | None:
    return None if method.nowait else answer


def _arguments(arguments: Any) -> Arguments:
    return dict(arguments or {})
