"""What the broker's answers say in cases that are easily overlooked: positions, places and counts."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import penstock
from penstock import InvalidArgument, Message
from penstock.sync import SyncBroker


@pytest.fixture
def broker() -> Iterator[SyncBroker]:
    with penstock.sync.open(None) as opened:
        yield opened


def test_a_transaction_tells_the_place_of_each_message_whatever_its_way(broker: SyncBroker) -> None:
    broker.declare_queue("direct")
    broker.declare_queue("routed")
    broker.declare_exchange("news", kind="fanout")
    broker.bind("news", "routed")
    with broker.transaction() as transaction:
        transaction.publish("direct", Message(b"0")).publish_to("news", Message(b"1"), Message(b"2"))
        transaction.publish("direct", Message(b"3"))
    assert transaction.receipt is not None
    places = [[(place.queue, place.offset) for place in transaction.receipt.of(index)] for index in range(4)]
    assert places == [[("direct", 0)], [("routed", 0)], [("routed", 1)], [("direct", 1)]]


def test_an_empty_read_says_where_the_group_stands_so_that_committing_it_rewinds_nothing(broker: SyncBroker) -> None:
    broker.declare_queue("log", retain_messages=100)
    broker.declare_group("log", "reader", kind="stream", auto_commit=False)
    broker.publish_many("log", [Message(b"0"), Message(b"1")])
    assert broker.read("log", "reader").next_offset == 2
    empty = broker.read("log", "reader")
    assert (len(empty), empty.next_offset) == (0, 2)
    broker.commit("log", "reader", empty.next_offset)
    assert broker.stats("log").groups[0].lag == 0


def test_a_browse_may_begin_at_a_lane(broker: SyncBroker) -> None:
    broker.declare_queue("wide", lanes=2)
    broker.publish_many("wide", [Message(b"%d" % n, partition=str(n)) for n in range(20)])
    everything = broker.browse("wide").messages
    last_lane = everything[-1].lane
    expected = [received for received in everything if received.lane == last_lane]
    assert 0 < len(expected) < 20
    assert broker.browse("wide", lane=last_lane).messages == expected
    with pytest.raises(InvalidArgument, match="lane is 99"):
        broker.browse("wide", lane=99)


def test_a_stream_does_not_lag_behind_what_is_gone(broker: SyncBroker) -> None:
    broker.declare_queue("log", retain_messages=3)
    broker.declare_group("log", "reader", kind="stream")
    for n in range(10):
        broker.publish("log", Message(b"%d" % n))
    deadline = time.monotonic() + 10
    while broker.stats("log").messages > 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    [reader] = broker.stats("log").groups
    assert (reader.ready, reader.lag, reader.oldest_offset) == (3, 3, 7)
