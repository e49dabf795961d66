"""`$queue/<name>/…`: the broker's queues for MQTT clients, as consumers of a group.

A version 5 client settles what it got by publishing to `$queue/<name>/$ack`, `$nack` or `$reject` with the user
property `message-id`; its PUBACK only says that it has the packet. A 3.1.1 client has no user properties: its PUBACK
settles. With QoS 0 a message is done as it is handed out. When the connection ends, what is not settled returns at
once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.api.results import Lease, Received
from penstock.fronts.answers import is_large
from penstock.fronts.damaged_ranges import DAMAGED_HEADER, PassedOver
from penstock.fronts.key_filter import KeyFilter, key_filter
from penstock.fronts.mqtt.delivering import LEASE_SECONDS, WAIT_SECONDS, Source
from penstock.fronts.mqtt.errors import Refusal
from penstock.fronts.mqtt.session.window import Flight
from penstock.fronts.mqtt.subscription.subscriptions import QUEUE_PREFIX, Subscription
from penstock.model.errors import InvalidArgument, NotFound
from penstock.wire.mqtt.packets import UserProperties
from penstock.wire.mqtt.reasons import REFUSAL, Reason
from penstock.wire.mqtt.topics import topic_problem

if TYPE_CHECKING:
    from penstock.api.front_broker import FrontBroker
    from penstock.fronts.mqtt.client import Client

ACTIONS: Final = ("$ack", "$nack", "$reject")
MESSAGE_ID: Final = "message-id"
GROUP_ID: Final = "group-id"
ERROR: Final = "error"
STREAM_ID: Final = "s"


class Unsettled:
    """What version 5 clients of this node got and did not settle, by message id: any connection may do that."""

    def __init__(self) -> None:
        self.sources: dict[str, QueueSource] = {}

    def begin(self, message_id: str, source: QueueSource) -> None:
        self.sources[message_id] = source

    def end(self, message_id: str) -> None:
        source = self.sources.pop(message_id, None)
        if source is not None:
            source.settled(message_id)


class QueueSource(Source):
    """One subscription to a queue: a consumer of a work group."""

    def __init__(self, client: Client, subscription: Subscription, pattern: KeyFilter) -> None:
        super().__init__(client, client.broker, subscription.queue)
        self.subscription = subscription
        self.pattern = pattern
        self.settles_by_publish = client.engine.version == 5 and subscription.qos > 0
        self._most = client.server.options.max_unsettled
        self._open: dict[str, Lease] = {}
        self._unsettled = client.server.unsettled

    def room(self) -> int:
        most = self._most - len(self._open)
        return min(most, self.window.room) if self.subscription.qos else most

    async def claim(self, most: int) -> None:
        claim = await self.broker.claim(
            self.queue,
            group=self.subscription.group,
            max=most,
            wait=WAIT_SECONDS,
            lease_seconds=LEASE_SECONDS,
            consumer=self.token,
            ack=self.subscription.qos == 0,
        )
        await self.admit(claim)
        self.keep(claim.lease, claim.messages)

    def send(self, lease: Lease | None, received: Received) -> bool:
        if not (self.pattern.is_exact or self.pattern.matches(received.message.key)):
            return self.pass_over(lease, received)
        qos = 0 if self.subscription.qos == 0 else 1
        if qos and self.window.room <= 0:
            return False
        packet_id = self.window.any_free() if qos else 0
        message_id = self.message_id(lease, received)
        topic, extra = _topic(self.queue, received.message.key or "")
        subscription_id = self.subscription.id
        is_sent = self.out.deliver(
            received.message,
            topic,
            received.published_ms,
            qos=qos,
            retain=False,
            dup=qos > 0 and received.attempt > 1,
            packet_id=packet_id,
            ids=() if subscription_id is None else (subscription_id,),
            extra=self.properties(message_id, received) + extra,
        )
        if not qos:
            return True
        if not is_sent:
            self.too_large(lease, received)
            return True
        self.window.begin(packet_id, Flight(qos, lease, received.offset, received.lane, self))
        if self.settles_by_publish and lease is not None:
            self._open[message_id] = lease
            self._unsettled.begin(message_id, self)
        return True

    # What differs by the kind of group ------------------------------------------------------------------------

    def message_id(self, lease: Lease | None, received: Received) -> str:
        """What names the message when it is settled: all that the broker needs, on any node."""
        return f"{lease}-{received.offset}" if lease is not None else f"{received.lane}-{received.offset}"

    def properties(self, message_id: str, received: Received) -> UserProperties:
        return (
            (MESSAGE_ID, message_id),
            (GROUP_ID, self.subscription.group),
            ("queue", self.queue),
            ("offset", str(received.offset)),
        )

    def too_large(self, lease: Lease | None, received: Received) -> None:
        """The packet is too large for the client: dead, so that an operator may see it."""
        if lease is not None:
            self.settling.reject(lease, received.offset, "larger than the MQTT client's maximum packet size")

    # Answers --------------------------------------------------------------------------------------------------

    def answered(self, flight: Flight, reason: int) -> None:
        if flight.lease is None:
            return
        if reason >= REFUSAL:
            self._unsettled.end(f"{flight.lease}-{flight.offset}")
            self.settling.nack(flight.lease, flight.offset, f"the client answered with reason {reason:#04x}")
        elif not self.settles_by_publish:
            self.settling.ack(flight.lease, flight.offset)

    def settled(self, message_id: str) -> None:
        self._open.pop(message_id, None)
        self.window.wake()

    def held(self) -> set[Lease]:
        return super().held() | set(self._open.values())

    def lost(self, lease: Lease) -> None:
        for message_id in [one for one, its_lease in self._open.items() if its_lease == lease]:
            self._unsettled.end(message_id)

    async def stop(self) -> None:
        await super().stop()
        for message_id in list(self._open):
            self._unsettled.end(message_id)


class StreamSource(QueueSource):
    """One subscription to a queue: a reader of a stream group. Acknowledging is committing: all up to there is done."""

    primary_group: str = ""
    _committed: int | None = None

    def __init__(self, client: Client, subscription: Subscription, pattern: KeyFilter) -> None:
        super().__init__(client, subscription, pattern)
        self._passed_over = PassedOver()

    async def claim(self, most: int) -> None:
        read = await self.broker.read(
            self.queue, self.subscription.group, max=most, wait=WAIT_SECONDS, consumer=self.token
        )
        if is_large(read):
            await self.out.backlog.admit(read)
        self._committed = read.primary_committed
        self._passed_over.add(read.damaged)
        self.keep(None, read.messages)

    def room(self) -> int:
        return min(self._most, self.window.room) if self.subscription.qos else self._most

    def message_id(self, lease: Lease | None, received: Received) -> str:  # noqa: ARG002 - a reader has no lease
        return f"{STREAM_ID}-{received.lane}-{received.offset}"

    def properties(self, message_id: str, received: Received) -> UserProperties:
        found: UserProperties = (
            *super().properties(message_id, received),
            ("x-stream-offset", str(received.offset)),
            ("x-stream-timestamp", str(received.published_ms)),
        )
        if damaged := self._passed_over.before(received):
            found += ((DAMAGED_HEADER, damaged),)
        if self._committed is not None:
            found += (
                ("x-work-committed-offset", str(self._committed)),
                ("x-work-acked", "true" if received.offset < self._committed else "false"),
                ("x-work-group", self.primary_group),
            )
        return found

    def too_large(self, lease: Lease | None, received: Received) -> None:
        """The log keeps it; the client cannot have it."""

    def answered(self, flight: Flight, reason: int) -> None:
        if not self.settles_by_publish and reason < REFUSAL:
            self.settling.commit(self.queue, self.subscription.group, flight.lane, flight.offset + 1)


def _topic(queue: str, key: str) -> tuple[str, UserProperties]:
    """The topic of a delivery; a key that no topic can have is told beside it."""
    topic = f"{QUEUE_PREFIX}{queue}/{key}" if key else f"{QUEUE_PREFIX}{queue}"
    if topic_problem(topic):
        return f"{QUEUE_PREFIX}{queue}", (("key", key.replace("\x00", "")),)
    return topic, ()


# Groups --------------------------------------------------------------------------------------------------


async def prepare(
    broker: FrontBroker, subscription: Subscription, *, declare: bool, is_new: bool
) -> tuple[KeyFilter, str]:
    """Make sure of the queue and the group; its filter and kind. Raises `Refusal` where another filter holds."""
    pattern = key_filter(subscription.pattern)
    if not await broker.has_queue(subscription.queue):
        if not declare:
            raise NotFound(f"there is no queue {subscription.queue!r}; declare it first")
        await broker.declare_queue(subscription.queue)
    known = (await broker.groups(subscription.queue)).get(subscription.group)
    if known is None:
        return pattern, await _make_group(broker, subscription, pattern)
    if subscription.pattern and known.get("filter") != pattern.condition:
        raise Refusal(
            Reason.TOPIC_FILTER_INVALID,
            f"group {subscription.group!r} of queue {subscription.queue!r} has the filter {known.get('filter')!r}, not "
            f"{pattern.condition!r}: all its consumers have one; name another with the user property consumer-group",
        )
    kind = known.get("kind", "work")
    if subscription.start and is_new:
        if kind != "stream":
            raise Refusal(
                Reason.TOPIC_FILTER_INVALID,
                f"group {subscription.group!r} is no stream group: it has no x-stream-offset",
            )
        await _seek(broker, subscription)
    return pattern, kind


async def _make_group(broker: FrontBroker, subscription: Subscription, pattern: KeyFilter) -> str:
    options: dict[str, Any] = {} if pattern.condition is None else {"filter": pattern.condition}
    if not subscription.start:
        await broker.declare_group(subscription.queue, subscription.group, **options)
        return "work"
    place(subscription.start)
    await broker.declare_group(
        subscription.queue, subscription.group, kind="stream", auto_commit=subscription.qos == 0, **options
    )
    await _seek(broker, subscription)
    return "stream"


async def _seek(broker: FrontBroker, subscription: Subscription) -> None:
    await broker.seek(subscription.queue, subscription.group, **place(subscription.start))


def place(start: str) -> dict[str, Any]:
    """Where `x-stream-offset` says that reading begins, as `Broker.seek` takes it."""
    kind, _, value = start.partition("=")
    if start in ("first", "last", "next"):
        return {"to": "first" if start == "first" else "last"}
    if start.isascii() and start.isdigit():
        return {"offset": int(start)}
    if kind in ("offset", "timestamp") and value.isascii() and value.isdigit():
        return {"offset" if kind == "offset" else "time_ms": int(value)}
    raise Refusal(
        Reason.TOPIC_FILTER_INVALID,
        f"x-stream-offset is {start!r}; it may be first, last, next, a number, offset=NUMBER or timestamp=MILLISECONDS",
    )


# Settling by publishing ----------------------------------------------------------------------------------


class Settlement:
    """A publish to `$queue/<name>/$ack`, `$nack` or `$reject`."""

    def __init__(self, queue: str, action: str, properties: UserProperties, payload: bytes) -> None:
        given = dict(properties)
        self.queue = queue
        self.action = action
        self.message_id = given.get(MESSAGE_ID, "")
        self.group = given.get(GROUP_ID, "")
        self.error = given.get(ERROR) or payload[:1000].decode("utf-8", "replace")

    async def carry_out(self, broker: FrontBroker, unsettled: Unsettled) -> None:
        """Raises what the broker does, or `Refusal`."""
        source = unsettled.sources.get(self.message_id)
        if source is not None and (source.queue != self.queue or self.group not in ("", source.subscription.group)):
            raise Refusal(
                Reason.TOPIC_NAME_INVALID,
                f"message {self.message_id!r} is of queue {source.queue!r} and group {source.subscription.group!r}",
            )
        kind, _, rest = self.message_id.partition("-")
        if kind == STREAM_ID:
            await self._commit(broker, rest)
            return
        token, _, offset = self.message_id.rpartition("-")
        if not offset.isdigit():
            raise InvalidArgument(f"the user property {MESSAGE_ID} is {self.message_id!r}; send the delivery's back")
        lease = Lease.parse(token)
        if self.action == "$ack":
            await broker.ack(lease, [int(offset)])
        elif self.action == "$nack":
            await broker.nack(lease, [int(offset)], error=self.error)
        else:
            await broker.reject(lease, [int(offset)], error=self.error)
        unsettled.end(self.message_id)

    async def _commit(self, broker: FrontBroker, rest: str) -> None:
        """Of a stream: `$ack` and `$reject` go past the message, `$nack` changes nothing."""
        lane, _, offset = rest.partition("-")
        if not (lane.isdigit() and offset.isdigit() and self.group):
            raise InvalidArgument(f"{MESSAGE_ID} is {self.message_id!r} and {GROUP_ID} {self.group!r}; send both back")
        if self.action != "$nack":
            await broker.commit(self.queue, self.group, int(offset) + 1, lane=int(lane), only_forward=True)


def settlement_of(key: str | None, queue: str, properties: UserProperties, payload: bytes) -> Settlement | None:
    """What a publish into a queue settles, if its last level says so."""
    action = (key or "").rpartition("/")[2]
    return Settlement(queue, action, properties, payload) if action in ACTIONS else None
