"""Publish and subscribe through the MQTT front: QoS, options of subscriptions, properties, limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mqtt5
from mqtt5 import QoS, RetainHandling, TopicFilter

from penstock import Message
from tests.fronts.mqtt.rig import opened, scenario, soon, until


@scenario
async def test_each_qos_is_the_lower_of_publisher_and_subscriber(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        publisher = await front.connect("publisher")
        for granted in (0, 1, 2):
            subscriber = await front.connect(f"subscriber-{granted}")
            assert await subscriber.subscribe("a/b", qos=granted) == [granted]
            for published in (0, 1, 2):
                await publisher.publish("a/b", b"%d" % published, qos=published)
                message = await subscriber.message()
                assert (message.payload, message.qos, message.retain) == (
                    b"%d" % published,
                    min(granted, published),
                    False,
                )


@scenario
async def test_wildcards_match_as_the_standard_says(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        publisher = await front.connect("publisher")
        for name, topic_filter in {"all": "#", "one": "sport/+", "below": "sport/#", "leading": "+/tennis"}.items():
            subscriber = await front.connect(name)
            await subscriber.subscribe(topic_filter)
        expected = {
            "sport": {"all", "below"},
            "sport/tennis": {"all", "one", "below", "leading"},
            "sport/tennis/cup": {"all", "below"},
            "/tennis": {"all", "leading"},
        }
        for topic, names in expected.items():
            await publisher.publish(topic, b"x")
            reached = {name for name in ("all", "one", "below", "leading") if await _gets(front, name, topic)}
            assert reached == names, topic


async def _gets(front: Any, name: str, topic: str) -> bool:
    """Whether the message is, or was, in a session's queue."""
    read = await front.broker.read_from(f"mqtt/session/{name}") if name in front.server.sessions.connected else None
    return read is not None and any(one.key == topic for one in read.messages)


