"""All parties of a torture run: producers and consumers of every feature, and what is declared for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from paho.mqtt.enums import MQTTProtocolVersion

from penstock import AsyncClient
from penstock.api.options import QueueOptions
from tests.torture.amqp import AmqpParty
from tests.torture.consumers import Consumers
from tests.torture.ledger import Ledger
from tests.torture.mqtt import MqttParty
from tests.torture.producers import REGIONS, Producers
from tests.torture.world import TorturedNode

PARTITIONS: Final = 12
CONSUMED: Final = ("ordered", "source", "moved", "echoed", "risky", "revived", "later", "brief", "urgent", "left",
                   "right", "jobs", "orders", "invoices", "readings", "commands")  # fmt: skip
"""Queues whose group `default` takes everything."""
UNSURE: Final = ("moved", "echoed", "jobs", "orders", "invoices")
"""What was asked for there and not answered is not asked for again."""
TOPICS: Final = {"readings": (1, MQTTProtocolVersion.MQTTv311), "commands": (2, MQTTProtocolVersion.MQTTv5)}
"""Of MQTT: each is captured by a queue of its name, and has a subscriber."""
STREAM: Final = "logged"
READERS: Final = ("audit", "report")
COPIES: Final = "grave"
KEPT_MS: Final = 7 * 86_400_000


class Parties:
    """All of them: on one client of ours, or on any node by AMQP and MQTT."""

    def __init__(self, client: AsyncClient, nodes: list[TorturedNode], ledger: Ledger, seed: int) -> None:
        self._client = client
        self._producers = Producers(client, ledger, seed)
        self._consumers = Consumers(client, ledger, seed + 1)
        self._amqp = AmqpParty([(node.host, node.amqp_port) for node in nodes], ledger, seed + 2)
        self._mqtt = MqttParty([(node.host, node.mqtt_port) for node in nodes], ledger, seed + 3)
        self._all = (self._producers, self._consumers, self._amqp, self._mqtt)

    @property
    def refusals(self) -> int:
        """Calls that ended with an error, whatever it was."""
        return sum(party.refusals for party in self._all)

    async def declare(self) -> None:
        """Every log is kept whole: at the end it is compared with what was confirmed."""
        client = self._client
        options: dict[str, QueueOptions] = {
            "ordered": {"ordered": True},
            "risky": {"max_attempts": 3},
            "revived": {"max_attempts": 2},
            "brief": {"expired": "dead"},
            "urgent": {"prioritized": True},
        }
        for name in (*CONSUMED, STREAM, COPIES):
            usual: QueueOptions = {"max_attempts": 0, "backoff_ms": 5, "retain_ms": KEPT_MS}
            usual.update(options.get(name, {}))
            await client.declare_queue(name, **usual)
        await client.declare_group("risky", "default", dead_letter_to=f"queue:{COPIES}")
        for group in READERS:
            await client.declare_group(STREAM, group, kind="stream", auto_commit=False)
        await client.declare_exchange("news", kind="fanout")
        await client.declare_exchange("regions", kind="topic")
        for name in ("left", "right"):
            await client.bind("news", name)
        for region, queues in REGIONS.items():
            for queue in queues:
                await client.bind("regions", queue, f"*.{region}")
        for topic, (qos, version) in TOPICS.items():
            await client.bind("mqtt", topic, topic)
            await self._mqtt.subscribe(topic, qos, version)

    def start(self) -> list[asyncio.Task[None]]:
        make, take = self._producers, self._consumers
        works: list[Callable[[], Awaitable[None]]] = [
            *(partial(make.in_order, f"p{number}") for number in range(PARTITIONS)),
            *(partial(make.plainly, queue) for queue in ("source", "risky", "revived")),
            make.with_priorities,
            make.later,
            make.briefly,
            make.to_the_log,
            make.news,
            make.regional_news,
            *(partial(take.consume, "ordered") for _ in range(3)),
            take.move,
            take.move,
            take.risk,
            take.revive,
            *(partial(take.consume, queue) for queue in ("moved", "echoed", "later", "urgent", "left", "right")),
            partial(take.consume_some, "brief"),
            take.redrive,
            *(partial(take.follow, group) for group in READERS),
            *(partial(self._amqp.publish, queue) for queue in ("jobs", "orders")),
            *(partial(self._amqp.consume, "jobs") for _ in range(2)),
            *(partial(self._amqp.move, "orders") for _ in range(2)),
            *(partial(self._mqtt.publish, topic, *how) for topic, how in TOPICS.items()),
            *(partial(take.consume, queue) for queue in ("invoices", *TOPICS)),
        ]
        return [asyncio.ensure_future(work()) for work in works]

    def stop(self) -> None:
        """Producers end when what they began is answered; consumers go on until they are cancelled."""
        for party in self._all:
            party.stop()

    def close(self) -> None:
        """End the threads of paho's clients."""
        self._mqtt.close()
