"""Producers and consumers of every feature, through the public client, each noting what it asked and what was answered.

An error that a client may see while nodes and databases die (`PenstockError`, outcome unknown) is no fault: a broken
promise is. What was not answered is asked for again under the same identity.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

from penstock import AsyncClient, Claim, Message, PenstockError
from tests.torture.ledger import Ledger

LEASE_S: Final = 3.0
PARTITIONS: Final = 12
POISON_SHARE: Final = 0.1
DELAY_S: Final = (0.1, 4.0)
PAUSE_S: Final = (0.0, 0.05)
AHEAD_MOST: Final = 3_000
"""So many messages of a queue wait for consumers at most: what is published must be drained in the end."""


class Parties:
    """All of them, on one client."""

    def __init__(self, client: AsyncClient, ledger: Ledger, seed: int) -> None:
        self._client = client
        self._ledger = ledger
        self._chance = random.Random(seed)
        self._stopped = False
        self.refusals = 0
        """Calls that ended with an error, whatever it was."""

    async def declare(self) -> None:
        client = self._client
        await client.declare_queue("ordered", ordered=True, max_attempts=0, backoff_ms=5, retain_ms=86_400_000)
        await client.declare_queue("source", max_attempts=0, backoff_ms=5)
        await client.declare_queue("moved", max_attempts=0, backoff_ms=5)
        await client.declare_queue("grave", max_attempts=0)
        await client.declare_queue("risky", max_attempts=3, backoff_ms=5)
        await client.declare_group("risky", "default", dead_letter_to="queue:grave")
        await client.declare_queue("later", max_attempts=0, backoff_ms=5)
        await client.declare_exchange("news", kind="fanout")
        for name in ("left", "right"):
            await client.declare_queue(name, max_attempts=0, backoff_ms=5)
            await client.bind("news", name)

    def start(self) -> list[asyncio.Task[None]]:
        works: list[Callable[[], Awaitable[None]]] = [
            *(lambda partition=f"p{number}": self._publish_in_order(partition) for number in range(PARTITIONS)),
            lambda: self._publish("source"), lambda: self._publish("risky"), self._publish_later, self._publish_news,
            *(lambda: self._consume("ordered") for _ in range(3)), lambda: self._consume("moved"), self._move,
            self._move, self._risk, lambda: self._consume("later"), lambda: self._consume("left"),
            lambda: self._consume("right"),
        ]  # fmt: skip
        return [asyncio.ensure_future(work()) for work in works]

    def stop(self) -> None:
        """Producers end when what they began is answered; consumers go on until they are cancelled."""
        self._stopped = True

    # Producers ---------------------------------------------------------------------------------------------

    async def _breathe(self, *queues: str) -> None:
        """A pause, and a longer one while consumers are far behind."""
        while True:
            await asyncio.sleep(self._chance.uniform(*PAUSE_S))
            if self._stopped or all(self._waiting(queue) <= AHEAD_MOST for queue in queues):
                return

    def _waiting(self, queue: str) -> int:
        seen = self._ledger.queues[queue]
        return len(seen.confirmed) - len(seen.acked)

    async def _repeat(self, call: Callable[[], Awaitable[object]]) -> None:
        """Until it is answered: what is asked has an identity, so that asking again changes nothing."""
        while True:
            try:
                await call()
                return
            except PenstockError:
                self.refusals += 1
                await asyncio.sleep(self._chance.uniform(0.01, 0.2))

    async def _publish_in_order(self, partition: str) -> None:
        number = 0
        while not self._stopped:
            ids = [f"{partition}.{number + step}" for step in range(self._chance.choice((1, 1, 1, 5, 40)))]
            number += len(ids)
            messages = [Message(id.encode(), partition=partition, dedup_id=id) for id in ids]
            self._ledger.ask("ordered", ids)
            await self._repeat(lambda messages=messages: self._client.publish_many("ordered", messages))  # type: ignore[misc]
            self._ledger.confirm("ordered", ids)
            await self._breathe("ordered")

    async def _publish(self, queue: str) -> None:
        number = 0
        while not self._stopped:
            ids = [f"{queue}{number + step}" for step in range(self._chance.choice((1, 10, 50)))]
            number += len(ids)
            messages = [Message(id.encode(), dedup_id=id) for id in ids]
            self._ledger.ask(queue, ids)
            await self._repeat(lambda messages=messages: self._client.publish_many(queue, messages))  # type: ignore[misc]
            self._ledger.confirm(queue, ids)
            await self._breathe(queue)

    async def _publish_later(self) -> None:
        number = 0
        while not self._stopped:
            delay = self._chance.uniform(*DELAY_S)
            id = f"later{number}"
            number += 1
            message = Message(id.encode(), dedup_id=id, delay_ms=int(delay * 1000))
            self._ledger.ask("later", [id], time.monotonic() + int(delay * 1000) / 1000)
            await self._repeat(lambda message=message: self._client.publish("later", message))  # type: ignore[misc]
            self._ledger.confirm("later", [id])
            await self._breathe("later")

    async def _publish_news(self) -> None:
        """One message for two queues, which may have two owners: both get it."""
        number = 0
        while not self._stopped:
            ids = [f"news{number + step}" for step in range(self._chance.choice((1, 20)))]
            number += len(ids)
            messages = [Message(id.encode(), dedup_id=id) for id in ids]
            for queue in ("left", "right"):
                self._ledger.ask(queue, ids)
            await self._repeat(lambda messages=messages: self._client.publish_to("news", messages))  # type: ignore[misc]
            for queue in ("left", "right"):
                self._ledger.confirm(queue, ids)
            await self._breathe("left", "right")

    # Consumers ---------------------------------------------------------------------------------------------

    async def _claim(self, queue: str, most: int) -> Claim | None:
        try:
            claim = await self._client.claim(queue, max=most, wait=1.0, lease_seconds=LEASE_S)
        except PenstockError:
            self.refusals += 1
            await asyncio.sleep(self._chance.uniform(0.01, 0.2))
            return None
        if not claim:
            return None
        self._ledger.deliver(queue, names(claim), time.monotonic())
        return claim

    async def _settle(self, queue: str, claim: Claim) -> None:
        """Mostly an ack; now and then what careless consumers do."""
        ids = names(claim)
        chosen = self._chance.random()
        try:
            if chosen < 0.03:
                return  # the lease expires
            if chosen < 0.06:
                await self._client.release(claim)
                return
            if chosen < 0.1:
                await self._client.nack(claim, error="unlucky")
                return
            if chosen < 0.13:
                await asyncio.sleep(LEASE_S * self._chance.uniform(0.5, 1.2))  # perhaps too late
            self._ledger.ack_ask(queue, ids)
            await self._client.ack(claim)
            self._ledger.ack(queue, ids)
        except PenstockError:
            self.refusals += 1

    async def _consume(self, queue: str) -> None:
        while True:
            claim = await self._claim(queue, self._chance.choice((1, 10, 100)))
            if claim is not None:
                await self._settle(queue, claim)

    async def _move(self) -> None:
        """Ack and publish as one: of all tries to move a message, one takes place."""
        turn = 0
        while True:
            claim = await self._claim("source", self._chance.choice((1, 5, 20)))
            if claim is None:
                continue
            turn += 1
            made = [f"{name}>{id(self)}.{turn}.{self._chance.random()}" for name in names(claim)]
            self._ledger.move_ask(names(claim), made)
            try:
                async with self._client.transaction() as transaction:
                    transaction.ack(claim)
                    transaction.publish("moved", *(Message(name.encode()) for name in made))
            except PenstockError:
                self.refusals += 1
            else:
                self._ledger.moved(names(claim), made)

    async def _risk(self) -> None:
        """Some messages fail whenever they are tried: they die after three attempts."""
        while True:
            claim = await self._claim("risky", self._chance.choice((1, 5, 20)))
            if claim is None:
                continue
            try:
                good = [one.offset for one in claim if not is_poison(one.payload.decode())]
                bad = [one.offset for one in claim if is_poison(one.payload.decode())]
                if bad:
                    await self._client.nack(claim, bad, error="poison")
                if good:
                    done = [name for name in names(claim) if not is_poison(name)]
                    self._ledger.ack_ask("risky", done)
                    await self._client.ack(claim, good)
                    self._ledger.ack("risky", done)
            except PenstockError:
                self.refusals += 1


def is_poison(id: str) -> bool:
    return random.Random(id).random() < POISON_SHARE


def names(claim: Claim) -> list[str]:
    return [one.payload.decode() for one in claim]
