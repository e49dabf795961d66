"""Declarations: queues, groups, exchanges, bindings and schedules, and consumers that say when they come and go."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypedDict, Unpack

import msgspec

from penstock.api.options import ExchangeOptions, GroupOptions, QueueOptions
from penstock.model import DEFAULT_GROUP, Binding, Headers, Message


class BindingOptions(TypedDict, total=False):
    """What a binding is besides its pattern: see `penstock.model.Binding`."""

    target_kind: Literal["queue", "exchange"]
    """What the target is: a queue, unless said otherwise."""
    headers: Headers | None
    """What a headers exchange compares."""
    match: Literal["all", "any"]
    """All of the headers, unless said otherwise, or any."""


class Schedule(msgspec.Struct, frozen=True):
    """A schedule as it stands. Exactly one of queue and exchange is given, and one of cron and interval_ms."""

    name: str
    message: Message
    queue: str | None = None
    exchange: str | None = None
    cron: str | None = None
    interval_ms: int | None = None
    timezone: str = "UTC"
    paused: bool = False
    description: str = ""
    next_ms: int | None = None
    """The tick it waits for; None while it is paused."""
    last_ms: int | None = None
    """The last tick for which a message was published."""
    fired: int = 0
    """How many ticks published a message."""
    last_error: str = ""
    """Why the latest tick published nothing; empty when it did."""


class Declarations(Protocol):
    """What there is in a namespace, and changing it. Every declaration may be repeated."""

    # Queues and groups ------------------------------------------------------------------------------------

    async def declare_queue(self, name: str, **options: Unpack[QueueOptions]) -> None:
        """Create a queue, or change the options named here of the one that exists (see `QueueConfig`)."""

    async def delete_queue(self, name: str) -> None:
        """Delete a queue with everything in it."""

    async def queues(self, prefix: str = "") -> dict[str, dict[str, Any]]:
        """The queues of this namespace by name, each with its options that differ from the defaults.

        With a prefix, only queues whose names begin with it.
        """

    async def has_queue(self, name: str) -> bool:
        """Whether there is a queue of this name in this namespace."""

    async def queue_options(self, name: str) -> dict[str, Any]:
        """The options of one queue that differ from the defaults."""

    async def declare_group(self, queue: str, name: str, **options: Unpack[GroupOptions]) -> None:
        """Create a consumer group, or change the options named here (see `GroupConfig`)."""

    async def delete_group(self, queue: str, name: str) -> None:
        """Delete a group with its leases, waiting and dead messages."""

    async def groups(self, queue: str) -> dict[str, dict[str, Any]]:
        """The groups of a queue by name, each with its options that differ from the defaults."""

    # Exchanges and bindings -------------------------------------------------------------------------------

    async def declare_exchange(self, name: str, **options: Unpack[ExchangeOptions]) -> None:
        """Create an exchange (see `ExchangeConfig`)."""

    async def delete_exchange(self, name: str) -> None:
        """Delete an exchange with the bindings from and to it."""

    async def exchanges(self) -> dict[str, dict[str, Any]]:
        """The exchanges of this namespace by name, each with its options that differ from the defaults."""

    async def bind(self, exchange: str, target: str, pattern: str = "", **options: Unpack[BindingOptions]) -> None:
        """Bind a queue (or exchange) to an exchange: see `Binding` for what the pattern means to each kind."""

    async def unbind(self, exchange: str, target: str, pattern: str = "", **options: Unpack[BindingOptions]) -> None:
        """Remove a binding."""

    async def bindings(self, exchange: str) -> list[Binding]:
        """The bindings of an exchange, in the order of binding."""

    # Schedules: messages that are published again and again ----------------------------------------------

    async def declare_schedule(
        self,
        name: str,
        *,
        message: Message,
        queue: str | None = None,
        exchange: str | None = None,
        cron: str | None = None,
        interval_ms: int | None = None,
        timezone: str = "UTC",
        paused: bool = False,
        description: str = "",
    ) -> Schedule:
        """Publish a message to a queue or exchange again and again. Replaces the schedule of that name, if any.

        `cron` has five fields, or six with seconds first, read in `timezone`. `interval_ms` is at least 100; its ticks
        are its whole multiples since the epoch. Each tick publishes one message, with the headers `schedule` (the name)
        and `scheduled_ms` (the tick). Ticks missed because no broker ran are made up for by one message, for the
        latest of them; ticks missed while paused are not. Where the clocks change, a five-field expression with a fixed
        minute and hour fires once a day: at the first minute after a gap, and the first of two equal times; all others
        follow real time.
        """

    async def delete_schedule(self, name: str) -> None:
        """Delete a schedule; what it published stays."""

    async def schedule(self, name: str) -> Schedule:
        """A schedule, when it fired last and when it fires next."""

    async def schedules(self) -> list[Schedule]:
        """The schedules of this namespace by name."""

    # Consumers that come and go ---------------------------------------------------------------------------

    async def attach(
        self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None, exclusive: bool = False
    ) -> str:
        """Announce a consumer; returns its name. A queue with `auto_delete` lives as long as it has one.

        With `exclusive` it is the queue's only consumer: `Forbidden` where there is another, and for all later ones.
        """

    async def detach(
        self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None, keep: bool = False
    ) -> None:
        """Announce that a consumer has gone: what it holds returns at once, counted as an attempt.

        With `keep` it takes no more messages but may still settle what it holds; a second call without `keep` returns
        the rest.
        """

    async def stop_waiting(self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None) -> None:
        """Answer this consumer's waiting claims now: empty, unless messages are already on their way to it."""
