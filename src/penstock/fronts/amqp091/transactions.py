"""tx.select, commit and rollback: what a channel publishes and settles is held until then, and becomes one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.fronts.amqp091.declaring import have_exchange
from penstock.fronts.amqp091.errors import fault_of, not_found, precondition
from penstock.fronts.amqp091.names import BUILT_IN
from penstock.fronts.amqp091.publishing import Run, reached_by
from penstock.fronts.amqp091.settling import Action, Delivered
from penstock.model import BATCH_BYTES_DEFAULT, BATCH_MESSAGES_MAX
from penstock.model.errors import LeaseLost, PenstockError
from penstock.wire.amqp091.events import Publish

if TYPE_CHECKING:
    from penstock.fronts.amqp091.channel import Channel


class Transactions:
    """Of one channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.is_on = False
        self._runs: list[Run] = []
        self._settled: list[tuple[int, Delivered, Action]] = []
        self._size = 0
        self._count = 0

    def publish(self, events: list[Publish]) -> None:
        """Hold these; raises a fault at once where they cannot be published."""
        channel = self._channel
        runs, fault = channel.publishing.runs(events)
        for run in runs:
            if not run.messages:
                raise precondition("an offset cannot be committed within a transaction; use another channel")
            if run.exchange and run.exchange not in BUILT_IN:
                self._check_exchange(run.exchange)
        self._runs += runs
        self._size += sum(len(event.body) + len(event.properties) for event in events)
        self._count += len(events)
        most = max(BATCH_BYTES_DEFAULT, channel.connection.host.limits.max_message_bytes)
        if self._size > most or self._count > BATCH_MESSAGES_MAX:
            raise precondition(
                f"a transaction may hold {BATCH_MESSAGES_MAX} messages and {most} bytes; commit it before"
            )
        if fault is not None:
            raise fault

    def _check_exchange(self, name: str) -> None:
        try:
            is_known = self._channel.broker.knows_exchange(name, "publish")
        except PenstockError as error:
            raise fault_of(error) from None
        if not is_known:
            raise not_found("exchange", name, self._channel.vhost)

    def settle(self, tag: int, multiple: bool, action: Action) -> None:
        """Hold this; a tag that is not known is a fault at once."""
        taken = self._channel.settling.take(tag, multiple)
        self._settled += [(known, delivered, action) for known, delivered in taken]

    async def commit(self) -> None:
        """Do all of it, or nothing and a fault."""
        runs, settled = self._runs, self._settled
        self._forget()
        if runs or settled:
            try:
                await self._commit(runs, [(delivered, action) for _, delivered, action in settled])
            except LeaseLost as error:
                raise precondition(f"not committed: some of what it settles is not this channel's: {error}") from None
            except PenstockError as error:
                raise fault_of(error) from None

    async def _commit(self, runs: list[Run], settled: list[tuple[Delivered, Action]]) -> None:
        channel = self._channel
        for run in runs:
            await have_exchange(channel, run.exchange)
        transaction = channel.broker.transaction()
        events: list[Publish] = []
        nowhere: list[Publish] = []
        for run in runs:
            if run.queue is None:
                transaction.publish_to(run.exchange, *run.messages)
            elif channel.broker.knows_queue(run.queue, "publish"):
                transaction.publish(run.queue, *run.messages)
            else:
                nowhere += run.events
                continue
            events += run.events
        channel.settling.add_to(transaction, settled)
        reached = reached_by(await transaction.commit())
        channel.settling.told(settled)
        channel.connection.host.measures.published += len(events)
        nowhere += [event for index, event in enumerate(events) if index not in reached]
        for event in nowhere:
            channel.publishing.send_back(event)

    def roll_back(self) -> None:
        """Forget what was held: nothing is published, nothing is settled."""
        self._channel.settling.put_back([(tag, delivered) for tag, delivered, _ in self._settled])
        self._forget()

    def _forget(self) -> None:
        self._runs, self._settled, self._size, self._count = [], [], 0, 0
