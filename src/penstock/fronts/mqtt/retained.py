"""Retained messages: the last one of each topic that was published with retain, durable and known to every node.

A table of which the keys are topics. Whoever publishes puts `row` into the transaction of the publish itself; whoever
subscribes asks `matching`. Both first let the table catch up, so what was answered before is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.api.front_broker import FrontBroker
from penstock.api.slices import in_turns
from penstock.fronts.mqtt.errors import Refusal
from penstock.fronts.mqtt.subscription.topic_tree import TopicTree
from penstock.fronts.mqtt.table import Table
from penstock.model import Message
from penstock.model.work import MESSAGE_WORK, Budget
from penstock.wire.mqtt.reasons import Reason

QUEUE: Final = "mqtt/retained"
EXPIRES: Final = "mqtt-expires-ms"
"""When it expires: a time, because a copy is published later than its original."""
SWEEP_AT_ONCE: Final = 1_000


class RetainedMessages:
    """All of them."""

    def __init__(self, broker: FrontBroker, now_ms: Callable[[], int], *, most: int, bytes_most: int) -> None:
        self._now_ms = now_ms
        self._most = most
        self._bytes_most = bytes_most
        self._tree = TopicTree()
        self._sizes: dict[str, int] = {}
        self.bytes = 0
        self._expiring: dict[str, int] = {}
        self.table = Table(broker, QUEUE, "Retained messages of MQTT: the last of each topic.", self._heard)

    def __len__(self) -> int:
        return len(self._sizes)

    def _heard(self, topic: str, message: Message | None) -> None:
        before = self._sizes.pop(topic, 0)
        self.bytes -= before
        self._expiring.pop(topic, None)
        if message is None:
            self._tree.remove(topic)
            return
        size = len(topic) + len(message.payload)
        self._sizes[topic] = size
        self.bytes += size
        expires_ms = (message.headers or {}).get(EXPIRES)
        if isinstance(expires_ms, int):
            self._expiring[topic] = expires_ms
        if not before:
            self._tree.add(topic)

    def check_room(self, topic: str, payload: bytes, count: int = 0, size: int = 0) -> None:
        """Raise where one more would be too much, beside `count` of `size` bytes that are on their way."""
        if not payload:
            return
        before = self._sizes.get(topic, 0)
        if not before and len(self._sizes) + count >= self._most:
            raise Refusal(
                Reason.QUOTA_EXCEEDED,
                f"there are {self._most} retained messages, as many as may be (mqtt.max_retained)",
            )
        if self.bytes + size - before + len(topic) + len(payload) > self._bytes_most:
            raise Refusal(
                Reason.QUOTA_EXCEEDED,
                f"retained messages may have {self._bytes_most} bytes together (mqtt.max_retained_bytes)",
            )

    def row(self, topic: str, message: Message) -> Message:
        """What says that this message is the topic's now; one without payload says that there is none."""
        if not message.payload:
            return Message(key=topic)
        headers = dict(message.headers or {})
        if message.ttl_ms is not None:
            headers[EXPIRES] = self._now_ms() + message.ttl_ms
        return msgspec.structs.replace(message, key=topic, headers=headers, ttl_ms=None)

    async def matching(self, topic_filter: str) -> list[Message]:
        """Those whose topics (their keys) the filter matches, and that have not expired; `ttl_ms` is what is left."""
        await self.table.catch_up()
        now_ms, budget = self._now_ms(), Budget()
        found: list[Message] = []
        for topic in await in_turns(self._tree.matching(topic_filter, budget)):
            if budget.spend(MESSAGE_WORK):
                budget.renew()
                await asyncio.sleep(0)
            message = self.table.get(topic)
            if message is None:
                continue
            expires_ms = self._expiring.get(topic)
            if expires_ms is not None:
                if expires_ms <= now_ms:
                    continue
                headers = {name: value for name, value in (message.headers or {}).items() if name != EXPIRES}
                message = msgspec.structs.replace(message, headers=headers, ttl_ms=expires_ms - now_ms)
            found.append(message)
        return found

    async def sweep(self) -> int:
        """Let go of those that have expired; how many."""
        now_ms = self._now_ms()
        over = [topic for topic, expires_ms in self._expiring.items() if expires_ms <= now_ms][:SWEEP_AT_ONCE]
        if over:
            await self.table.put(self.table.forgetting(topic) for topic in over)
        return len(over)
