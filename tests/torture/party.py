"""What all parties of a torture run have in common: a ledger, chance, and patience.

An error that a client may see while nodes and databases die (`PenstockError`, outcome unknown) is no fault: a broken
promise is. What was not answered is asked for again under the same identity.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from penstock import AsyncClient, PenstockError
from tests.torture.ledger import Ledger

PAUSE_S: Final = (0.0, 0.05)
AGAIN_S: Final = (0.01, 0.2)
AHEAD_MOST: Final = 3_000
"""So many messages of a queue wait for consumers at most: what is published must be drained in the end."""
POISON_SHARE: Final = 0.1


class Party:
    """Producers and consumers are made of it."""

    def __init__(self, ledger: Ledger, seed: int) -> None:
        self._ledger = ledger
        self._chance = random.Random(seed)
        self._stopped = False
        self.refusals = 0
        """Calls that ended with an error, whatever it was."""

    def stop(self) -> None:
        """Producers end when what they began is answered; consumers go on until they are cancelled."""
        self._stopped = True

    async def _breathe(self, *queues: str) -> None:
        """A pause, and a longer one while consumers are far behind."""
        while True:
            await asyncio.sleep(self._chance.uniform(*PAUSE_S))
            if self._stopped or all(self._ledger.waiting(queue) <= AHEAD_MOST for queue in queues):
                return

    async def _refused(self) -> None:
        self.refusals += 1
        await asyncio.sleep(self._chance.uniform(*AGAIN_S))


class ClientParty(Party):
    """One that uses our own client."""

    def __init__(self, client: AsyncClient, ledger: Ledger, seed: int) -> None:
        super().__init__(ledger, seed)
        self._client = client

    async def _repeat(self, call: Callable[[], Awaitable[object]]) -> object:
        """Until it is answered: what is asked has an identity, so that asking again changes nothing."""
        while True:
            try:
                return await call()
            except PenstockError:
                await self._refused()


def is_poison(id: str) -> bool:
    """Whether a message fails whenever it is tried."""
    return random.Random(id).random() < POISON_SHARE
