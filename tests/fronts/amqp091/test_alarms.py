"""Alarms over AMQP: connection.blocked, a nack with confirms, the channel's end without; consumers go on."""

from __future__ import annotations

import pytest
from pika.exceptions import NackError

from penstock.node.broker import LocalBroker
from tests.alarms import end_alarm, raise_alarm
from tests.fronts.amqp091.rig import Inbox, Served, closes, quiet, served, until

WAIT_S = 0.05


def alarm(place: Served, wait: float = WAIT_S) -> None:
    async def begin(broker: LocalBroker) -> None:
        raise_alarm(broker, wait)

    place.call(begin)


def all_clear(place: Served) -> None:
    async def end(broker: LocalBroker) -> None:
        end_alarm(broker)

    place.call(end)


def test_a_client_that_publishes_is_told_when_it_must_wait_and_when_it_may_go_on() -> None:
    with served() as place:
        channel, idle = place.channel(), place.channel()
        channel.queue_declare("q")
        heard: list[str] = []
        for one in (channel, idle):
            one.connection.add_on_connection_blocked_callback(lambda _, method: heard.append(method.method.reason))
            one.connection.add_on_connection_unblocked_callback(lambda *_: heard.append("unblocked"))
        channel.basic_publish("", "q", b"before")
        alarm(place, wait=60.0)
        until(channel, lambda: len(heard) == 1)
        assert heard[0].startswith("memory is low: this server uses 101 MiB")
        quiet(idle)
        assert len(heard) == 1, "who does not publish is not told"
        all_clear(place)
        until(channel, lambda: heard[1:] == ["unblocked"])


def test_with_confirms_a_publish_gets_a_nack_and_the_channel_goes_on() -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("q")
        alarm(place)
        for exchange, key in (("", "q"), ("amq.direct", "q")):
            channel.queue_bind("q", "amq.direct", "q")
            with pytest.raises(NackError):
                channel.basic_publish(exchange, key, b"x")
        all_clear(place)
        channel.basic_publish("", "q", b"after")
        assert channel.queue_declare("q", passive=True).method.message_count == 1


def test_without_confirms_only_the_channel_s_end_can_say_it() -> None:
    with served() as place:
        channel = place.channel()
        channel.queue_declare("q")
        alarm(place)
        channel.basic_publish("", "q", b"x")
        with closes(506, "memory is low"):
            channel.queue_declare("q", passive=True)


def test_a_transaction_that_publishes_is_refused() -> None:
    with served() as place:
        channel = place.channel()
        channel.queue_declare("q")
        channel.tx_select()
        channel.basic_publish("", "q", b"x")
        alarm(place)
        with closes(506, "memory is low"):
            channel.tx_commit()


def test_consumers_go_on() -> None:
    with served() as place:
        channel, other = place.channel(), place.channel()
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"1")
        channel.basic_publish("", "q", b"2")
        until(channel, lambda: channel.queue_declare("q", passive=True).method.message_count == 2)
        alarm(place)
        inbox = Inbox(other, "q")
        for method, _, _ in inbox.wait(2):
            other.basic_ack(method.delivery_tag)
        other.basic_cancel(inbox.tag)
        assert channel.queue_delete("q").method.message_count == 0
