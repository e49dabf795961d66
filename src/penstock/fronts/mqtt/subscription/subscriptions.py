"""What a session is subscribed to, and which of it a message is for. Plain data; the broker's is in `subscribing.py`.

One copy of a message goes to a session however many of its filters match: with the highest QoS of them and all their
subscription ids. A shared subscription and one to a queue of the broker's have deliveries of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

import msgspec

from penstock.fronts.mqtt.errors import Refusal
from penstock.fronts.mqtt.mapping import Origin
from penstock.model import NAME_CHARACTERS_MAX, check_name
from penstock.model.errors import InvalidArgument
from penstock.wire.mqtt import packets
from penstock.wire.mqtt.reasons import Reason
from penstock.wire.mqtt.topics import filter_problem, matches, parse_filter

QUEUE_PREFIX: Final = "$queue/"
SYSTEM_PREFIX: Final = "$SYS/"
CONSUMER_GROUP: Final = "consumer-group"
STREAM_OFFSET: Final = "x-stream-offset"
MATCHED: Final = ("topic", "system")
"""Kinds of subscriptions that are matched with topics here."""
TOPICS_KNOWN: Final = 1_000
"""Topics of which a session remembers what matches."""


class Subscription(msgspec.Struct, frozen=True, omit_defaults=True):
    """One filter of a session, as it is kept."""

    filter: str
    """As the client wrote it."""
    qos: int
    kind: Literal["topic", "share", "queue", "system"] = "topic"
    no_local: bool = False
    retain_as_published: bool = False
    id: int | None = None
    pattern: str = ""
    """What topics are matched with; of a queue, what keys are (empty: all)."""
    group: str = ""
    """Of a shared subscription, or the consumer group of a queue's."""
    queue: str = ""
    start: str = ""
    """Where a new stream group begins; empty: it is a work group."""


def session_queue(client_id: str) -> str:
    """The name of a session's own queue."""
    return f"mqtt/session/{client_id}"


def share_queue(subscription: Subscription) -> str:
    """The name of the queue of a shared subscription."""
    return f"mqtt/share/{subscription.group}/{subscription.pattern}"


class Plan(NamedTuple):
    """How a message goes to a session."""

    qos: int
    ids: tuple[int, ...]
    retain_as_published: bool


def read(wanted: packets.Subscription, request: packets.Subscribe, client_id: str) -> Subscription:
    """A subscription of a SUBSCRIBE; raises `Refusal` for one that cannot be had."""
    text = wanted.filter
    if problem := filter_problem(text):
        raise Refusal(Reason.TOPIC_FILTER_INVALID, problem)
    found = parse_filter(text)
    if len(text) > NAME_CHARACTERS_MAX:
        raise Refusal(
            Reason.TOPIC_FILTER_INVALID, f"the filter has {len(text)} characters; the limit is {NAME_CHARACTERS_MAX}"
        )
    if found.filter.startswith(QUEUE_PREFIX):
        return _of_queue(wanted, request, found.group, found.filter, client_id)
    if found.filter.startswith(SYSTEM_PREFIX):
        return _of_system(wanted, request, found.group)
    kind: Literal["topic", "share"] = "share" if found.group else "topic"
    return Subscription(
        text,
        wanted.qos,
        kind,
        wanted.no_local,
        wanted.retain_as_published,
        request.subscription_id,
        found.filter,
        found.group,
    )


def _of_queue(
    wanted: packets.Subscription, request: packets.Subscribe, shared: str, topic_filter: str, client_id: str
) -> Subscription:
    """`$queue/<name>/<pattern>`: the group is that of `$share/<group>/…`, the user property's, or the client's own."""
    name, _, pattern = topic_filter.removeprefix(QUEUE_PREFIX).partition("/")
    given = dict(request.user_properties)
    group = shared or given.get(CONSUMER_GROUP) or client_id
    try:
        check_name(name, "a queue's name")
        check_name(group, "a consumer group's name")
    except InvalidArgument as error:
        raise Refusal(Reason.TOPIC_FILTER_INVALID, str(error)) from None
    if "+" in name or "#" in name:
        raise Refusal(
            Reason.TOPIC_FILTER_INVALID, f"{topic_filter!r} names no queue: wildcards may stand behind its name"
        )
    return Subscription(
        wanted.filter,
        min(wanted.qos, 1),
        "queue",
        id=request.subscription_id,
        pattern="" if pattern == "#" else pattern,
        group=group,
        queue=name,
        start=given.get(STREAM_OFFSET, ""),
    )


