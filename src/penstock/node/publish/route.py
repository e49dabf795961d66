"""From an exchange to parts: which queues messages go to, each queue's share of them ready to be appended."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.batch import EncodedBatch, check, select
from penstock.model import PAYLOAD_BYTES_MAX, Message, check_message
from penstock.model.errors import Unroutable
from penstock.node.catalog import Catalog
from penstock.node.publish.parts import Part
from penstock.node.publish.split import parts_of_batch, parts_of_messages


def route_message(catalog: Catalog, namespace: str, exchange: str, message: Message) -> list[Part]:
    """The parts of one message; raises `Unroutable` when no queue takes it."""
    return route_messages(catalog, namespace, exchange, [message], mandatory=True)


def route_messages(
    catalog: Catalog,
    namespace: str,
    exchange: str,
    messages: Sequence[Message],
    *,
    mandatory: bool,
    publish_id: str | None = None,
) -> list[Part]:
    """Parts for every queue that any of the messages reaches; a message's key decides, with its headers."""
    router = catalog.router(namespace)
    chosen: dict[str, list[int]] = {}
    for index, message in enumerate(messages):
        check_message(message)
        queues = router.route(exchange, message)
        if not queues and mandatory:
            raise Unroutable(f"exchange {exchange!r} has no queue for key {message.key!r}")
        for queue in queues:
            chosen.setdefault(queue, []).append(index)
    parts: list[Part] = []
    for name, indexes in chosen.items():
        share = messages if len(indexes) == len(messages) else [messages[index] for index in indexes]
        parts += parts_of_messages(catalog.queue(namespace, name), share, indexes, publish_id)
    return parts


def route_batch(
    catalog: Catalog,
    namespace: str,
    exchange: str,
    batch: EncodedBatch,
    *,
    mandatory: bool,
    publish_id: str | None = None,
) -> list[Part]:
    """The same for an encoded batch, by its columns; a queue that takes all of it stores it as it came."""
    meta = check(batch, PAYLOAD_BYTES_MAX)
    routed = catalog.router(namespace).route_batch(exchange, meta, batch.count)
    if mandatory and routed.unroutable:
        raise Unroutable(f"exchange {exchange!r} has no queue for {len(routed.unroutable)} of {batch.count} messages")
    parts: list[Part] = []
    for name, indexes in routed.queues.items():
        share = batch if len(indexes) == batch.count else select(batch, indexes)
        parts += parts_of_batch(catalog.queue(namespace, name), share, indexes, publish_id)
    return parts
