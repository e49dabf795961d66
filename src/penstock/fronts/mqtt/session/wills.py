"""A will as something to publish."""

from __future__ import annotations

from penstock.fronts.mqtt.errors import Refusal
from penstock.fronts.mqtt.mapping import Publisher
from penstock.fronts.mqtt.publishing import Wanted, address
from penstock.model import Message
from penstock.wire.mqtt.packets import Will


def wanted_will(client_id: str, will: Will, rows: tuple[Message, ...]) -> Wanted:
    """The will of a client, with what is to be recorded in the same commit."""
    try:
        queue, key = address(will.topic)
    except Refusal as refusal:
        return Wanted(will.topic, None, rows=rows, refusal=refusal)
    message = Publisher(client_id).message(key, will.payload, will.qos, will.retain, will.properties)
    return Wanted(will.topic, message, retain=will.retain and not queue, rows=rows, queue=queue)
