"""Exchanges and their bindings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from penstock.api.broker import Broker
from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.handlers.queues import Options, known
from penstock.fronts.http.request import NOTHING, Answer, json_answer
from penstock.fronts.http.routes import Call
from penstock.model import ExchangeConfig
from penstock.model.errors import AlreadyExists, NotFound
from penstock.wire.http.shapes import (
    BindingBody,
    BindingsAnswer,
    ExchangesAnswer,
    QueueBody,
    binding_body,
)

ROUTES = Routes(__name__)
EXCHANGE = "/v1/exchanges/{exchange}"


@ROUTES.add("GET", "/v1/exchanges", {200: ExchangesAnswer})
async def list_exchanges(call: Call) -> Answer:
    """The exchanges of a namespace, each with its options that differ from the defaults."""
    exchanges = sorted((await call.broker.exchanges()).items())
    return json_answer(ExchangesAnswer([QueueBody(name=name, options=options) for name, options in exchanges]))


@ROUTES.add("PUT", EXCHANGE, {200: QueueBody, 201: QueueBody}, body_schema=ExchangeConfig, errors=[AlreadyExists])
async def declare_exchange(call: Call, body: Options) -> Answer:
    """Create an exchange, or change the options named here."""
    name = call.names["exchange"]
    status = 200 if name in await call.broker.exchanges() else 201
    await call.broker.declare_exchange(name, **known(body, ExchangeConfig))
    return json_answer(await _exchange(call), status)


@ROUTES.add("GET", EXCHANGE, {200: QueueBody})
async def show_exchange(call: Call) -> Answer:
    """An exchange and its options that differ from the defaults."""
    return json_answer(await _exchange(call))


async def _exchange(call: Call) -> QueueBody:
    name = call.names["exchange"]
    options = (await call.broker.exchanges()).get(name)
    if options is None:
        raise NotFound(f"there is no exchange {name!r}; declare it first")
    return QueueBody(name=name, options=options)


ROUTES.forward("DELETE", EXCHANGE, Broker.delete_exchange)


@ROUTES.add("GET", EXCHANGE + "/bindings", {200: BindingsAnswer})
async def list_bindings(call: Call) -> Answer:
    """The bindings from an exchange."""
    bindings = await call.broker.bindings(call.names["exchange"])
    return json_answer(BindingsAnswer([binding_body(binding) for binding in bindings]))


@ROUTES.add("POST", EXCHANGE + "/bind", {204: None}, errors=[AlreadyExists])
async def bind(call: Call, body: BindingBody) -> Answer:
    """Bind a queue or another exchange to an exchange."""
    return await _change(call.broker.bind, call, body)


@ROUTES.add("POST", EXCHANGE + "/unbind", {204: None})
async def unbind(call: Call, body: BindingBody) -> Answer:
    """Remove a binding."""
    return await _change(call.broker.unbind, call, body)


async def _change(change: Callable[..., Awaitable[None]], call: Call, body: BindingBody) -> Answer:
    await change(**msgspec.structs.asdict(body.binding(call.names["exchange"])))
    return NOTHING
