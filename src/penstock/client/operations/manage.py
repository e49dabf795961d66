"""Declaring, inspecting and administering, from a client: most of it one request each, as the table says.

Every one of these may be sent twice without harm, so all of them are tried again after a lost connection.
"""

from __future__ import annotations

from typing import Any, Literal, Unpack

import msgspec

from penstock.api.broker import Broker
from penstock.api.inspect import HistoryEntry
from penstock.api.options import ExchangeOptions, GroupOptions, QueueOptions
from penstock.client.operations.requests import Requests, requested
from penstock.client.transport.channel import NO_RETRY, Request
from penstock.model import DEFAULT_GROUP
from penstock.model.errors import InvalidArgument, NotFound
from penstock.wire.http.answers import HistoryAnswer, QueuesAnswer
from penstock.wire.http.shapes import Status


class ClientManagement(Requests):
    """Everything but moving messages."""

    delete_queue = requested(Broker.delete_queue)
    queue_options = requested(Broker.queue_options)
    delete_group = requested(Broker.delete_group)
    groups = requested(Broker.groups)
    delete_exchange = requested(Broker.delete_exchange)
    exchanges = requested(Broker.exchanges)
    bind = requested(Broker.bind)
    unbind = requested(Broker.unbind)
    bindings = requested(Broker.bindings)
    detach = requested(Broker.detach)
    stop_waiting = requested(Broker.stop_waiting)

    declare_schedule = requested(Broker.declare_schedule)
    delete_schedule = requested(Broker.delete_schedule)
    schedule = requested(Broker.schedule)
    schedules = requested(Broker.schedules)

    browse = requested(Broker.browse)
    stats = requested(Broker.stats)
    dead = requested(Broker.dead)
    dead_ranges = requested(Broker.dead_ranges)
    dead_reasons = requested(Broker.dead_reasons)
    redrive = requested(Broker.redrive)
    purge_dead = requested(Broker.purge_dead)
    seek = requested(Broker.seek)
    purge = requested(Broker.purge)
    pause = requested(Broker.pause)
    resume = requested(Broker.resume)
    trace_event = requested(Broker.trace_event)
    trace = requested(Broker.trace)
    enqueued_failed = requested(Broker.enqueued_failed)
    retry_enqueued = requested(Broker.retry_enqueued)
    purge_enqueued = requested(Broker.purge_enqueued)

    # What is more than one request, or not by name --------------------------------------------------------

    async def declare_queue(self, name: str, **options: Unpack[QueueOptions]) -> None:
        await self._send(b"PUT", self._target("queues", name), options)

    async def declare_group(self, queue: str, name: str, **options: Unpack[GroupOptions]) -> None:
        await self._send(b"PUT", self._target("queues", queue, "groups", name), options)

    async def declare_exchange(self, name: str, **options: Unpack[ExchangeOptions]) -> None:
        await self._send(b"PUT", self._target("exchanges", name), options)

    async def queues(self, prefix: str = "") -> dict[str, dict[str, Any]]:
        pages = self._pages(QueuesAnswer, self._target("queues"), prefix)
        return {queue.name: queue.options async for page in pages for queue in page.queues}

    async def has_queue(self, name: str) -> bool:
        try:
            await self.queue_options(name)
        except NotFound:
            return False
        return True

    async def attach(
        self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None, exclusive: bool = False
    ) -> str:
        name = self.consumer_name if consumer is None else consumer
        await self._attach(queue, group, consumer=name, exclusive=exclusive)
        return name

    _attach = requested(Broker.attach)

    async def history(self, queue: str, offset: int, *, lane: int | None = None) -> list[HistoryEntry]:
        if lane is None:
            lanes = (await self.stats(queue)).lanes
            if lanes > 1:
                raise InvalidArgument(f"queue {queue!r} has lanes 0 to {lanes - 1}: say which one with lane=")
            lane = 0
        path = self._target("queues", queue, "messages", str(lane), str(offset), "history")
        return (await self._get(HistoryAnswer, path)).history

    async def check_ready(self) -> Literal["ready", "buffering"]:
        answer = await self._channel.send(Request(b"GET", b"/readyz"), NO_RETRY)
        return "buffering" if msgspec.json.decode(answer.body, type=Status).status == "buffering" else "ready"
