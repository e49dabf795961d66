"""What `penstock serve` prints when it is ready: where it listens, what it declared, and lines to paste and try."""

from __future__ import annotations

import ipaddress

from penstock.config import Loaded
from penstock.fronts.amqp091.server import AmqpServer
from penstock.fronts.mqtt.server import MqttServer
from penstock.store.open import label_of
from penstock.version import VERSION


def announcement(
    loaded: Loaded,
    port: int,
    declared: dict[str, int],
    amqp: AmqpServer | None = None,
    mqtt: MqttServer | None = None,
) -> str:
    config = loaded.config
    url = url_of(config.http.host, port)
    lines = [f"Penstock {VERSION} listens on {url} and keeps its data in {label_of(config.store.path)}"]
    if loaded.file is not None:
        counts = ", ".join(f"{count} {DONE[action]}" for action, count in declared.items())
        lines.append(f"Configured by {loaded.file}" + (f"; declared from it: {counts}" if counts else ""))
    if amqp is not None:
        lines.append(f"AMQP 0.9.1 is at {url_of(amqp.options.host, amqp.port).replace('http://', 'amqp://')}")
    if mqtt is not None:
        lines.append(f"MQTT is at {_mqtt_places(mqtt)}")
    token = ' -H "Authorization: Bearer $PENSTOCK_TOKEN"' if config.http.token else ""
    queue = f"{url}/v1/queues/hello"
    json = "-H 'Content-Type: application/json'"
    lines += [
        "",
        f"Try in another terminal{', with PENSTOCK_TOKEN set to the token' if token else ''}:",
        f"  curl{token} -X PUT {queue} {json} -d '{{}}'",
        f'  curl{token} {queue}/messages {json} -d \'{{"messages": [{{"payload": "hello, world"}}]}}\'',
        f'  curl{token} {queue}/claim {json} -d \'{{"max": 10, "wait": 5, "ack": true}}\'',
        "",
        f"The API is described at {url}/docs. Ctrl+C stops the server; the data stays.",
    ]
    return "\n".join(lines)


def _mqtt_places(mqtt: MqttServer) -> str:
    host = mqtt.options.host
    plain = url_of(host, mqtt.port).replace("http://", "mqtt://")
    if not mqtt.options.websocket:
        return plain
    return f"{plain} and {url_of(host, mqtt.websocket_port).replace('http://', 'ws://')}/mqtt"


DONE = {"create": "created", "change": "changed", "unchanged": "unchanged", "delete": "deleted"}


def url_of(host: str, port: int) -> str:
    """An address to paste on this machine: where the server listens everywhere, loopback is part of it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
