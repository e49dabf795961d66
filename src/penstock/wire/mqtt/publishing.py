"""PUBLISH towards subscribers: encoded once, sent to many."""

from __future__ import annotations

from penstock.wire.mqtt.packets import NO_PROPERTIES, PublishProperties


class EncodedPublish:
    """A message as it goes to subscribers, encoded when the first needs it and kept for the next."""

    def __init__(self, topic: str, payload: bytes, properties: PublishProperties = NO_PROPERTIES) -> None: ...
