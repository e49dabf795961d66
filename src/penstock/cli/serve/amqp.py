"""The AMQP front of `penstock serve`: from its section of the configuration to a server that listens, and back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from penstock.cli.serve.starting import CannotStart, cannot_listen
from penstock.config import Config
from penstock.fronts.amqp091.options import AmqpOptions
from penstock.fronts.amqp091.server import AmqpServer
from penstock.fronts.http.server import HttpServer
from penstock.fronts.reach import broker_of
from penstock.model.errors import PenstockError


def amqp_options(config: Config) -> AmqpOptions:
    """The section `[amqp]`, with the token that holds for every front."""
    shared: dict[str, Any] = {"token": config.http.token, "insecure": config.http.insecure}
    own = {name: getattr(config.amqp, name) for name in AmqpOptions.__struct_fields__ if name not in shared}
    return AmqpOptions(**own, **shared)


@asynccontextmanager
async def listening_for_amqp(http: HttpServer, config: Config) -> AsyncIterator[AmqpServer | None]:
    """Listen for AMQP beside HTTP, where that is wanted; clients are told goodbye when this ends."""
    if not config.amqp.enabled:
        yield None
        return
    try:
        server = AmqpServer(broker_of(http), amqp_options(config))
        await server.start()
    except OSError as error:
        flag = "--amqp-port, or --no-amqp to do without AMQP"
        raise cannot_listen(error, "amqp", config.amqp.host, config.amqp.port, flag, "amqp.host") from None
    except PenstockError as error:
        raise CannotStart(str(error)) from None
    http.measures.beside.append(server.measures.families)
    try:
        yield server
    finally:
        await server.stop()
