"""`$queue/<name>/…` through the MQTT front: queues of the broker's as consumers of a group."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import mqtt5
from mqtt5 import QoS

from penstock import Message
from tests.damage import flip_body, flip_meta
from tests.fronts.mqtt.rig import Client, Front, opened, scenario, until, until_it_is
from tests.nodes import node_of


def given(packet: Any) -> dict[str, str]:
    return dict(packet.user_properties)


async def group_of(front: Front, queue: str, group: str) -> Any:
    return next(one for one in (await front.broker.stats(queue)).groups if one.group == group)


async def settle(client: Client, packet: Any, action: str, queue: str = "orders", **properties: str) -> int:
    properties = {"message-id": given(packet)["message-id"], "group-id": given(packet)["group-id"]} | properties
    return await client.publish(f"$queue/{queue}/{action}", b"because", properties=properties)


@scenario
async def test_a_publish_goes_into_the_queue_with_its_key(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        await front.broker.declare_queue("orders")
        client = await front.connect("client")
        assert await client.publish("$queue/orders/eu/images", b"1") == 0
        assert await client.publish("$queue/orders", b"2", qos=2) == 0
        assert await client.publish("$queue/fresh/key", b"3") == 0  # declared for it
        claim = await front.broker.claim("orders", max=10, ack=True)
        assert [(one.key, one.payload) for one in claim.messages] == [("eu/images", b"1"), (None, b"2")]
        assert (await front.broker.claim("fresh", ack=True)).messages[0].payload == b"3"


@scenario
async def test_queues_are_not_declared_where_that_is_not_wanted(tmp_path: Path) -> None:
    async with opened(tmp_path, declare_queues=False) as front:
        client = await front.connect("client")
        assert await client.publish("$queue/fresh/key", b"3") == 0x90
        assert await client.subscribe("$queue/fresh/#", qos=1) == [0x8F]
        assert not await front.broker.has_queue("fresh")


@scenario
async def test_a_delivery_says_what_it_is_and_is_settled_by_publishing(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        await front.broker.declare_queue("orders", backoff_ms=0, max_attempts=2)
        client = await front.connect("client")
        assert await client.subscribe(
            "$queue/orders/#", qos=1, subscription_id=2, properties={"consumer-group": "workers"}
        ) == [1]
        for number in range(3):
            await front.broker.publish("orders", Message(b"%d" % number, key=f"k/{number}"))
        first, second, third = [await client.message() for _ in range(3)]
        assert (first.topic, first.payload, first.qos) == ("$queue/orders/k/0", b"0", QoS.AT_LEAST_ONCE)
        assert first.subscription_ids == [2]
        properties = given(first)
        assert {name: properties[name] for name in ("group-id", "queue", "offset")} == {
            "group-id": "workers",
            "queue": "orders",
            "offset": "0",
        }
        # PUBACK says that the packet has arrived, no more.
        assert (await group_of(front, "orders", "workers")).leased == 3
        assert await settle(client, first, "$ack") == 0
        assert await settle(client, third, "$reject") == 0
        nack = {"message-id": given(second)["message-id"], "group-id": "workers"}
        await client.publish("$queue/orders/k/1/$nack", b"because", qos=0, properties=nack)
        again = await client.message()
        assert (again.payload, again.duplicate) == (b"1", True)
        assert await settle(client, again, "$nack") == 0
        dead = await front.broker.dead("orders", "workers")
        assert [(one.received.payload, one.reason, one.error) for one in dead] == [
            (b"1", "attempts", "because"),
            (b"2", "rejected", "because"),
        ]
        assert (await group_of(front, "orders", "workers")).lag == 0


@scenario
async def test_a_settlement_that_cannot_be_is_told(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        await front.broker.declare_queue("orders")
        client = await front.connect("client")
        await client.subscribe("$queue/orders", qos=1)
        await front.broker.publish("orders", Message(b"1"))
        message = await client.message()
        assert given(message)["group-id"] == "client"
        assert await client.publish("$queue/orders/$ack", properties={}) == 0x83
        assert await client.publish("$queue/orders/$ack", properties={"message-id": "1-2-3"}) == 0x83
        assert await settle(client, message, "$ack", queue="other") == 0x90
        assert await settle(client, message, "$ack", **{"group-id": "others"}) == 0x90
        assert await settle(client, message, "$ack") == 0
        assert await settle(client, message, "$ack") == 0x83  # it was settled before


@scenario
async def test_any_connection_may_settle(tmp_path: Path) -> None:
    async with opened(tmp_path, max_unsettled=1) as front:
        client, other = await front.connect("client"), await front.connect("other")
        await client.subscribe("$queue/orders/#", qos=1)
        await front.broker.publish_many("orders", [Message(b"1"), Message(b"2")])
        message = await client.message()
        await client.silent()  # one at a time
        assert await settle(other, message, "$ack") == 0
        assert (await client.message()).payload == b"2"


@scenario
async def test_what_is_not_settled_returns_when_the_connection_dies(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        await front.broker.declare_queue("orders", max_attempts=2)
        for attempt in (1, 2):
            client = await front.connect(f"client-{attempt}")
            await client.subscribe("$queue/orders/#", qos=1, properties={"consumer-group": "workers"})
            if attempt == 1:
                await front.broker.publish("orders", Message(b"1"))
            assert (await client.message()).duplicate == (attempt > 1)
            client.cut()
            await front.gone(f"client-{attempt}")
        dead = await front.broker.dead("orders", "workers")
        assert [(one.received.payload, one.reason, one.attempts) for one in dead] == [(b"1", "attempts", 2)]


@scenario
async def test_consumers_of_one_group_share_and_groups_have_all(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        await front.broker.declare_queue("orders")
        clients = {}
        for name, group in (("a1", "a"), ("a2", "a"), ("b1", "b")):
            clients[name] = await front.connect(name)
            await clients[name].subscribe("$queue/orders/#", qos=0, properties={"consumer-group": group})
        for number in range(20):
            await front.broker.publish("orders", Message(b"%d" % number))
        await until(lambda: front.server.measures.delivered == 40, "each group got all")
        assert (await group_of(front, "orders", "a")).lag == 0
        assert (await group_of(front, "orders", "b")).lag == 0


@scenario
async def test_a_pattern_behind_the_name_is_the_groups_filter(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        await front.broker.declare_queue("orders")
        client = await front.connect("client")
        for group, pattern in {"eu": "eu/#", "images": "+/images/#", "one": "+/images", "exact": "eu"}.items():
            assert await client.subscribe(f"$share/{group}/$queue/orders/{pattern}", qos=0) == [0]
        expected = {
            "eu": {"eu"} | {"exact"},
            "eu/images": {"eu", "images", "one"},
            "us/images/png": {"images"},
            "us/x/images": set(),
            "us": set(),
        }
        for key, groups in expected.items():
            await front.broker.publish("orders", Message(b"", key=key))
            found = [given(await client.message())["group-id"] for _ in groups]
            assert set(found) == groups, key
            await client.silent()
        for group in ("eu", "images", "one", "exact"):
            await until_it_is(0, partial(lag_of, front, group))


async def lag_of(front: Front, group: str) -> int:
    return int((await group_of(front, "orders", group)).lag)


@scenario
async def test_another_filter_for_the_same_group_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client, other = await front.connect("client"), await front.connect("other")
        group = {"consumer-group": "workers"}
        assert await client.subscribe("$queue/orders/eu/#", qos=1, properties=group) == [1]
        assert await other.subscribe("$queue/orders/us/#", qos=1, properties=group) == [0x8F]
        assert await other.subscribe("$queue/orders/eu/#", qos=1, properties=group) == [1]
        assert await other.subscribe("$queue/orders", qos=1, properties=group) == [1]  # whatever the group has


@scenario
async def test_a_session_that_stays_consumes_again_when_its_client_is_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client", expiry=60)
        await client.subscribe("$queue/orders/#", qos=1)
        await client.disconnect()
        await front.broker.publish("orders", Message(b"1"))
    async with opened(tmp_path) as front:
        client = await front.connect("client", clean=False, expiry=60)
        message = await client.message()
        assert await settle(client, message, "$ack") == 0
        assert await client.unsubscribe("$queue/orders/#") == [0]
        await front.broker.publish("orders", Message(b"2"))
        await client.silent()


@scenario
async def test_a_stream_is_read_from_where_it_is_asked_for(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        await front.broker.declare_queue("events", retain_messages=1000, primary_group="work")
        await front.broker.declare_group("events", "work")
        for number in range(5):
            await front.broker.publish("events", Message(b"%d" % number))
        claim = await front.broker.claim("events", group="work", max=2)
        await front.broker.ack(claim)
        client = await front.connect("client")
        assert await client.subscribe(
            "$queue/events/#", qos=1, properties={"consumer-group": "readers", "x-stream-offset": "first"}
        ) == [1]
        found = [await client.message() for _ in range(5)]
        assert [one.payload for one in found] == [b"0", b"1", b"2", b"3", b"4"]
        properties = given(found[1])
        assert properties["x-stream-offset"] == "1"
        assert int(properties["x-stream-timestamp"]) > 1_600_000_000_000
        assert (properties["x-work-committed-offset"], properties["x-work-acked"]) == ("2", "true")
        assert properties["x-work-group"] == "work"
        assert given(found[2])["x-work-acked"] == "false"
        assert await settle(client, found[2], "$ack", queue="events") == 0
        assert (await group_of(front, "events", "readers")).lag == 2
        client.cut()
        await front.gone("client")
        client = await front.connect("client")  # without a place: from what was committed on
        await client.subscribe("$queue/events/#", qos=1, properties={"consumer-group": "readers"})
        assert [(await client.message()).payload for _ in range(2)] == [b"3", b"4"]
        other = await front.connect("other")
        for start, expected in (("offset=4", b"4"), ("3", b"3"), ("timestamp=0", b"0")):
            properties = {"consumer-group": f"from-{start}", "x-stream-offset": start}
            await other.subscribe("$queue/events/#", qos=0, properties=properties)
            assert (await other.message()).payload == expected
            while not isinstance(await _next(other), mqtt5.PingRespPacket):
                pass
            await other.unsubscribe("$queue/events/#")
        assert await other.subscribe("$queue/events/#", properties={"x-stream-offset": "soon"}) == [0x8F]


async def _next(client: Client) -> Any:
    client.send(mqtt5.PingReqPacket())
    packet = await client.receive()
    if not isinstance(packet, mqtt5.PingRespPacket):
        while not isinstance(await client.receive(), mqtt5.PingRespPacket):
            pass
        return mqtt5.PingRespPacket()
    return packet


@scenario
async def test_a_key_that_no_topic_can_have_is_told_beside_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client")
        await client.subscribe("$queue/orders", qos=0)
        await front.broker.publish("orders", Message(b"1", key="a.#"))
        message = await client.message()
        assert (message.topic, given(message)["key"]) == ("$queue/orders", "a.#")


@scenario
async def test_damaged_messages_of_a_stream_are_passed_over_and_named_by_the_next(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        await front.broker.declare_queue("events", retain_messages=1000)
        for number in range(5):
            await front.broker.publish("events", Message(b"%d" % number, key="k"))
        [lane] = node_of(front.broker).catalog.queue("default", "events").lanes
    flip_body(tmp_path / "mqtt.db", lane, 1)
    flip_meta(tmp_path / "mqtt.db", lane, 3)
    async with opened(tmp_path) as front:
        client = await front.connect("client")
        wanted = {"consumer-group": "readers", "x-stream-offset": "first"}
        await client.subscribe("$queue/events/#", qos=1, properties=wanted)
        found = [await client.message() for _ in range(3)]
        assert [one.payload for one in found] == [b"0", b"2", b"4"]
        assert [given(one).get("x-stream-damaged") for one in found] == [None, "0:1-1", "0:3-3"]
        assert await settle(client, found[2], "$ack", queue="events") == 0
        assert (await group_of(front, "events", "readers")).lag == 0
