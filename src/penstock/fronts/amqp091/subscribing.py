"""basic.consume, cancel, get and qos: who takes messages from which queue, and on what terms.

Each function does what one method asks and gives the answer that is sent. Faults are raised.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pamqp.commands import Basic

from penstock.fronts.amqp091 import replies, streams
from penstock.fronts.amqp091.arguments import NOT_HONOURED, Arguments, flag, text, whole
from penstock.fronts.amqp091.consuming import Consumer, Standing
from penstock.fronts.amqp091.declaring import make_reply_queue, ready_in
from penstock.fronts.amqp091.errors import ChannelFault, ConnectionFault, not_implemented, precondition
from penstock.fronts.amqp091.mapping import counted, outgoing, routing_key
from penstock.fronts.amqp091.names import address_of, filter_of, new_name
from penstock.fronts.amqp091.settling import LEASE_SECONDS, ConsumerKey, Held
from penstock.fronts.answers import is_large
from penstock.fronts.key_filter import KeyFilter
from penstock.model import DEFAULT_GROUP, NAME_CHARACTERS_MAX, QueueConfig, make_config
from penstock.model.errors import ExclusiveConsumer, PenstockError
from penstock.wire.amqp091 import codes
from penstock.wire.amqp091.methods import make

if TYPE_CHECKING:
    from pamqp.base import Frame

    from penstock.fronts.amqp091.channel import Channel

PRIORITY_MAX: Final = 2**31 - 1


async def consume(channel: Channel, method: Basic.Consume) -> Frame | None:
    queue, rest = address_of(channel.queue_name(method.queue))
    if queue == replies.REPLY_TO:
        replies.check_consumer(channel, method)
    else:
        await channel.check_queue(queue)
    tag = method.consumer_tag or new_name("amq.ctag-")
    if tag in channel.consumers:
        raise ConnectionFault(codes.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
    if queue == replies.REPLY_TO:
        queue = await make_reply_queue(channel)
    consumer = await _consumer(channel, method, tag, queue, filter_of(rest))
    channel.consumers[tag] = consumer
    channel.connection.host.measures.consumers += 1
    if not method.nowait:
        channel.connection.wire.send(channel.number, make(Basic.ConsumeOk, consumer_tag=tag))
    consumer.start()  # so that nothing is delivered before the client knows the tag
    return None


async def _consumer(
    channel: Channel, method: Basic.Consume, tag: str, queue: str, wanted: KeyFilter | None
) -> Standing:
    """The consumer, attached to its queue."""
    left: Arguments = dict(method.arguments or {})
    options, groups = await channel.broker.queue_options(queue), await channel.broker.groups(queue)
    named = left.pop("x-consumer-group", None)
    group = DEFAULT_GROUP if named is None else text("x-consumer-group", named)
    if wanted is not None:
        group = f"{group}/{wanted.pattern}"
    if not 1 <= len(group) <= NAME_CHARACTERS_MAX:
        raise precondition(f"invalid arg 'x-consumer-group': {group!r} has {len(group)} characters")
    is_stream = options.get("stream", False) or groups.get(group, {}).get("kind") == "stream"
    priority = whole("x-priority", left.pop("x-priority", 0), -PRIORITY_MAX, PRIORITY_MAX)
    if is_stream:
        if named is None:
            group = ""
        return await _reader(
            channel, method, tag, ConsumerKey(queue, group, channel.new_place()), wanted, options, left
        )
    _check_none_left(left)
    skips_own = method.no_local and _check_no_local(options, method)
    if group != DEFAULT_GROUP and group not in groups:
        await channel.broker.declare_group(queue, group, filter=None if wanted is None else wanted.condition)
    place = ConsumerKey(queue, group, channel.new_place())
    await _attach(channel, place, method.exclusive)
    if skips_own:
        channel.connection.mark_own()
    return Consumer(
        channel,
        tag,
        place,
        no_ack=method.no_ack,
        prefetch=channel.consumer_prefetch,
        priority=priority,
        skips_own=skips_own,
        wanted=wanted,
        is_single=options.get("single_active_consumer", False),
        is_limited=_is_limited(options),
    )


def _is_limited(options: dict[str, Any]) -> bool:
    return make_config(QueueConfig, options).max_attempts > 0


def _check_none_left(left: Arguments) -> None:
    if left:
        raise precondition(f"invalid arg '{sorted(left)[0]}' for a consumer: {NOT_HONOURED}")


def _check_no_local(options: dict[str, Any], method: Basic.Consume) -> bool:
    """Refuse no-local unless queue or consumer is exclusive: what it drops, another consumer could want."""
    if not options.get("exclusive") and not method.exclusive:
        raise not_implemented("no-local on a queue that others may consume from; make the queue or consumer exclusive")
    return True


async def _attach(channel: Channel, place: ConsumerKey, exclusive: bool) -> None:
    try:
        await channel.broker.attach(place.queue, place.group, consumer=place.consumer, exclusive=exclusive)
    except ExclusiveConsumer as error:
        text = f"queue '{place.queue}' in vhost '{channel.vhost}' in exclusive use"
        raise ChannelFault(error.row.amqp091, text) from None


async def _reader(
    channel: Channel,
    method: Basic.Consume,
    tag: str,
    place: ConsumerKey,
    wanted: KeyFilter | None,
    options: dict[str, Any],
    left: Arguments,
) -> Standing:
    """A consumer of a stream."""
    broker, queue, group = channel.broker, place.queue, place.group
    start = None
    if "x-stream-offset" in left:
        start = streams.start_of(left.pop("x-stream-offset"), round(time.time() * 1000))
    commits = flag("x-auto-commit", left.pop("x-auto-commit", True))
    _check_none_left(left)
    if method.no_local:
        raise not_implemented("no-local on a stream")
    given: dict[str, Any] = {
        "no_ack": method.no_ack,
        "prefetch": channel.consumer_prefetch,
        "wanted": wanted,
        "primary": options.get("primary_group"),
    }
    if not group:
        if options.get("lanes", 1) > 1:
            raise precondition(f"queue '{queue}' has several lanes: read it with an x-consumer-group")
        offset = await streams.offset_of(broker, queue, start or streams.Start("last"))
        await _attach(channel, place, method.exclusive)
        return streams.FreeReader(channel, tag, place, offset=offset, **given)
    is_first = not channel.connection.host.reads(channel.connection.namespace, queue, group)
    await streams.prepare_group(broker, queue, group, start, commits=commits, wanted=wanted, is_first=is_first)
    await _attach(channel, place, method.exclusive)
    return streams.GroupReader(channel, tag, place, commits=commits, **given)


async def cancel(channel: Channel, method: Basic.Cancel) -> Frame | None:
    """What is delivered already stays with the client, to be settled."""
    consumer = channel.consumers.pop(method.consumer_tag or "", None)
    if consumer is not None:
        await channel.let_go(consumer)
    return None if method.nowait else make(Basic.CancelOk, consumer_tag=method.consumer_tag)


async def get(channel: Channel, method: Basic.Get) -> Frame | None:
    queue, rest = address_of(channel.queue_name(method.queue))
    await channel.check_queue(queue)
    if rest not in ("", "#"):
        raise precondition(f"'{method.queue}': basic.get knows no filter; consume with one")
    if (await channel.broker.queue_options(queue)).get("stream"):
        raise not_implemented(f"basic.get on the stream '{queue}'")
    place = ConsumerKey(queue, DEFAULT_GROUP, channel.getting_place)
    claim = await channel.broker.claim(
        queue,
        max=1,
        consumer=place.consumer,
        ack=method.no_ack,
        lease_seconds=None if method.no_ack else LEASE_SECONDS,
    )
    if not claim.slices:
        return make(Basic.GetEmpty)
    stats = await channel.broker.stats(queue)
    if is_large(claim):
        await channel.connection.backlog.admit(claim)
    if channel.is_closed:
        if claim.lease is not None:
            with suppress(PenstockError):
                await channel.broker.release(claim)
        return None
    [one] = claim.messages
    channel.delivery_tag += 1
    if claim.lease is not None:
        held = Held(channel.settling, claim.lease, place, None, 1, channel.connection.now())
        channel.settling.held.add(held)
        channel.settling.unacked[channel.delivery_tag] = (held, one.offset)
    exchange, properties = outgoing(one.message, one.published_ms)
    if one.attempt > 1 and _is_limited(await channel.broker.queue_options(queue)):
        properties = counted(properties, one.attempt)
    channel.connection.host.measures.delivered += 1
    channel.connection.wire.get_ok(
        channel.number,
        channel.delivery_tag,
        one.attempt > 1,
        exchange,
        routing_key(one.key),
        ready_in(stats),
        properties,
        one.payload,
    )
    return None


async def set_prefetch(channel: Channel, method: Basic.Qos) -> Frame:
    """As RabbitMQ has it: for consumers that come, each by itself; with `global`, for the channel as a whole."""
    if method.prefetch_size:
        raise not_implemented(f"prefetch_size {method.prefetch_size}: limit consumers by prefetch_count")
    if method.global_:
        channel.prefetch = method.prefetch_count
        channel.look()
    else:
        channel.consumer_prefetch = method.prefetch_count
    return make(Basic.QosOk)
