"""The fronts that a server has. A new one is a folder beside this file and a line in `FRONTS`.

From the line follow its section of the configuration with its variables and flags, its place in `penstock serve`, and
its numbers in `/metrics`. A front's server is imported when it is built: reading the configuration needs none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.fronts.amqp091.options import AmqpOptions
from penstock.fronts.front import Front, FrontOptions, Shared
from penstock.fronts.http.options import HttpOptions
from penstock.fronts.mqtt.options import MqttOptions

if TYPE_CHECKING:
    from penstock.api.front_broker import FrontBroker


class Entry(NamedTuple):
    """One front."""

    name: str
    """Its section of the configuration."""
    title: str
    """The protocol, for people."""
    options: type[FrontOptions]
    server: str
    """Module and class of its `Front`."""
    is_for_nodes: bool = False
    """Nodes reach each other through it: it is always there, and listens before a node joins its cluster and until it
    has left. Only the first can be."""

    @property
    def ports(self) -> list[str]:
        """The options that are ports."""
        return [name for name in self.options.__struct_fields__ if name == "port" or name.endswith("_port")]

    def build(self, broker: FrontBroker, options: FrontOptions, shared: Shared) -> Front:
        """The front, which does not listen yet."""
        module, _, name = self.server.partition(":")
        front: Front = getattr(import_module(module), name)(broker, options, shared)
        return front


FRONTS: Final = (
    Entry("http", "HTTP", HttpOptions, "penstock.fronts.http.server:HttpServer", is_for_nodes=True),
    Entry("amqp", "AMQP 0.9.1", AmqpOptions, "penstock.fronts.amqp091.server:AmqpServer"),
    Entry("mqtt", "MQTT", MqttOptions, "penstock.fronts.mqtt.server:MqttServer"),
)
FOR_NODES: Final = FRONTS[0]
"""The one that `is_for_nodes`."""
