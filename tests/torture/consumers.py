"""Who consumes in a torture run, through the public client, as carelessly as consumers are: each id that was handed out
is noted, and each that was settled when the answer came.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Final

from penstock import AsyncClient, Claim, Message, PenstockError
from tests.torture.ledger import Ledger
from tests.torture.party import ClientParty, is_poison

LEASE_S: Final = 3.0
IDLE_S: Final = (0.0, 0.4)
REDRIVE_S: Final = (0.5, 3.0)


class Consumers(ClientParty):
    """Each takes from one queue until it is cancelled."""

    def __init__(self, client: AsyncClient, ledger: Ledger, seed: int) -> None:
        super().__init__(client, ledger, seed)
        self._redriven: set[str] = set()
        """Messages of `revived` that fail no more."""

    async def _claim(self, queue: str, most: int) -> Claim | None:
        began = time.monotonic()
        try:
            claim = await self._client.claim(queue, max=most, wait=1.0, lease_seconds=LEASE_S)
        except PenstockError:
            await self._refused()
            return None
        if not claim:
            return None
        self._ledger.deliver(queue, names(claim), time.monotonic(), began)
        return claim

    async def _settle(self, queue: str, claim: Claim) -> None:
        """Mostly an ack; now and then what careless consumers do."""
        chosen = self._chance.random()
        try:
            if chosen < 0.03:
                return  # the lease expires
            if chosen < 0.05:
                await self._client.release(claim)
                return
            if chosen < 0.08:
                await self._client.nack(claim, error="unlucky")
                return
            if chosen < 0.1:
                await self._client.postpone(claim, self._chance.uniform(0.0, 0.5))
                return
            if chosen < 0.13:
                await asyncio.sleep(LEASE_S * self._chance.uniform(0.5, 1.2))  # perhaps too late
            elif chosen < 0.15:
                await self._client.extend(claim, LEASE_S)
            elif chosen < 0.18:
                await self._ack(queue, claim, len(claim) // 2)  # and the rest comes again
                return
            await self._ack(queue, claim, len(claim))
        except PenstockError:
            self.refusals += 1

    async def _ack_and_claim(self, queue: str, claim: Claim, most: int) -> Claim | None:
        """Acknowledge a claim and take what comes next with the same request."""
        ids, began = names(claim), time.monotonic()
        self._ledger.ack_ask(queue, ids)
        try:
            following = await self._client.settle_and_claim(claim, max=most, lease_seconds=LEASE_S)
        except PenstockError:
            self.refusals += 1
            return None
        self._ledger.ack(queue, ids)
        if not following:
            return None
        self._ledger.deliver(queue, names(following), time.monotonic(), began)
        return following

    async def _ack(self, queue: str, claim: Claim, first: int) -> None:
        """Acknowledge so many of the claim's first messages."""
        ids = names(claim)[:first]
        if ids:
            self._ledger.ack_ask(queue, ids)
            await self._client.ack(claim, [one.offset for one in claim][:first])
            self._ledger.ack(queue, ids)

    async def consume(self, queue: str) -> None:
        while True:
            most = self._chance.choice((1, 10, 100))
            claim = await self._claim(queue, most)
            while claim is not None and self._chance.random() < 0.4:
                claim = await self._ack_and_claim(queue, claim, most)
            if claim is not None:
                await self._settle(queue, claim)

    async def consume_some(self, queue: str) -> None:
        """Idles, so that what has a time to live may pass it."""
        while True:
            await asyncio.sleep(self._chance.uniform(*IDLE_S))
            claim = await self._claim(queue, self._chance.choice((1, 10)))
            if claim is not None:
                await self._settle(queue, claim)

    async def move(self) -> None:
        """Ack in one queue and publish to two others as one: of all tries to move a message, one takes place."""
        turn = 0
        while True:
            claim = await self._claim("source", self._chance.choice((1, 5, 20)))
            if claim is None:
                continue
            turn += 1
            made = [f"{name}>{turn}.{self._chance.random()}" for name in names(claim)]
            self._ledger.move_ask("source", names(claim), made)
            try:
                async with self._client.transaction() as transaction:
                    transaction.ack(claim)
                    transaction.publish("moved", *(Message(name.encode()) for name in made))
                    transaction.publish("echoed", *(Message(name.encode()) for name in made))
            except PenstockError:
                self.refusals += 1
            else:
                self._ledger.moved("source", names(claim), made)

    async def risk(self) -> None:
        """Some messages fail whenever they are tried: they die, after three attempts or rejected, and are copied."""
        while True:
            claim = await self._claim("risky", self._chance.choice((1, 5, 20)))
            if claim is not None:
                await self._settle_risky("risky", claim, {name for name in names(claim) if is_poison(name)})

    async def revive(self) -> None:
        """Some messages fail until somebody looked at them, dead, and gave them back."""
        while True:
            claim = await self._claim("revived", self._chance.choice((1, 5, 20)))
            if claim is not None:
                bad = {name for name in names(claim) if is_poison(name) and name not in self._redriven}
                await self._settle_risky("revived", claim, bad)

    async def _settle_risky(self, queue: str, claim: Claim, poison: set[str]) -> None:
        bad = [one.offset for one in claim if one.payload.decode() in poison]
        good = [one.offset for one in claim if one.payload.decode() not in poison]
        try:
            if bad and self._chance.random() < 0.2:
                await self._client.reject(claim, bad, error="poison")
            elif bad:
                await self._client.nack(claim, bad, error="poison")
            if good:
                done = [name for name in names(claim) if name not in poison]
                self._ledger.ack_ask(queue, done)
                await self._client.ack(claim, good)
                self._ledger.ack(queue, done)
        except PenstockError:
            self.refusals += 1

    async def redrive(self) -> None:
        """Gives the dead of `revived` back, again and again: those of a span, whoever died there meanwhile."""
        while True:
            await asyncio.sleep(self._chance.uniform(*REDRIVE_S))
            try:
                dead = await self._client.dead("revived", max=1_000)
                if dead:
                    self._redriven.update(one.received.payload.decode() for one in dead)
                    offsets = [one.received.offset for one in dead]
                    await self._client.redrive("revived", offsets=(min(offsets), max(offsets) + 1))
            except PenstockError:
                self.refusals += 1

    async def follow(self, group: str) -> None:
        """Read the stream `logged`, commit now and then, and begin again at what was committed after an error."""
        while True:
            try:
                read = await self._client.read("logged", group, max=self._chance.choice((1, 20, 200)), wait=1.0)
                if read.messages:
                    ids = [one.payload.decode() for one in read.messages]
                    self._ledger.read(group, read.messages[0].offset, ids)
                    if self._chance.random() < 0.7:
                        await self._client.commit("logged", group, read.next_offset, only_forward=True)
                        self._ledger.committed(group, read.next_offset)
            except PenstockError:
                await self._refused()
                await self._repeat(partial(self._client.detach, "logged", group))
            if self._stopped and self._ledger.is_read(group):  # what was read and not committed
                await self._repeat(partial(self._client.commit, "logged", group, self._ledger.streams[group].position))


def names(claim: Claim) -> list[str]:
    return [one.payload.decode() for one in claim]
