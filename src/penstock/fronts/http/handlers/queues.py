"""Queues: list, declare, change, delete, pause."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Any, Final, TypeVar

from msgspec import Meta, Struct

from penstock.api.inspect import QueueStats
from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.request import Answer, json_answer
from penstock.fronts.http.routes import Call
from penstock.model import ExchangeConfig, GroupConfig, QueueConfig, make_config
from penstock.model.errors import AlreadyExists, LimitReached, NotFound
from penstock.wire.http.answers import QueueBody, QueuesAnswer, StatsAnswer
from penstock.wire.http.endpoints import QUEUE

ROUTES = Routes(__name__)
Options = dict[str, Any]
STATS_AT_ONCE: Final = 20
Config = TypeVar("Config", QueueConfig, GroupConfig, ExchangeConfig)


def known(options: Options, kind: type[Config]) -> Options:
    """The options, where there are such: one called `name` or `self` must not get among the arguments of a method."""
    for name in options:
        if name not in kind.__struct_fields__:
            make_config(kind, {name: None})  # raises, with a hint
    return options


class ListQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Part of a list by name."""

    prefix: str = ""
    """Only names that begin so."""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    """Names of a page."""
    after: str = ""
    """Only names after this one: a page's `next`."""


@ROUTES.add("GET", "/v1/queues", {200: QueuesAnswer})
async def list_queues(call: Call, query: ListQuery) -> Answer:
    """The queues of a namespace by name, each with its options that differ from the defaults."""
    page = await call.broker.queues_page(query.prefix, after=query.after, max=query.limit)
    bodies = [QueueBody(name=name, options=options) for name, options in page.queues]
    return json_answer(QueuesAnswer(queues=bodies, next=page.next))


@ROUTES.add(
    "PUT", QUEUE, {200: QueueBody, 201: QueueBody}, body_schema=QueueConfig, errors=[AlreadyExists, LimitReached]
)
async def declare_queue(call: Call, body: Options) -> Answer:
    """Create a queue, or change the options named here of the one that exists."""
    name = call.names["queue"]
    status = 200 if call.broker.knows_queue(name, "declare") else 201
    await call.broker.declare_queue(name, **known(body, QueueConfig))
    return json_answer(await _queue(call, name), status)


@ROUTES.add("PATCH", QUEUE, {200: QueueBody}, body_schema=QueueConfig, errors=[AlreadyExists])
async def change_queue(call: Call, body: Options) -> Answer:
    """Change the options named here of a queue that exists."""
    name = call.names["queue"]
    await call.broker.groups(name)  # raises where there is none
    await call.broker.declare_queue(name, **known(body, QueueConfig))
    return json_answer(await _queue(call, name))


async def _queue(call: Call, name: str) -> QueueBody:
    return QueueBody(name=name, options=await call.broker.queue_options(name))


class StatsQuery(ListQuery, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    """Names of a page."""


@ROUTES.add("GET", "/v1/stats", {200: StatsAnswer})
async def stats(call: Call, query: StatsQuery) -> Answer:
    """Counts of the queues of a namespace, by name; and the server's alarms, while memory or disk is low."""
    page = await call.broker.queues_page(query.prefix, after=query.after, max=query.limit)
    found: list[QueueStats] = []
    for name, _ in page.queues:
        with suppress(NotFound):  # deleted since
            found.append(await call.broker.stats(name))
        if len(found) % STATS_AT_ONCE == 0:
            await asyncio.sleep(0)  # counts of a queue in memory are there without a wait
    return json_answer(StatsAnswer(queues=found, next=page.next, alarms=list(call.broker.alarms())))
