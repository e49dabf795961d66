"""Among several nodes, one connection at a time writes in a session's name: the one that holds the session's lock.

A lock is a message that a connection has published and claimed; what it writes for its client is a transaction on
condition that the lease still holds. Who takes the session over ends the lease first. From then on nothing can come
into force that the connection before has under way, wherever it is; all that did before is in the table of sessions,
for the queue of locks is in the slot of that table and so in the same commits.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import Final

from penstock.api.front_broker import FrontBroker
from penstock.api.results import Lease
from penstock.model import DEFAULT_GROUP, Message
from penstock.model.errors import NotFound, Unavailable
from penstock.model.rows import home_slot

LEASE_SECONDS: Final = 366 * 24 * 3600.0
"""A lock ends when it is given back or taken away, not by itself."""


def lock_queue(namespace: str, table: str) -> str:
    """A name whose queue is in the slot of the table."""
    names = (f"mqtt/locks/{number}" for number in count())
    return next(name for name in names if home_slot(namespace, name) == home_slot(namespace, table))


class Locks:
    """The locks of all sessions."""

    def __init__(self, broker: FrontBroker, queue: str) -> None:
        self._broker = broker
        self._queue = queue
        self._is_made = False
        broker.keep_writing(queue)

    async def take(self, token: str) -> Lease:
        """The lock of a connection, which has none."""
        if not self._is_made:
            await self._broker.declare_queue(
                self._queue,
                ordered=True,  # so that a claim can name the one that it wants, and nothing is buffered
                max_attempts=0,
                backoff_ms=0,
                dedup_window_ms=0,
                description="Which connection of an MQTT client may write in its name.",
            )
            self._is_made = True
        await self._broker.publish(self._queue, Message(partition=token))
        claim = await self._broker.claim(self._queue, partition=token, lease_seconds=LEASE_SECONDS, consumer=token)
        if claim.lease is None:
            raise Unavailable("the lock of a session cannot be had now")
        return claim.lease

    async def give_back(self, lease: Lease) -> None:
        """Its connection writes nothing more."""
        await self._broker.ack(lease)

    async def take_away(self, token: str) -> None:
        """Let nothing more come into force that a connection has under way."""
        if not self._broker.knows_queue(self._queue, "consume"):
            return
        with suppress(NotFound):
            await self._broker.detach(self._queue, DEFAULT_GROUP, consumer=token)
            await self._broker.claim(self._queue, partition=token, ack=True)
