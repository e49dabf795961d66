"""Exchanges and their bindings."""

from __future__ import annotations

from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.handlers.queues import Options, known
from penstock.fronts.http.request import Answer, json_answer
from penstock.fronts.http.routes import Call
from penstock.model import ExchangeConfig
from penstock.model.errors import AlreadyExists, NotFound
from penstock.wire.http.answers import QueueBody
from penstock.wire.http.endpoints import EXCHANGE

ROUTES = Routes(__name__)


@ROUTES.add("PUT", EXCHANGE, {200: QueueBody, 201: QueueBody}, body_schema=ExchangeConfig, errors=[AlreadyExists])
async def declare_exchange(call: Call, body: Options) -> Answer:
    """Create an exchange, or change the options named here."""
    name = call.names["exchange"]
    status = 200 if call.broker.knows_exchange(name, "declare") else 201
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
