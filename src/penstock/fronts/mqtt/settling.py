"""What a client's answers do to the messages it was sent: acknowledged in batches, while the next answers arrive.

A PUBREC is carried out (the message is done, and its packet id waits for PUBCOMP) in one commit, and only then answered
with PUBREL: after that the message is never sent again, whatever crashes. It may not know sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.api.front_broker import FrontBroker
from penstock.api.results import Lease
from penstock.fronts.mqtt.errors import log
from penstock.fronts.mqtt.session.documents import SessionDocuments
from penstock.model.errors import Closed, LeaseLost, PenstockError


class Settling:
    """One client's answers on their way to the broker."""

    def __init__(
        self,
        broker: FrontBroker,
        documents: SessionDocuments | None,
        client_id: str,
        released: Callable[[list[int]], None],
        failed: Callable[[str], None],
    ) -> None:
        """`documents` is None for a session that does not outlive a restart.

        `released` sends PUBRELs; `failed` ends the connection, for what a client has received could not be recorded.
        """
        self._broker = broker
        self._documents = documents
        self._client_id = client_id
        self._released = released
        self._failed = failed
        self._acks: dict[Lease, list[int]] = {}
        self._received: list[tuple[Lease, int, int]] = []
        self._completed: list[int] = []
        self._others: list[Callable[[], Awaitable[None]]] = []
        self._task: asyncio.Task[None] | None = None

    def ack(self, lease: Lease, offset: int) -> None:
        """A message is done."""
        self._acks.setdefault(lease, []).append(offset)
        self._work()

    def nack(self, lease: Lease, offset: int, error: str) -> None:
        """A message failed."""
        self._others.append(lambda: self._broker.nack(lease, [offset], error=error))
        self._work()

    def reject(self, lease: Lease, offset: int, error: str) -> None:
        """A message will never succeed."""
        self._others.append(lambda: self._broker.reject(lease, [offset], error=error))
        self._work()

    def commit(self, queue: str, group: str, lane: int, offset: int) -> None:
        """A stream group has everything below an offset."""
        self._others.append(lambda: self._broker.commit(queue, group, offset, lane=lane, only_forward=True))
        self._work()

    def received(self, lease: Lease, offset: int, packet_id: int) -> None:
        """The client has a message of QoS 2: it is done, and released once that is durable."""
        self._received.append((lease, offset, packet_id))
        self._work()

    def completed(self, packet_id: int) -> None:
        """The client has answered a PUBREL."""
        if self._documents is not None:
            self._completed.append(packet_id)
            self._work()

    async def finish(self) -> None:
        """Until everything is carried out."""
        while self._task is not None:
            await asyncio.wait([self._task])

    def _work(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            await asyncio.sleep(0)  # what else arrived with it
            while self._acks or self._received or self._completed or self._others:
                others, self._others = self._others, []
                acks, self._acks = self._acks, {}
                received, self._received = self._received, []
                completed, self._completed = self._completed, []
                await asyncio.gather(
                    *(self._ack(lease, offsets) for lease, offsets in acks.items()),
                    self._record(received, completed),
                    *map(self._carry_out, others),
                )
        finally:
            self._task = None

    async def _ack(self, lease: Lease, offsets: list[int]) -> None:
        try:
            await self._broker.ack(lease, offsets)
        except LeaseLost:
            if len(offsets) > 1:  # perhaps not all of them
                for offset in offsets:
                    await self._ack(lease, [offset])
        except Closed:
            pass  # they come again after the restart
        except PenstockError as error:
            log.warning(
                "%d messages to %r could not be acknowledged and come again: %s", len(offsets), self._client_id, error
            )

    async def _carry_out(self, action: Callable[[], Awaitable[None]]) -> None:
        try:
            await action()
        except PenstockError as error:
            log.info("what %r answered could not be carried out: %s", self._client_id, error)

    async def _record(self, received: list[tuple[Lease, int, int]], completed: list[int]) -> None:
        if not received and not completed:
            return
        try:
            transaction = self._broker.transaction()
            for lease, offset, _ in received:
                transaction.ack(lease, [offset])
            if self._documents is not None:
                make = self._documents.packet_row
                rows = [make("o", self._client_id, packet_id, is_there=False) for packet_id in completed]
                rows += [make("o", self._client_id, packet_id, is_there=True) for _, _, packet_id in received]
                transaction.publish(self._documents.table.queue, *rows)
            await transaction.commit()
        except LeaseLost:
            if len(received) == 1:
                await self._record([], completed)  # somebody else has the message now: it is sent again under its id
                return
            for one in received:
                await self._record([one], completed)
                completed = []
        except Closed:
            pass
        except PenstockError as error:
            log.warning("what %r has received could not be recorded: %s", self._client_id, error)
            self._failed(str(error))
        else:
            self._released([packet_id for _, _, packet_id in received])
