"""AMQP: consumers, prefetch, settling, dead letters, and what returns when a client goes, with pika."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pika
import pytest
from pamqp import commands
from pamqp.body import ContentBody
from pika.exceptions import ConnectionClosedByBroker

from penstock.fronts.amqp091 import settling
from penstock.model.errors import Unavailable
from penstock.model.verdict import Verdict
from penstock.node.broker import LocalBroker
from tests.fronts.amqp091.rig import Inbox, Raw, Served, closed_with, closes, quiet, served, until, waited
from tests.nodes import node_of

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel


def filled(place: Served, count: int, queue: str = "q", **options: Any) -> BlockingChannel:
    """A channel, and a queue with so many messages."""
    channel = place.channel(confirms=True)
    channel.queue_declare(queue, **options)
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number)
    return channel


def count_of(channel: BlockingChannel, queue: str = "q") -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


# Deliveries ----------------------------------------------------------------------------------------------


def test_deliveries_are_in_order_and_gone_when_acknowledged() -> None:
    with served() as place:
        channel = filled(place, 50)
        inbox = Inbox(channel, "q")
        for number in range(50, 100):
            channel.basic_publish("", "q", b"%d" % number)
        inbox.wait(100)
        assert inbox.bodies == [b"%d" % number for number in range(100)]
        assert [method.delivery_tag for method, _, _ in inbox.deliveries] == list(range(1, 101))
        assert not any(method.redelivered for method, _, _ in inbox.deliveries)
        channel.basic_ack(60, multiple=True)
        for tag in range(100, 60, -1):
            channel.basic_ack(tag)
        channel.connection.close()
        assert count_of(place.channel()) == 0


def test_prefetch_limits_each_consumer() -> None:
    with served() as place:
        channel = filled(place, 20)
        channel.basic_qos(prefetch_count=3)
        first = Inbox(channel, "q")
        channel.basic_qos(prefetch_count=2)
        second = Inbox(channel, "q")
        until(channel, lambda: len(first.deliveries) == 3 and len(second.deliveries) == 2)
        quiet(channel)
        assert (len(first.deliveries), len(second.deliveries)) == (3, 2)
        channel.basic_ack(first.deliveries[0][0].delivery_tag)
        first.wait(4)
        quiet(channel)
        assert (len(first.deliveries), len(second.deliveries)) == (4, 2)


def test_a_global_prefetch_limits_the_channel() -> None:
    with served() as place:
        channel = filled(place, 20)
        filled(place, 20, "r")
        channel.basic_qos(prefetch_count=3, global_qos=True)
        inboxes = [Inbox(channel, "q"), Inbox(channel, "r")]

        def all_of() -> list[Any]:
            return [method for inbox in inboxes for method, _, _ in inbox.deliveries]

        until(channel, lambda: len(all_of()) == 3)
        quiet(channel)
        assert len(all_of()) == 3
        for method in all_of():
            channel.basic_ack(method.delivery_tag)
        until(channel, lambda: len(all_of()) == 6)
        quiet(channel)
        assert len(all_of()) == 6
        channel.basic_qos(prefetch_count=7, global_qos=True)
        until(channel, lambda: len(all_of()) == 10)
        assert count_of(place.channel()) + count_of(place.channel(), "r") == 30


def test_a_prefetch_of_one_is_fair() -> None:
    with served() as place:
        filled(place, 0)
        channels = [place.channel(), place.channel()]
        inboxes = []
        for channel in channels:
            channel.basic_qos(prefetch_count=1)
            inboxes.append(Inbox(channel, "q"))
        filled(place, 3)
        inboxes[0].wait(1)
        inboxes[1].wait(1)
        channels[1].basic_ack(1)
        inboxes[1].wait(2)
        quiet(channels[0])
        assert len(inboxes[0].deliveries) == 1, "the busy one gets no more"


def test_without_acknowledgements() -> None:
    with served() as place:
        channel = filled(place, 2000)
        channel.basic_qos(prefetch_count=1)
        inbox = Inbox(channel, "q", auto_ack=True)
        inbox.wait(2000)
        assert inbox.bodies == [b"%d" % number for number in range(2000)]
        channel.connection.close()
        assert count_of(place.channel()) == 0


def test_get() -> None:
    with served() as place:
        channel = filled(place, 2)
        method, _, body = channel.basic_get("q")
        assert (body, method.message_count, method.redelivered, method.exchange) == (b"0", 1, False, "")
        assert channel.basic_get("q", auto_ack=True)[2] == b"1"
        assert channel.basic_get("q") == (None, None, None)
        channel.basic_nack(method.delivery_tag, requeue=True)
        method, _, body = channel.basic_get("q")
        assert (body, method.redelivered) == (b"0", True)


# Settling ------------------------------------------------------------------------------------------------


def test_nack_and_reject_return_or_drop() -> None:
    with served() as place:
        channel = filled(place, 4)
        inbox = Inbox(channel, "q")
        inbox.wait(4)
        channel.basic_reject(1, requeue=True)
        channel.basic_reject(2, requeue=False)
        channel.basic_nack(4, multiple=True, requeue=True)
        inbox.wait(7)
        again = inbox.deliveries[4:]
        assert sorted(body for _, _, body in again) == [b"0", b"2", b"3"]
        assert all(method.redelivered for method, _, _ in again)
        channel.basic_nack(7, multiple=True, requeue=False)
        assert count_of(channel) == 0
        assert len(place.call(lambda broker: broker.dead("q"))) == 4, (
            "without an exchange for them, they stay to be seen"
        )


def test_settling_what_is_not_there_closes_the_channel_and_only_it() -> None:
    with served() as place:
        channel = filled(place, 3)
        other = channel.connection.channel()
        method, _, _ = channel.basic_get("q")
        channel.basic_ack(method.delivery_tag)
        channel.basic_ack(method.delivery_tag)
        with closes(406, "unknown delivery tag 1"):
            channel.queue_declare("q", passive=True)
        settles: tuple[Callable[[Any], object], ...] = (
            lambda channel: channel.basic_nack(5),
            lambda channel: channel.basic_reject(1),
            lambda channel: channel.basic_ack(9, multiple=True),
        )
        for settle in settles:
            broken = place.channel()
            settle(broken)
            with closes(406, "unknown delivery tag"):
                broken.queue_declare("q", passive=True)
        assert count_of(other) == 2


def test_multiple_and_zero_settle_all() -> None:
    with served() as place:
        channel = filled(place, 5)
        for _ in range(5):
            channel.basic_get("q")
        channel.basic_ack(0, multiple=True)
        channel.basic_ack(0, multiple=True)
        channel.connection.close()
        assert count_of(place.channel()) == 0


def test_an_answer_says_that_what_was_acknowledged_before_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """AMQP has no answer to an ack; a client that wants to know asks for something else after it."""
    stored: list[Verdict] = []
    settle = LocalBroker.settle

    async def slowly(broker: LocalBroker, lease: Any, verdicts: Sequence[Verdict], *, deferred: bool) -> None:
        await asyncio.sleep(0.2)
        await settle(broker, lease, verdicts)
        stored.extend(verdicts)

    monkeypatch.setattr(LocalBroker, "settle", slowly)
    with served() as place:
        channel = filled(place, 3)
        Inbox(channel, "q").wait(3)
        channel.basic_ack(2, multiple=True)
        assert count_of(channel) == 0
        assert stored == [Verdict("ack", 0, 2)]


def test_a_client_that_goes_while_its_acks_cannot_be_stored_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = threading.Event()

    async def refused(_broker: LocalBroker, _lease: Any, _verdicts: Sequence[Verdict], *, deferred: bool) -> None:
        tried.set()
        raise Unavailable("the store is away")

    with served() as place:
        filled(place, 1)
        raw = Raw(place)
        raw.send(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
        raw.hear_until(ContentBody)
        monkeypatch.setattr(LocalBroker, "settle", refused)
        raw.send(1, commands.Basic.Ack(1))
        raw.send(1, commands.Queue.Declare(queue="q", passive=True))
        assert tried.wait(20)
        raw.close()
        waited(lambda: place.server.measures.connections == 1)  # the one that filled the queue
        assert count_of(place.channel()) == 1


def test_recover_gives_everything_again() -> None:
    with served() as place:
        channel = filled(place, 3)
        inbox = Inbox(channel, "q")
        inbox.wait(3)
        channel.basic_ack(2)
        channel.basic_recover(requeue=True)
        inbox.wait(5)
        assert sorted(body for _, _, body in inbox.deliveries[3:]) == [b"0", b"2"]
        assert all(method.redelivered for method, _, _ in inbox.deliveries[3:])
        with pytest.raises(ConnectionClosedByBroker):
            channel.basic_recover(requeue=False)


# What returns --------------------------------------------------------------------------------------------


def test_what_a_channel_held_returns_at_once_and_counts() -> None:
    with served() as place:
        channel = filled(place, 3)
        inbox = Inbox(channel, "q")
        inbox.wait(3)
        channel.basic_ack(1)
        channel.close()
        other = channel.connection.channel()
        method, _, body = other.basic_get("q")
        assert (body, method.redelivered) == (b"1", True)
        method, _, _ = other.basic_get("q")
        assert method.redelivered
        other.connection.close()
        assert count_of(place.channel()) == 2


def test_a_queue_with_a_limit_says_how_often_a_message_came_back() -> None:
    with served() as place:
        channel = filled(place, 1, durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_declare("classic")
        named = pika.BasicProperties(content_type="t", headers={"h": "1", "x-delivery-count": 77})
        channel.basic_publish("", "q", b"named", named)
        channel.basic_publish("", "classic", b"m")
        seen: list[Any] = []
        for _ in range(3):
            found = [channel.basic_get(queue) for queue in ("q", "q", "classic")]
            seen.append([properties.headers for _, properties, _ in found])
            channel.basic_nack(0, multiple=True, requeue=True)
        assert seen[0] == [None, {"h": "1", "x-delivery-count": 77}, None], "the first time it is as it was sent"
        for came_back in (1, 2):
            counted = {"x-delivery-count": came_back}
            assert seen[came_back] == [counted, {"h": "1"} | counted, None]
        inbox = Inbox(channel, "q")
        inbox.wait(2)
        assert [properties.headers["x-delivery-count"] for _, properties, _ in inbox.deliveries] == [3, 3]


@pytest.mark.parametrize("how", ["close", "reset"])
def test_what_a_connection_held_returns_at_once_and_counts(how: str) -> None:
    with served() as place:
        channel = filled(place, 1, durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 1})
        Inbox(channel, "q").wait(1)
        if how == "close":
            channel.connection.close()
        else:
            raw: socket.socket = channel.connection._impl._transport._sock
            raw.shutdown(socket.SHUT_RDWR)
        other = place.channel()
        waited(lambda: count_of(other) == 1)
        method, _, _ = other.basic_get("q")
        assert method.redelivered
        other.basic_nack(method.delivery_tag, requeue=True)
        assert other.basic_get("q")[0] is None, "a limit of one: two deliveries, then it is dead"
        [dead] = place.call(lambda broker: broker.dead("q"))
        assert dead.reason == "attempts"


def test_what_a_cancelled_consumer_holds_is_still_the_clients() -> None:
    with served() as place:
        channel = filled(place, 5)
        channel.basic_qos(prefetch_count=3)
        inbox = Inbox(channel, "q")
        inbox.wait(3)
        channel.basic_cancel(inbox.tag)
        assert place.call(lambda broker: broker.stats("q")).consumers == 0
        channel.basic_ack(1)
        channel.basic_nack(2, requeue=True)
        assert count_of(channel) == 3
        channel.close()
        assert count_of(place.channel()) == 4


def test_messages_that_were_never_sent_return_without_an_attempt() -> None:
    """A consumer is cancelled again and again while messages come: nothing is lost, nothing counts as delivered."""
    with served() as place:
        channel = filled(place, 0)
        client, publisher = Raw(place), Raw(place)
        deliveries: list[Any] = []
        for number in range(100):
            client.send(1, commands.Basic.Consume(0, "q", f"t{number}"))
            publisher.publish(1, "", "q", b"%d" % number)
            client.send(1, commands.Basic.Cancel(f"t{number}"))
            deliveries += client.hear_until(commands.Basic.CancelOk)
        sent = [one for one in deliveries if isinstance(one, commands.Basic.Deliver)]
        bodies = [one.value for one in deliveries if isinstance(one, ContentBody)]
        inbox = Inbox(channel, "q")
        inbox.wait(100 - len(bodies))
        assert sorted(map(int, [*bodies, *inbox.bodies])) == list(range(100))
        assert not any(one.redelivered for one in sent)
        assert not any(method.redelivered for method, _, _ in inbox.deliveries)
        client.close()
        publisher.close()


def test_leases_are_renewed_while_the_client_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "RENEW_AFTER", 0.1)
    with served() as place:
        monkeypatch.setattr("penstock.fronts.amqp091.server.SWEEP_SECONDS", 0.05)
        channel = filled(place, 1)
        channel.basic_get("q")
        before = lease_deadline(place)
        waited(lambda: lease_deadline(place) > before + 100)
        channel.basic_ack(1)
        assert count_of(channel) == 0


def lease_deadline(place: Served) -> int:
    async def deadline(broker: Any) -> int:
        queue = node_of(broker).catalog.queue("default", "q")
        lane = node_of(broker).lanes.get(queue.lanes[0])
        assert lane is not None
        [lease] = lane.work(queue.groups["default"].id).leases.by_id.values()
        return lease.deadline_ms

    return place.call(deadline)


# Consumers -----------------------------------------------------------------------------------------------


def test_a_consumer_that_is_alone() -> None:
    with served() as place:
        channel = filled(place, 0)
        inbox = Inbox(channel, "q", exclusive=True)
        for options in ({}, {"exclusive": True}):
            with closes(403, "in exclusive use"):
                place.channel().basic_consume("q", lambda *_: None, **options)
        channel.basic_cancel(inbox.tag)
        other = place.channel()
        Inbox(other, "q")
        with closes(403, "in exclusive use"):
            place.channel().basic_consume("q", lambda *_: None, exclusive=True)


def test_a_tag_that_is_used_twice() -> None:
    with served() as place:
        channel = filled(place, 0)
        channel.basic_consume("q", lambda *_: None, consumer_tag="t")
        assert closed_with(channel, pika.spec.Basic.Consume(queue="q", consumer_tag="t")) == 530
        with closes(404):
            place.channel().basic_consume("gone", lambda *_: None)
        with closes(406, "not supported"):
            place.channel().basic_consume("q", lambda *_: None, arguments={"x-cancel-on-ha-failover": True})


def test_a_higher_priority_is_served_first() -> None:
    with served() as place:
        filled(place, 0)
        low, high = place.channel(), place.channel()
        for channel in (low, high):
            channel.basic_qos(prefetch_count=1)
        first = Inbox(low, "q")
        second = Inbox(high, "q", arguments={"x-priority": 5})
        quiet(high, 0.05)
        filled(place, 2)
        second.wait(1)
        first.wait(1)
        assert (second.bodies, first.bodies) == ([b"0"], [b"1"])


def test_a_single_active_consumer() -> None:
    with served() as place:
        filled(place, 0, arguments={"x-single-active-consumer": True})
        channels = [place.channel(), place.channel()]
        inboxes = [Inbox(channel, "q") for channel in channels]
        publisher = filled(place, 3, arguments={"x-single-active-consumer": True})
        inboxes[0].wait(3)
        quiet(channels[1], 0.05)
        assert inboxes[1].deliveries == []
        channels[0].basic_ack(3, multiple=True)
        channels[0].connection.close()
        publisher.basic_publish("", "q", b"to the next")
        inboxes[1].wait(1)
        assert inboxes[1].bodies == [b"to the next"]


def test_no_local() -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        name = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(name, "amq.fanout")
        heard: list[bytes] = []
        channel._impl._consumers["t"] = lambda _c, _m, _p, body: heard.append(body)
        channel._impl._send_method(pika.spec.Basic.Consume(queue=name, consumer_tag="t", no_local=True))
        quiet(channel, 0.05)
        channel.basic_publish("amq.fanout", "", b"mine")
        place.channel(confirms=True).basic_publish("amq.fanout", "", b"another's")
        until(channel, lambda: bool(heard))
        assert heard == [b"another's"]
        shared = filled(place, 0)
        assert closed_with(shared, pika.spec.Basic.Consume(queue="q", consumer_tag="t", no_local=True)) == 540


@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_consumer_hears_that_its_queue_was_deleted(prefetch: int) -> None:
    """Whether it waits for messages or has as many as it may."""
    with served() as place:
        channel = filled(place, 2)
        channel.basic_qos(prefetch_count=prefetch)
        cancelled: list[str] = []
        channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
        inbox = Inbox(channel, "q")
        inbox.wait(1)
        place.channel().queue_delete("q")
        until(channel, lambda: bool(cancelled))
        assert cancelled == [inbox.tag]
        channel.basic_ack(1)
        channel.queue_declare("q")
        channel.queue_declare("r")
        other = Inbox(channel, "r")
        place.call(lambda broker: broker.delete_queue("r"))
        until(channel, lambda: other.tag in cancelled)


def test_flow() -> None:
    with served() as place:
        channel = filled(place, 0)
        inbox = Inbox(channel, "q")
        assert channel.flow(False) is False
        publisher = filled(place, 2)
        quiet(channel)
        assert inbox.deliveries == []
        assert count_of(publisher) == 2
        assert channel.flow(True) is True
        inbox.wait(2)


def test_a_client_that_does_not_read_gets_no_more_and_holds_nobody_up() -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("q")
        slow = place.channel()
        Inbox(slow, "q")
        body = b"x" * 100_000
        for _ in range(200):
            channel.basic_publish("", "q", body)
        waited(lambda: any(one.is_full for one in place.server.connections))
        channel.basic_qos(prefetch_count=10)
        quick = Inbox(channel, "q")
        quick.wait(10)
        left = place.call(lambda broker: broker.stats("q")).groups[0].leased - 10
        assert left < 150, "what the slow one was given is bounded by its socket, not by the queue"


# Dead letters --------------------------------------------------------------------------------------------


def dead_letter(channel: BlockingChannel, queue: str = "graves") -> tuple[Any, Any, bytes]:
    found: list[Any] = []

    def there() -> bool:
        got = channel.basic_get(queue, auto_ack=True)
        if got[0] is not None:
            found.append(got)
        return bool(found)

    until(channel, there)
    return tuple(found[0])


def test_dead_letters_tell_their_history() -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        channel.exchange_declare("dead", "topic")
        channel.queue_declare("graves")
        channel.queue_bind("graves", "dead", "#")
        channel.queue_declare("q", arguments={"x-dead-letter-exchange": "dead"})
        channel.queue_bind("q", "amq.direct", "k")
        channel.basic_publish("amq.direct", "k", b"m", pika.BasicProperties(headers={"own": 1}, app_id="a"))
        method, _, _ = channel.basic_get("q")
        channel.basic_reject(method.delivery_tag, requeue=False)
        method, properties, body = dead_letter(channel)
        assert (body, method.exchange, method.routing_key, properties.app_id) == (b"m", "dead", "k", "a")
        headers = properties.headers
        assert headers["own"] == 1
        [death] = headers["x-death"]
        assert {name: death[name] for name in ("count", "reason", "queue", "exchange", "routing-keys")} == {
            "count": 1,
            "reason": "rejected",
            "queue": "q",
            "exchange": "amq.direct",
            "routing-keys": ["k"],
        }
        assert death["time"] is not None
        for name, value in (("reason", "rejected"), ("queue", "q"), ("exchange", "amq.direct")):
            assert headers[f"x-first-death-{name}"] == headers[f"x-last-death-{name}"] == value
        assert place.call(lambda broker: broker.stats("q")).messages == 0, "it is there no more"


def test_each_reason_of_death() -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("graves")

        def declare(name: str, **arguments: Any) -> None:
            dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"}
            channel.queue_declare(name, durable=True, arguments=dead | arguments)

        def reason() -> tuple[str, str]:
            _, properties, _ = dead_letter(channel)
            return properties.headers["x-death"][0]["reason"], properties.headers["x-first-death-queue"]

        declare("ttl", **{"x-message-ttl": 20})
        channel.basic_publish("", "ttl", b"m")
        assert reason() == ("expired", "ttl")
        declare("own")
        channel.basic_publish("", "own", b"m", pika.BasicProperties(expiration="20"))
        _, properties, _ = dead_letter(channel)
        assert properties.expiration is None
        assert properties.headers["x-death"][0]["original-expiration"] == "20"
        declare("length", **{"x-max-length": 1})
        channel.basic_publish("", "length", b"m")
        channel.basic_publish("", "length", b"m")
        assert reason() == ("maxlen", "length")
        declare("limit", **{"x-queue-type": "quorum", "x-delivery-limit": 2})
        channel.basic_publish("", "limit", b"m")
        for _ in range(3):
            method, _, _ = channel.basic_get("limit")
            channel.basic_nack(method.delivery_tag, requeue=True)
        assert reason() == ("delivery_limit", "limit")


def test_a_message_that_goes_round_is_counted() -> None:
    """The usual way to try again later: a queue where messages wait, and from there back."""
    with served() as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("work", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"})
        channel.queue_declare(
            "wait", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work", "x-message-ttl": 10}
        )
        channel.basic_publish("", "work", b"m")
        for round_number in range(3):
            inbox = Inbox(channel, "work")
            inbox.wait(1)
            method, properties, _ = inbox.deliveries[0]
            deaths = {
                (one["queue"], one["reason"]): one["count"] for one in (properties.headers or {}).get("x-death", [])
            }
            expected = {("wait", "expired"): round_number, ("work", "rejected"): round_number} if round_number else {}
            assert deaths == expected
            channel.basic_cancel(inbox.tag)
            channel.basic_reject(method.delivery_tag, requeue=False)


def test_priorities() -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("q", arguments={"x-max-priority": 5})
        for priority in (1, 5, None, 9, 3):
            channel.basic_publish("", "q", b"%d" % (priority or 0), pika.BasicProperties(priority=priority))
        assert [channel.basic_get("q")[2] for _ in range(5)] == [b"5", b"9", b"3", b"1", b"0"]
