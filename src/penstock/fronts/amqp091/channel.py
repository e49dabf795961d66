"""One channel: does what its client asks for in the order in which it was asked.

Publishes and methods stand in line and are carried out one after the other, publishes that stand together at once;
settling needs no turn unless a method is waiting. A fault closes the channel: what stands behind it is forgotten, what
it held returns. Knows the broker and the wire; the socket is `connection.py`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pamqp.base import Frame
from pamqp.commands import Basic, Confirm, Exchange, Queue, Tx
from pamqp.commands import Channel as Flow

from penstock.fronts.amqp091 import declaring, subscribing
from penstock.fronts.amqp091.consuming import Standing
from penstock.fronts.amqp091.errors import (
    ChannelFault,
    ConnectionFault,
    fault_of,
    not_found,
    not_implemented,
    precondition,
)
from penstock.fronts.amqp091.publishing import ENCODE_FROM, RUN_BYTES, RUN_MESSAGES, Publishing
from penstock.fronts.amqp091.settling import Action, ConsumerKey, Settling
from penstock.fronts.amqp091.streams import GroupReader
from penstock.fronts.amqp091.transactions import Transactions
from penstock.model.errors import Forbidden, NotFound, PenstockError
from penstock.wire.amqp091 import codes
from penstock.wire.amqp091.events import Ack, Nack, Publish, Reject
from penstock.wire.amqp091.methods import make

if TYPE_CHECKING:
    from penstock.fronts.amqp091.connection import Connection

log = logging.getLogger("penstock.amqp")


class Channel:
    """What one client does on one channel."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.broker = connection.broker
        self.vhost = connection.vhost
        self.is_closed = False
        """Nothing more is sent on it."""
        self.flows = True
        """The client has not stopped deliveries with channel.flow."""
        self.prefetch = 0
        """Prefetch of all consumers together; 0 is no limit."""
        self.consumer_prefetch = 0
        """Prefetch of each consumer that subscribes from now on."""
        self.unsettled = 0
        """Delivered to consumers and not settled."""
        self.delivery_tag = 0
        """The last delivery tag."""
        self.last_queue: str | None = None
        self.consumers: dict[str, Standing] = {}
        self.settling = Settling(self.broker)
        self.publishing = Publishing(self)
        self.transactions = Transactions(self)
        self._line: deque[Publish | Ack | Nack | Reject | Frame] = deque()
        self._methods = 0
        """Methods that wait in `_line`."""
        self._worker: asyncio.Task[None] | None = None
        self._is_answering = False
        self._cancels: list[Frame] = []
        """That the client is told of after the answer under way."""
        self._places = 0

    # What comes -------------------------------------------------------------------------------------------

    def publish(self, event: Publish) -> None:
        """Queue a publish; `work` follows when everything that was read is parsed."""
        self._line.append(event)

    def work(self) -> None:
        """Start on the line unless a task already works on it; a few publishes alone need no task."""
        if self._worker is not None or not self._line or self.is_closed:
            return
        is_plain = not self._methods and not self.transactions.is_on and len(self._line) < ENCODE_FROM
        events = [event for event in self._line if type(event) is Publish] if is_plain else []
        if events and len(events) == len(self._line) and self.publishing.begin(events):
            self._line.clear()
        else:
            self._work()

    def settle(self, event: Ack | Nack | Reject) -> None:
        if self._methods:
            self._line.append(event)
            return
        try:
            self._settle(event)
        except ChannelFault as fault:
            self.fail(fault, codes.BASIC_ACK)

    def method(self, method: Frame) -> None:
        self._line.append(method)
        self._methods += 1
        if self._worker is None:
            self._work()

    def _work(self) -> None:
        self._worker = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        index = codes.BASIC_PUBLISH
        try:
            await self.publishing.landed()
            while self._line and not self.is_closed:
                first = self._line[0]
                if type(first) is Publish:
                    index = codes.BASIC_PUBLISH
                    await self._publish(self._take_publishes())
                    continue
                self._line.popleft()
                if isinstance(first, Frame):
                    index = first.index
                    await self._carry_out(first)
                    self._methods -= 1
                elif not isinstance(first, Publish):
                    index = codes.BASIC_ACK
                    self._settle(first)
                    self.settling.start()
        except ChannelFault as fault:
            self.fail(fault, index)
        except Exception:
            log.exception("channel %d of %s failed", self.number, self.connection.name)
            self.fail(
                ConnectionFault(codes.INTERNAL_ERROR, "the server failed in an unexpected way; its log has the details")
            )
        finally:
            self._worker = None

    def _take_publishes(self) -> list[Publish]:
        """Publishes at the head of the line, as many as fit one call."""
        line, size = self._line, 0
        taken: list[Publish] = []
        while line and len(taken) < RUN_MESSAGES and size < RUN_BYTES and type(line[0]) is Publish:
            event: Any = line.popleft()
            taken.append(event)
            size += len(event.body)
        return taken

    async def _publish(self, events: list[Publish]) -> None:
        try:
            if self.transactions.is_on:
                self.transactions.publish(events)
            else:
                await self.publishing.publish(events)
        finally:
            self.connection.published(events)

    def _settle(self, event: Ack | Nack | Reject) -> None:
        action: Action = "ack" if type(event) is Ack else "reject"
        if isinstance(event, Nack | Reject) and event.requeue:
            action = "nack"
        multiple = not isinstance(event, Reject) and event.multiple
        settle = self.transactions.settle if self.transactions.is_on else self.settling.settle
        settle(event.delivery_tag, multiple, action)

    # Methods ----------------------------------------------------------------------------------------------

    async def _carry_out(self, method: Frame) -> None:
        found = METHODS.get(type(method))
        if found is None:
            raise not_implemented(method.name)
        if self.settling.returns:
            await self.settling.finish()  # what the client has given back is there when this is done
        else:
            self.settling.start()
        self._is_answering = True
        try:
            answer = await found(self, method)
            # AMQP never answers an ack: the answer to what was asked after it says that it is stored.
            if answer is not None and not self.is_closed and await self.settling.finish():
                self.connection.wire.send(self.number, answer)
        except PenstockError as error:
            raise fault_of(error) from None
        finally:
            self._is_answering = False
        self._tell_cancels()

    def queue_name(self, name: str) -> str:
        """The queue that a method is about; an empty name is the one that was declared last."""
        if name:
            return name
        if self.last_queue is None:
            raise not_found("queue", "", self.vhost)
        return self.last_queue

    async def check_queue(self, name: str) -> None:
        """Raise unless there is such a queue, and this connection may use it."""
        if not await self.broker.has_queue(name):
            raise not_found("queue", name, self.vhost)
        await self.broker.queue_options(name)

    def look(self) -> None:
        """There may be room for deliveries again."""
        for consumer in self.consumers.values():
            consumer.look()

    async def flow(self, method: Flow.Flow) -> Frame:
        """Start or stop deliveries, as the client wishes."""
        self.flows = bool(method.active)
        if method.active:
            self.look()
        else:
            await asyncio.gather(*(consumer.hold() for consumer in self.consumers.values()))
        return make(Flow.FlowOk, active=method.active)

    async def recover(self, method: Basic.Recover | Basic.RecoverAsync) -> Frame | None:
        """Redeliver everything unsettled, to any consumer."""
        if not method.requeue:
            raise not_implemented("basic.recover with requeue=false")
        if self.settling.unacked:
            self.settling.settle(0, True, "nack")
            await self.settling.finish()
        return make(Basic.RecoverOk) if isinstance(method, Basic.Recover) else None

    async def confirm(self, method: Confirm.Select) -> Frame | None:
        if self.transactions.is_on:
            raise precondition("cannot switch from tx to confirm mode")
        self.publishing.confirms = True
        return None if method.nowait else make(Confirm.SelectOk)

    async def transact(self, method: Tx.Select | Tx.Commit | Tx.Rollback) -> Frame:
        if isinstance(method, Tx.Select):
            if self.publishing.confirms:
                raise precondition("cannot switch from confirm to tx mode")
            self.transactions.is_on = True
            return make(Tx.SelectOk)
        if not self.transactions.is_on:
            raise precondition("channel is not transactional")
        if isinstance(method, Tx.Commit):
            await self.transactions.commit()
            return make(Tx.CommitOk)
        self.transactions.roll_back()
        return make(Tx.RollbackOk)

    async def cancelled(self, _method: Basic.CancelOk) -> None:
        """The client has heard that its consumer is gone."""

    # Consumers --------------------------------------------------------------------------------------------

    def new_place(self) -> str:
        """The name of a consumer as the broker knows it."""
        self._places += 1
        return f"{self.connection.name}/{self.number}.{self._places}"

    @property
    def getting_place(self) -> str:
        return f"{self.connection.name}/{self.number}.get"

    def consumer_gone(self, consumer: Standing) -> None:
        """The consumer's queue was deleted: cancel it, and tell the client."""
        if self.consumers.pop(consumer.tag, None) is consumer:
            self.connection.host.measures.consumers -= 1
            if self.connection.hears_cancels:
                self._cancels.append(make(Basic.Cancel, consumer_tag=consumer.tag, nowait=True))
                if not self._is_answering:
                    self._tell_cancels()

    def _tell_cancels(self) -> None:
        """Not before the answer to a method: a client that deletes a queue is told of that first, as by RabbitMQ."""
        for cancel in self._cancels:
            self.connection.wire.send(self.number, cancel)
        self._cancels.clear()
        self.connection.flush_soon()

    async def let_go(self, consumer: Standing) -> None:
        """Stop and detach a consumer; the client may still settle what was delivered."""
        self.connection.host.measures.consumers -= 1
        await consumer.stop()
        await self.settling.finish()  # or what the client has acknowledged would return with what it has not
        queue, group, name = consumer.place
        if isinstance(consumer, GroupReader):
            await self._leave_group(consumer)
            return
        with suppress(PenstockError):
            await self.broker.detach(queue, group, consumer=name, keep=consumer.unsettled > 0)

    def sweep(self, now: float) -> None:
        """Renew leases, and find queues that were deleted while no claim waited."""
        self.settling.renew(now)
        self.find_gone()

    def find_gone(self) -> None:
        for consumer in [one for one in self.consumers.values() if one.is_idle]:
            if not self._may_consume(consumer.place.queue):
                self.consumer_gone(consumer)
                self.connection.keep(asyncio.get_running_loop().create_task(consumer.stop()))

    def _may_consume(self, queue: str) -> bool:
        try:
            return self.broker.knows_queue(queue, "consume")
        except Forbidden:
            return False

    # Ends -------------------------------------------------------------------------------------------------

    def fail(self, fault: ChannelFault, index: int = 0) -> None:
        """Close the channel with a fault; a `ConnectionFault` closes the connection."""
        if self.is_closed:
            return
        self.is_closed = True
        log.info("channel %d of %s is closed: %d %s", self.number, self.connection.peer, fault.code, fault.text)
        wire = self.connection.wire
        if isinstance(fault, ConnectionFault):
            wire.connection_error(fault.code, fault.text, index >> 16, index & 0xFFFF)
            self.connection.end(fault.text)
        else:
            wire.channel_error(self.number, fault.code, fault.text, index >> 16, index & 0xFFFF)
            self.connection.channel_failed(self)
        self.connection.flush_soon()

    async def close(self) -> None:
        """Finish the line unless the channel failed, then give back everything it holds."""
        self.settling.hurry()  # or it would wait for a store that is away
        self.work()
        if self._worker is not None and self._worker is not asyncio.current_task():
            await asyncio.wait([self._worker])
        await self.publishing.landed()
        self.is_closed = True
        for event in self._line:
            if type(event) is Publish:
                self.connection.published([event])
        self._line.clear()
        consumers = list(self.consumers.values())
        self.consumers.clear()
        await asyncio.gather(*(consumer.stop() for consumer in consumers))
        self.connection.host.measures.consumers -= len(consumers)
        readers = [consumer for consumer in consumers if isinstance(consumer, GroupReader)]
        places = await self.settling.end() | {one.place for one in consumers if one not in readers}
        await asyncio.gather(*map(self._leave_group, readers), *map(self._leave, places))

    async def _leave_group(self, reader: GroupReader) -> None:
        """Detach a stream group's reader; what it did not acknowledge is read again."""
        with suppress(PenstockError):
            await reader.commit_settled()
        queue, group, _ = reader.place
        await asyncio.gather(*(self._leave(ConsumerKey(queue, group, name)) for name in reader.names))

    async def _leave(self, place: ConsumerKey) -> None:
        """Detach a consumer, which gives back what it holds; retried until it works or the session ends."""
        try:
            await self.broker.detach(place.queue, place.group, consumer=place.consumer)
        except NotFound:
            pass
        except PenstockError as error:
            log.warning("what a consumer of %r held returns later: %s", place.queue, error)


METHODS: Final[dict[type[Frame], Callable[[Channel, Any], Awaitable[Frame | None]]]] = {
    Exchange.Declare: declaring.declare_exchange,
    Exchange.Delete: declaring.delete_exchange,
    Exchange.Bind: declaring.bind_exchange,
    Exchange.Unbind: declaring.unbind_exchange,
    Queue.Declare: declaring.declare_queue,
    Queue.Bind: declaring.bind_queue,
    Queue.Unbind: declaring.unbind_queue,
    Queue.Purge: declaring.purge_queue,
    Queue.Delete: declaring.delete_queue,
    Basic.Qos: subscribing.set_prefetch,
    Basic.Consume: subscribing.consume,
    Basic.Cancel: subscribing.cancel,
    Basic.CancelOk: Channel.cancelled,
    Basic.Get: subscribing.get,
    Basic.Recover: Channel.recover,
    Basic.RecoverAsync: Channel.recover,
    Confirm.Select: Channel.confirm,
    Tx.Select: Channel.transact,
    Tx.Commit: Channel.transact,
    Tx.Rollback: Channel.transact,
    Flow.Flow: Channel.flow,
}
