"""Options of `declare_queue`, `declare_group` and `declare_exchange`, for type checkers.

Made by `python -m tools.make_typed_options` from `model/options.py`: change that, and make this again. Defaults and
limits are there; at run time an unknown name or a wrong type raises `UnknownOption` or `InvalidArgument`.
"""

from __future__ import annotations

from typing import TypedDict

from penstock.model.options import ExchangeKind, Expired, GroupKind, Overflow, Start


class QueueOptions(TypedDict, total=False):
    """Keyword arguments: see `penstock.model.options.QueueConfig`."""

    lanes: int
    """Ordered logs the queue is split into; a partition stays in one lane. More lanes, more owners."""
    ordered: bool
    """Deliver the messages of one partition strictly one lease after the other."""
    prioritized: bool
    """Deliver higher `priority` first (FIFO inside one). Off, priority is only metadata."""
    priority_max: int
    """Higher priorities count as this one (prioritized queues only)."""
    stream: bool
    """Keep the log whatever work groups have done with it, within the `retain_…` limits. AMQP and MQTT consumers read
    such a queue as a stream."""
    ephemeral: bool
    """Memory only: faster, and gone when the node stops."""
    exclusive: bool
    """Read only by the session that declared it, and deleted with that session; anybody may publish to it."""
    auto_delete: bool
    """Deleted when its last attached consumer leaves."""
    unused_ms: int | None
    """Deleted after this span without a consumer, a claim or a declaration."""
    description: str
    """For people; Penstock does not read it."""
    lease_ms: int
    """How long a claimed message stays with its consumer before it is handed to the next."""
    max_attempts: int
    """Hand-outs before a message is dead; 0 = no limit."""
    backoff_ms: int
    """Pause after the first failed attempt; 0 = again at once."""
    backoff_factor: float
    """The factor by which each further pause grows."""
    backoff_max_ms: int
    """No pause is longer than this."""
    backoff_jitter: float
    """Share of each backoff that is random, so that failures do not come back all at once."""
    delay_ms: int
    """Added to every message's own delay."""
    debounce_ms: int
    """Withhold a partition until it received nothing for this span (ordered queues only)."""
    single_active_consumer: bool
    """Only one consumer at a time receives; the next takes over when it leaves or falls silent."""
    max_in_flight: int | None
    """Messages leased at once, per group and lane."""
    rate: float | None
    """Messages handed out per second, per group and lane."""
    dead_letter_to: str | None
    """`queue:NAME` or `exchange:NAME` or `exchange:NAME/KEY`: dead messages are also copied there. `exchange:` is the
    default exchange: the queue that a message's own key names."""
    dead_kept: bool
    """Dead messages stay in place until redriven or purged. Off, they are gone: with `dead_letter_to`, once copied."""
    paused: bool
    """Hand out nothing; what is leased can still be settled."""
    ttl_ms: int | None
    """Messages are not delivered later than this after publishing; their own `ttl_ms` may end earlier."""
    expired: Expired
    """What becomes of messages past their ttl: gone, or dead with the reason `expired`."""
    max_length: int | None
    """Messages a group may have waiting for delivery, per lane (those leased do not count)."""
    max_bytes: int | None
    """Bytes from the oldest batch that a work group is not done with to the newest, per lane."""
    overflow: Overflow
    """One more than the limits: refuse the publish, drop the oldest, or make the oldest dead."""
    max_message_bytes: int
    """Bytes that the payload of one message may have."""
    dedup_window_ms: int
    """How long a `dedup_id` is remembered; 0 = not at all."""
    keep_done_ms: int
    """Keep batches this long after every group is done with them."""
    retain_ms: int | None
    """Keep the log this long for readers, done or not. What a work group still needs is kept anyway."""
    retain_bytes: int | None
    """Keep this much of the log, per lane. With several `retain_…` options, the first that is exceeded counts."""
    retain_messages: int | None
    """Keep this many messages of the log, per lane."""
    primary_group: str | None
    """The work group whose progress is marked on stream reads."""


class GroupOptions(TypedDict, total=False):
    """Keyword arguments: see `penstock.model.options.GroupConfig`."""

    kind: GroupKind
    """`work`: lease and ack. `stream`: read and commit."""
    start: Start
    """Where a new group begins: `beginning`, `now`, or a time in milliseconds since the epoch."""
    filter: str | None
    """A condition on metadata; messages that do not match are done for this group."""
    ordered: bool | None
    prioritized: bool | None
    lease_ms: int | None
    max_attempts: int | None
    backoff_ms: int | None
    backoff_factor: float | None
    backoff_max_ms: int | None
    backoff_jitter: float | None
    single_active_consumer: bool | None
    max_in_flight: int | None
    rate: float | None
    dead_letter_to: str | None
    dead_kept: bool | None
    expired: Expired | None
    auto_commit: bool
    """Stream groups: the next read of a consumer commits what it read before."""
    holds: bool
    """Stream groups: retention keeps everything from what this group has committed on, whatever the queue's limits."""
    paused: bool
    """Hand out nothing to this group."""


class ExchangeOptions(TypedDict, total=False):
    """Keyword arguments: see `penstock.model.options.ExchangeConfig`."""

    kind: ExchangeKind
    """What its bindings look at: see [routing](routing.md)."""
    alternate: str | None
    """The exchange that takes what no binding of this one matched."""
    internal: bool
    """Reached only through other exchanges."""
    auto_delete: bool
    """Deleted when the last of its bindings goes."""
    ephemeral: bool
    """Gone when the broker restarts. Among several nodes it stays until it is deleted."""
    description: str
    """For people; Penstock does not read it."""
