"""What a connection reports to the owner of its socket.

After every call of `receive` and `tick`, and after calls that send something, write `take()` to the socket; once the
connection is `finished`, close the socket after that. The order of the events is the order of the frames.

- `Failed`: the client broke the protocol. The connection has answered with connection.close already: let go of
  everything that the client holds, and leave the socket open; `Lost` follows when the client has confirmed, or by
  `tick` when it does not.
- `ChannelClosed`: the client closed the channel (answer with `close_ok` once what came before is done), or broke a rule
  that costs it this channel alone. Let go of what the channel holds. No call for that channel has an effect until it is
  opened again.
- `Closed`: the client closes the connection cleanly; answer with `close_ok(0)`.
- `Lost`: nothing more will come of this connection: let go of everything, close the socket.

Names are bytes, as on the wire, and are UTF-8 where the engine reports them. `properties` are the flags and the list of
a content header, checked to be well formed (`properties.Properties` reads them).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from pamqp.base import Frame


class Event(Struct, frozen=True, gc=False):
    """One of the classes below."""


class Login(Event, frozen=True, gc=False):
    """Answer with `accept_login` or `refuse_login`."""

    mechanism: str
    """`PLAIN` or `AMQPLAIN`."""
    user: str
    password: str


class NewSecret(Event, frozen=True, gc=False):
    """The client's password from now on. Answer with `accept_secret` or `connection_error`."""

    password: str


class OpenVhost(Event, frozen=True, gc=False):
    """Answer with `accept_vhost` or `refuse_vhost`."""

    name: str


class ChannelOpened(Event, frozen=True, gc=False):
    """The client opened the channel; open-ok is sent already."""

    channel: int


class ChannelClosed(Event, frozen=True, gc=False):
    """The channel is gone: let go of what it holds."""

    channel: int
    code: int
    """What the client gave as its reason, or what it was told."""
    text: str
    by_client: bool
    """The client closed it cleanly; what it sent before still counts."""


class Closed(Event, frozen=True, gc=False):
    """The client closes the connection; what it sent before still counts."""

    code: int
    text: str


class Failed(Event, frozen=True, gc=False):
    """The client broke the protocol; connection.close with this code is under way."""

    code: int
    text: str


class Lost(Event, frozen=True, gc=False):
    """Close the socket."""

    reason: str


class Publish(Event, frozen=True, gc=False):
    """basic.publish with its whole content."""

    channel: int
    exchange: bytes
    routing_key: bytes
    mandatory: bool
    immediate: bool
    properties: bytes
    body: bytes


class Ack(Event, frozen=True, gc=False):
    """basic.ack of the client."""

    channel: int
    delivery_tag: int
    multiple: bool


class Nack(Event, frozen=True, gc=False):
    """basic.nack of the client."""

    channel: int
    delivery_tag: int
    multiple: bool
    requeue: bool


class Reject(Event, frozen=True, gc=False):
    """basic.reject of the client."""

    channel: int
    delivery_tag: int
    requeue: bool


class Method(Event, frozen=True):
    """Any other method: one of pamqp's classes, with texts as str and tables as `tables` reads them.

    A class that pamqp would refuse to construct for its names comes all the same.
    """

    channel: int
    method: Frame
