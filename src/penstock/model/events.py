"""Delivery events: what happened to a group's messages in one commit, as ranges: the payloads of `$events`.

Events of one kind, consumer and attempt are one record with several ranges, so a commit with a thousand acks is
still one small message. `core/group/state.py` collects them.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Kind = Literal[
    "claimed",
    "acked",
    "nacked",
    "released",
    "postponed",
    "expired",
    "left",
    "dead",
    "dropped",
    "redriven",
    "purged",
    "sought",
    "committed",
]


class Event(msgspec.Struct, omit_defaults=True):
    """Ranges [start, end) to which the same thing happened at about the same time."""

    kind: Kind
    ranges: list[tuple[int, int]]
    at_ms: int
    consumer: str = ""
    attempt: int = 0
    detail: str = ""


class Delivery(msgspec.Struct):
    """The payload of one `$events` message: one group's events on one lane in one commit."""

    namespace: str
    queue: str
    lane: int
    """The lane's place in its queue, from 0 on."""
    group: str
    events: list[Event]
    queue_id: int = 0
    """Tells a queue from one of the same name that was deleted before it: their lanes and offsets are alike."""


_encoder: Final = msgspec.json.Encoder()


def encode_delivery(delivery: Delivery) -> bytes:
    return _encoder.encode(delivery)


def decode_delivery(payload: bytes) -> Delivery:
    return msgspec.json.decode(payload, type=Delivery)
