"""Who publishes in a torture run, through the public client: each id is noted when asked and when answered."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from penstock import Message
from tests.torture.party import ClientParty

DELAY_S: Final = (0.1, 4.0)
TIME_TO_LIVE_S: Final = (0.2, 4.0)
AGAIN_SHARE: Final = 0.05
"""Of publishes that were answered, those that are sent once more: they must change nothing."""
PRIORITIES: Final = 5
REGIONS: Final = {"left": ("left",), "right": ("right",), "both": ("left", "right")}
"""Where keys of the exchange `regions` lead."""


class Producers(ClientParty):
    """Each publishes to one queue or exchange until it is told to stop."""

    async def in_order(self, partition: str) -> None:
        number = 0
        while not self._stopped:
            ids = [f"{partition}.{number + step}" for step in range(self._chance.choice((1, 1, 1, 5, 40)))]
            number += len(ids)
            messages = [Message(id.encode(), partition=partition, dedup_id=id) for id in ids]
            self._ledger.ask("ordered", ids)
            await self._repeat(partial(self._client.publish_many, "ordered", messages))
            self._ledger.confirm("ordered", ids)
            await self._breathe("ordered")

    async def plainly(self, queue: str) -> None:
        number = 0
        while not self._stopped:
            ids = [f"{queue}{number + step}" for step in range(self._chance.choice((1, 10, 50)))]
            number += len(ids)
            await self._publish(queue, ids, [Message(id.encode(), dedup_id=id) for id in ids])
            await self._breathe(queue)

    async def with_priorities(self) -> None:
        number = 0
        while not self._stopped:
            count = self._chance.choice((1, 10, 30))
            priorities = [self._chance.randrange(PRIORITIES) for _ in range(count)]
            ids = [f"{priority}.{number + step}" for step, priority in enumerate(priorities)]
            number += count
            messages = [
                Message(id.encode(), dedup_id=id, priority=priority)
                for id, priority in zip(ids, priorities, strict=True)
            ]
            await self._publish("urgent", ids, messages)
            await self._breathe("urgent")

    async def _publish(self, queue: str, ids: list[str], messages: Sequence[Message]) -> None:
        self._ledger.ask(queue, ids)
        publish = partial(self._client.publish_many, queue, messages)
        await self._repeat(publish)
        self._ledger.confirm(queue, ids)
        if self._chance.random() < AGAIN_SHARE:
            await self._repeat(publish)

    async def later(self) -> None:
        """Not to be seen for a while."""
        number = 0
        while not self._stopped:
            delay_ms = int(self._chance.uniform(*DELAY_S) * 1000)
            id = f"later{number}"
            number += 1
            message = Message(id.encode(), dedup_id=id, delay_ms=delay_ms)
            self._ledger.ask("later", [id], time.monotonic() + delay_ms / 1000)
            await self._repeat(partial(self._client.publish, "later", message))
            self._ledger.confirm("later", [id])
            await self._breathe("later")

    async def briefly(self) -> None:
        """To be seen for a while only. What is buffered gets its time when it is stored, which nobody is told."""
        number = 0
        while not self._stopped:
            ttl_ms = int(self._chance.uniform(*TIME_TO_LIVE_S) * 1000)
            ids = [f"brief{number + step}" for step in range(self._chance.choice((1, 5)))]
            number += len(ids)
            messages = [Message(id.encode(), dedup_id=id, ttl_ms=ttl_ms) for id in ids]
            self._ledger.ask("brief", ids)
            receipt = await self._repeat(partial(self._client.publish_many, "brief", messages))
            is_stored = not getattr(receipt, "buffered", True)
            self._ledger.confirm("brief", ids, time.monotonic() + ttl_ms / 1000 if is_stored else None)
            await self._breathe()

    async def to_the_log(self) -> None:
        """For readers of the stream: one id names all that is published together."""
        number = 0
        while not self._stopped:
            ids = [f"logged{number + step}" for step in range(self._chance.choice((1, 10, 50)))]
            number += len(ids)
            self._ledger.ask("logged", ids)
            publish = partial(
                self._client.publish_many, "logged", [Message(id.encode()) for id in ids], publish_id=ids[0]
            )
            await self._repeat(publish)
            self._ledger.confirm("logged", ids)
            if self._chance.random() < AGAIN_SHARE:
                await self._repeat(publish)
            await self._breathe("logged")

    async def news(self) -> None:
        """One message for two queues, which may have two owners: both get it."""
        number = 0
        while not self._stopped:
            ids = [f"news{number + step}" for step in range(self._chance.choice((1, 20)))]
            number += len(ids)
            messages = [Message(id.encode(), dedup_id=id) for id in ids]
            await self._publish_to("news", {"left": ids, "right": ids}, messages)

    async def regional_news(self) -> None:
        """Messages whose keys lead to one queue, the other or both, in one publish."""
        number = 0
        while not self._stopped:
            regions = self._chance.choices(list(REGIONS), k=self._chance.choice((1, 20)))
            ids: dict[str, list[str]] = {"left": [], "right": []}
            messages = []
            for region in regions:
                id = f"{region}{number}"
                number += 1
                messages.append(Message(id.encode(), dedup_id=id, key=f"region.{region}"))
                for queue in REGIONS[region]:
                    ids[queue].append(id)
            await self._publish_to("regions", ids, messages)

    async def _publish_to(self, exchange: str, ids: dict[str, list[str]], messages: Sequence[Message]) -> None:
        for queue, names in ids.items():
            self._ledger.ask(queue, names)
        await self._repeat(partial(self._client.publish_to, exchange, messages))
        for queue, names in ids.items():
            self._ledger.confirm(queue, names)
        await self._breathe("left", "right")
