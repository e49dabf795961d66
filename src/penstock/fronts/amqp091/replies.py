"""Direct reply-to: a client consumes from `amq.rabbitmq.reply-to`, and is answered without declaring a queue for it.

The channel gets a queue of its own with an unguessable name; it is exclusive, and goes with its consumer. A
question that says `amq.rabbitmq.reply-to` leaves with that name instead, so that any client, by any node and protocol,
can answer it. Knows the broker through its channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.fronts.amqp091.errors import precondition
from penstock.wire.amqp091.properties import Properties

if TYPE_CHECKING:
    from pamqp.commands import Basic

    from penstock.fronts.amqp091.channel import Channel

REPLY_TO: Final = "amq.rabbitmq.reply-to"
REPLY_TO_BYTES: Final = REPLY_TO.encode()
PREFIX: Final = REPLY_TO + "."


def is_reply_queue(name: str) -> bool:
    """Whether it is the queue of a channel that waits for answers, or what such a channel calls it."""
    return name == REPLY_TO or name.startswith(PREFIX)


def reply_queue(channel: Channel) -> str | None:
    """Where the channel is answered, while it waits for answers."""
    queues = (consumer.place.queue for consumer in channel.consumers.values())
    return next((queue for queue in queues if queue.startswith(PREFIX)), None)


def check_consumer(channel: Channel, method: Basic.Consume) -> None:
    """Raise where a channel may not wait for answers like this."""
    if not method.no_ack:
        raise precondition("reply consumer cannot acknowledge: consume from it with no_ack (auto_ack) set")
    if reply_queue(channel) is not None:
        raise precondition("reply consumer already set: a channel has one at the most")


def addressed(channel: Channel, properties: bytes) -> bytes:
    """The properties of a question, with the place where its channel is answered."""
    known = Properties(properties)
    if known.reply_to != REPLY_TO:
        return properties
    queue = reply_queue(channel)
    if queue is None:
        raise precondition(f"fast reply consumer does not exist: consume from '{REPLY_TO}' on this channel before")
    return known.replaced(reply_to=queue)
