"""The MQTT front of `penstock serve`: from its section of the configuration to a server that listens, and back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from penstock.cli.serve.starting import CannotStart, cannot_listen
from penstock.config import Config
from penstock.fronts.http.server import HttpServer
from penstock.fronts.mqtt.options import MqttOptions
from penstock.fronts.mqtt.server import CannotListen, MqttServer
from penstock.fronts.reach import broker_of
from penstock.model.errors import PenstockError

FLAGS = {"port": "--mqtt-port", "websocket_port": "--mqtt-websocket-port"}


def mqtt_options(config: Config) -> MqttOptions:
    """The section `[mqtt]`, with the token that holds for every front."""
    shared: dict[str, Any] = {"token": config.http.token, "insecure": config.http.insecure}
    own = {name: getattr(config.mqtt, name) for name in MqttOptions.__struct_fields__ if name not in shared}
    return MqttOptions(**own, **shared)


@asynccontextmanager
async def listening_for_mqtt(http: HttpServer, config: Config) -> AsyncIterator[MqttServer | None]:
    """Listen for MQTT beside HTTP, where that is wanted; nothing more is taken or sent when this ends."""
    if not config.mqtt.enabled:
        yield None
        return
    try:
        server = MqttServer(broker_of(http), mqtt_options(config))
        await server.start()
    except CannotListen as error:
        flag = FLAGS[error.option]
        place = f"{flag}, or --no-mqtt to do without MQTT"
        raise cannot_listen(error.cause, "mqtt", config.mqtt.host, error.port, place, "mqtt.host") from None
    except PenstockError as error:
        raise CannotStart(str(error)) from None
    http.measures.beside.append(server.metrics)
    try:
        yield server
    finally:
        await server.stop()