def _of_system(wanted: packets.Subscription, request: packets.Subscribe, shared: str) -> Subscription:
    """`$SYS/…`: of QoS 0, for what is newer comes soon."""
    if shared:
        raise Refusal(Reason.TOPIC_FILTER_INVALID, "a subscription to $SYS cannot be shared")
    return Subscription(
        wanted.filter,
        0,
        "system",
        retain_as_published=wanted.retain_as_published,
        id=request.subscription_id,
        pattern=wanted.filter,
    )


class Subscriptions:
    """All of a session's, by filter."""

    def __init__(self, known: Iterable[Subscription] = ()) -> None:
        self._all: dict[str, Subscription] = {}
        self._exact: dict[str, Subscription] = {}
        self._wild: dict[str, Subscription] = {}
        self._matching: dict[str, tuple[Subscription, ...]] = {}
        for subscription in known:
            self.put(subscription)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._all.values())

    def get(self, topic_filter: str) -> Subscription | None:
        return self._all.get(topic_filter)

    def put(self, subscription: Subscription) -> Subscription | None:
        """Add one, or replace the one of the same filter, which is given back."""
        before = self._all.get(subscription.filter)
        self._all[subscription.filter] = subscription
        if subscription.kind in MATCHED:
            is_wild = "+" in subscription.pattern or "#" in subscription.pattern
            (self._wild if is_wild else self._exact)[subscription.pattern] = subscription
        self._matching.clear()
        return before

    def remove(self, topic_filter: str) -> Subscription | None:
        gone = self._all.pop(topic_filter, None)
        if gone is not None and gone.kind in MATCHED:
            self._wild.pop(gone.pattern, None)
            self._exact.pop(gone.pattern, None)
        self._matching.clear()
        return gone

    @property
    def has_topics(self) -> bool:
        """Whether any of them is an ordinary one."""
        return any(one.kind == "topic" for one in self._all.values())

    @property
    def has_system(self) -> bool:
        """Whether any of them is for the server's own topics."""
        return any(one.kind == "system" for one in self._all.values())

    @property
    def is_at_most_once(self) -> bool:
        """Whether no ordinary one wants more than QoS 0, so that nothing needs to be acknowledged."""
        return not any(one.qos for one in self._all.values() if one.kind != "queue")

    def matching(self, topic: str) -> tuple[Subscription, ...]:
        """Those that match a topic: ordinary ones, or those of the server's own topics."""
        found = self._matching.get(topic)
        if found is None:
            exact = self._exact.get(topic)
            wild = [one for one in self._wild.values() if matches(one.pattern, topic)]
            found = tuple(wild if exact is None else [exact, *wild])
            if len(self._matching) >= TOPICS_KNOWN:
                self._matching.clear()
            self._matching[topic] = found
        return found

    def plan(self, topic: str, origin: Origin, client_id: str) -> Plan | None:
        """How a message goes to the session; None where it does not."""
        found = self.matching(topic)
        if len(found) == 1 and not found[0].no_local:
            return plan_of(found[0], origin)
        is_own = origin.client_id == client_id
        found = tuple(one for one in found if not (one.no_local and is_own))
        if not found:
            return None
        return Plan(
            min(origin.qos, max(one.qos for one in found)),
            tuple(one.id for one in found if one.id is not None),
            any(one.retain_as_published for one in found),
        )


def plan_of(subscription: Subscription, origin: Origin) -> Plan:
    """The same for a message that is for one subscription."""
    ids = () if subscription.id is None else (subscription.id,)
    return Plan(min(origin.qos, subscription.qos), ids, subscription.retain_as_published)