@scenario
async def test_several_filters_that_match_are_one_delivery_with_the_highest_qos_and_all_ids(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("both")
        await client.subscribe("a/#", qos=0, subscription_id=7)
        await client.subscribe("a/+", qos=1, subscription_id=9)
        await client.subscribe("a/b", qos=1)
        await client.publish("a/b", b"once", qos=0)
        message = await client.message()
        assert (message.qos, sorted(message.subscription_ids)) == (QoS.AT_MOST_ONCE, [7, 9])
        publisher = await front.connect("publisher")
        await publisher.publish("a/b", b"again", qos=2)
        message = await client.message()
        assert (message.payload, message.qos, sorted(message.subscription_ids)) == (b"again", QoS.AT_LEAST_ONCE, [7, 9])
        await client.silent()


@scenario
async def test_no_local_leaves_out_what_the_client_publishes_itself(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client, other = await front.connect("client"), await front.connect("other")
        await client.subscribe(TopicFilter("a", no_local=True))
        await client.publish("a", b"own")
        await other.publish("a", b"other")
        assert (await client.message()).payload == b"other"
        await client.silent()


@scenario
async def test_retain_as_published_keeps_the_flag(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        plain, kept = await front.connect("plain"), await front.connect("kept")
        await plain.subscribe(TopicFilter("a", retain_as_published=False, retain_handling=RetainHandling.SEND_NEVER))
        await kept.subscribe(TopicFilter("a", retain_as_published=True, retain_handling=RetainHandling.SEND_NEVER))
        publisher = await front.connect("publisher")
        await publisher.publish("a", b"x", retain=True)
        assert (await plain.message()).retain is False
        assert (await kept.message()).retain is True


@scenario
async def test_every_property_reaches_the_subscriber(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client")
        await client.subscribe("a")
        properties = [("b", "1"), ("a", "2"), ("b", "3"), ("mqtt", "x"), ("amqp-type", "y")]
        client.send(
            mqtt5.PublishPacket(
                "a",
                b"\xc3\xa9",
                qos=QoS.AT_MOST_ONCE,
                payload_format_indicator=1,
                message_expiry_interval=60,
                content_type="text/plain",
                response_topic="answers/1",
                correlation_data=b"\xff\x00",
                user_properties=properties,
            )
        )
        message = await client.message()
        assert message.payload_format_indicator == 1
        assert 1 <= message.message_expiry_interval <= 60
        assert (message.content_type, message.response_topic) == ("text/plain", "answers/1")
        assert message.correlation_data == b"\xff\x00"
        assert message.user_properties == properties


@scenario
async def test_messages_of_other_fronts_reach_subscribers(tmp_path: Path) -> None:
    """Published to the exchange with the topic as key; headers are user properties, the QoS is the subscription's."""
    async with opened(tmp_path) as front:
        client = await front.connect("client")
        await client.subscribe("a/b", qos=2)
        headers = {"amount": 5, "eu": True, "tags": ["x", "y"], "amqp": b"\x00"}
        await front.broker.publish_to(
            "mqtt", Message(b"1", key="a/b", headers=headers, content_type="text/x", correlation_id="c")
        )
        message = await client.message()
        assert (message.payload, message.qos, message.content_type) == (b"1", QoS.EXACTLY_ONCE, "text/x")
        assert message.correlation_data == b"c"
        assert message.user_properties == [("amount", "5"), ("eu", "true"), ("tags", "x"), ("tags", "y")]


@scenario
async def test_a_key_that_is_no_topic_is_not_delivered_and_blocks_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client")
        await client.subscribe("#", qos=1)
        await front.broker.publish_to("mqtt", [Message(b"bad", key="a/+"), Message(b"good", key="a/b")])
        assert (await client.message()).payload == b"good"


@scenario
async def test_an_ordinary_topic_can_be_captured_by_a_queue(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        await front.broker.declare_queue("captured")
        await front.broker.bind("mqtt", "captured", "sensors/#")
        client = await front.connect("sensor")
        assert await client.publish("sensors/1", b"21", properties={"unit": "C"}) == 0
        claim = await front.broker.claim("captured", ack=True)
        (found,) = claim.messages
        assert (found.key, found.payload, found.headers["unit"]) == ("sensors/1", b"21", "C")


@scenario
async def test_a_publish_that_nobody_takes_is_told_so(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client")
        assert await client.publish("nobody/here") == 0x10
        await client.subscribe("somebody/here", qos=0)
        client.send(mqtt5.PublishPacket("nobody/here", b"1", qos=QoS.AT_LEAST_ONCE, packet_id=1))
        assert (await client.expect(mqtt5.PubAckPacket)).reason_code == 0x10


@scenario
async def test_topics_of_the_server_cannot_be_published_to(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client")
        for topic in ("$SYS/uptime", "$share/a/b", "$x", "$queue/", "a" * 256):
            assert await client.publish(topic) == 0x90, topic
        assert await client.publish("$x", qos=2) == 0x90
        assert await client.publish("fine", qos=2) == 0x10


@scenario
async def test_filters_that_cannot_be_had_are_refused_one_by_one(tmp_path: Path) -> None:
    async with opened(tmp_path, max_subscriptions=2) as front:
        client = await front.connect("client")
        assert await client.subscribe_anything("a/#/b", "fine", "x" * 256, "$queue/+/a") == [0x8F, 2, 0x8F, 0x8F]
        assert await client.subscribe("second", "third") == [2, 0x97]
        assert await client.subscribe("second", qos=1) == [1]  # it is there already


@scenario
async def test_unsubscribing_ends_deliveries(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client")
        await client.subscribe("a", "b", qos=1)
        assert await client.unsubscribe("a", "never") == [0, 0x11]
        publisher = await front.connect("publisher")
        await publisher.publish("a", b"1")
        await publisher.publish("b", b"2")
        assert (await client.message()).payload == b"2"
        await client.silent()


@scenario
async def test_deliveries_stop_at_the_clients_receive_maximum(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client", receive_max=2)
        await client.subscribe("a", qos=2)
        publisher = await front.connect("publisher")
        for number in range(4):
            await publisher.publish("a", b"%d" % number, qos=1 + number % 2)
        first = await client.message(answer=False)
        second = await client.message(answer=False)
        await client.silent()
        client.send(mqtt5.PubAckPacket(first.packet_id))
        third = await client.message(answer=False)
        client.send(mqtt5.PubRecPacket(second.packet_id))
        await client.expect(mqtt5.PubRelPacket)
        await client.silent()  # QoS 2 is under way until PUBCOMP
        client.send(mqtt5.PubCompPacket(second.packet_id))
        fourth = await client.message(answer=False)
        assert [one.payload for one in (first, second, third, fourth)] == [b"0", b"1", b"2", b"3"]


@scenario
async def test_a_message_that_the_client_finds_too_large_is_left_out(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client", max_packet_size=100)
        await client.subscribe("a", qos=1)
        publisher = await front.connect("publisher")
        await publisher.publish("a", b"x" * 200)
        await publisher.publish("a", b"small")
        assert (await client.message()).payload == b"small"


@scenario
async def test_a_slow_reader_stops_its_own_deliveries_only(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        slow, quick = await front.connect("slow"), await front.connect("quick")
        for client in (slow, quick):
            await client.subscribe("a", qos=0)
        publisher = await front.connect("publisher")
        payload = b"x" * 100_000
        for _ in range(100):  # slow reads nothing of it
            await publisher.publish("a", payload)
            assert (await soon(quick.message())).payload == payload
        for _ in range(100):
            assert (await slow.message()).payload == payload


@scenario
async def test_what_is_sent_before_a_goodbye_is_published(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        subscriber = await front.connect("subscriber")
        await subscriber.subscribe("a", qos=0)
        publisher = await front.connect("publisher")
        packets = [mqtt5.PublishPacket("a", b"%d" % number, qos=QoS.AT_MOST_ONCE) for number in range(50)]
        publisher.send(b"".join(packet.write() for packet in packets) + mqtt5.DisconnectPacket().write())
        assert [(await subscriber.message()).payload for _ in range(50)] == [b"%d" % number for number in range(50)]


@scenario
async def test_the_order_of_one_publisher_is_kept_over_all_qos(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        subscriber = await front.connect("subscriber")
        await subscriber.subscribe("a", qos=0)
        publisher = await front.connect("publisher")
        data = b""
        for number in range(300):
            packet_id = number + 1 if number % 3 else None
            data += mqtt5.PublishPacket("a", b"%d" % number, qos=QoS(number % 3), packet_id=packet_id).write()
        publisher.send(data)
        found = [(await subscriber.message()).payload for _ in range(300)]
        assert found == [b"%d" % number for number in range(300)]


@scenario
async def test_a_full_table_of_retained_messages_is_told_and_the_message_is_not_published(tmp_path: Path) -> None:
    async with opened(tmp_path, max_retained=1) as front:
        client = await front.connect("client")
        await client.subscribe(TopicFilter("#", max_qos=QoS.AT_MOST_ONCE, no_local=True))
        assert await client.publish("a", b"1", retain=True) in (0, 0x10)
        assert await client.publish("b", b"1", retain=True) == 0x97
        assert await client.publish("a", b"2", retain=True) in (0, 0x10)


@scenario
async def test_a_full_queue_is_told(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        await front.broker.declare_queue("small", max_length=1, overflow="reject")
        await front.broker.bind("mqtt", "small", "a")
        client = await front.connect("client")
        assert await client.publish("a", b"1") == 0
        assert await client.publish("a", b"2") == 0x97
        assert await client.publish("a", b"2", qos=2) == 0x97


@scenario
async def test_metrics_tell_of_connections_and_messages(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client", expiry=60)
        await client.subscribe("a", qos=0)
        await client.publish("a", b"1", retain=True)
        await client.message()
        await until(lambda: len(front.server.retained) == 1, "the retained message is known")
        values = {sample.name: sample.value for family in front.server.measures.families() for sample in family.samples}
        assert values["penstock_mqtt_connections"] == 1
        assert values["penstock_mqtt_sessions_kept"] == 1
        assert values["penstock_mqtt_published_total"] == 1
        assert values["penstock_mqtt_delivered_total"] == 1
        assert values["penstock_mqtt_retained_messages"] == 1
