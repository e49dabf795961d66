"""What a front is: it listens, answers clients in its protocol with what the broker says, and stops gracefully.

`penstock serve` builds every front of `registry.py` from its section of the configuration. A front knows the broker and
its own protocol; it knows neither the other fronts nor how many nodes there are.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from penstock.fronts.answers import Answers
from penstock.fronts.auth import OPEN, Credentials
from penstock.model import BATCH_BYTES_DEFAULT, PAYLOAD_BYTES_DEFAULT
from penstock.model.setting_types import MIB

if TYPE_CHECKING:
    from penstock.fronts.metrics import FrontMeasures


class FrontOptions(Protocol):
    """A front's section of the configuration: these options and its own."""

    __struct_fields__: ClassVar[tuple[str, ...]]

    @property
    def enabled(self) -> bool: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def max_connections(self) -> int: ...


class Address(NamedTuple):
    """Where a front listens."""

    scheme: str
    host: str
    port: int
    path: str = ""

    @property
    def url(self) -> str:
        """Something to paste on this machine: a front that listens everywhere listens on loopback too."""
        host = self.host
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return f"{self.scheme}://{host}:{self.port}{self.path}"
        if address.is_unspecified:
            host = "127.0.0.1" if address.version == 4 else "::1"
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{self.port}{self.path}"


class Front(Protocol):
    """One protocol of one server. Its class takes the broker, its section and a `Shared`."""

    measures: FrontMeasures
    """What it counts, for `/metrics`."""

    @property
    def listening(self) -> Sequence[Address]:
        """Where clients reach it, once it has started."""

    async def start(self) -> None:
        """Listen; `CannotListen` where a port cannot be had."""

    async def stop(self) -> None:
        """Accept nothing more, finish what clients have asked for, close their connections."""


class Shared(NamedTuple):
    """What all fronts of one server have in common."""

    credentials: Credentials = OPEN
    log_requests: bool = False
    """Log a line for each HTTP request."""
    has_metrics: bool = True
    """Answer `/metrics`,"""
    metrics_queues_max: int = 1_000
    """with series of their own for at most this many queues."""
    fronts: Sequence[Front] = ()
    """All of them: `/metrics` shows what each measures."""
    message_bytes: int = PAYLOAD_BYTES_DEFAULT
    """The largest payload of a message,"""
    batch_bytes: int = BATCH_BYTES_DEFAULT
    """and of one publish."""
    answers: Answers | None = None
    """The large answers and deliveries under way; None: each front counts its own."""

    @property
    def body_bytes(self) -> int:
        """The largest body of an HTTP request: a batch, or a message in base64, and what is around it."""
        return max(self.batch_bytes, self.message_bytes * 4 // 3) + MIB
