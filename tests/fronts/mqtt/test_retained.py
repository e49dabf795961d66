"""Retained messages and wills through the MQTT front."""

from __future__ import annotations

from pathlib import Path

import mqtt5
import pytest
from mqtt5 import QoS, RetainHandling, TopicFilter, Will

from tests.fronts.mqtt.rig import Client, crashed, opened, scenario, until

# Retained messages -----------------------------------------------------------------------------------------


@scenario
async def test_the_last_retained_message_of_each_topic_comes_with_a_subscription(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        publisher = await front.connect("publisher")
        for qos in (0, 1, 2):
            await publisher.publish(f"a/{qos}", b"old", qos=qos, retain=True)
            await publisher.publish(f"a/{qos}", b"new", qos=qos, retain=True, properties={"n": "1"})
        await publisher.publish("$x", b"hidden")
        client = await front.connect("client")
        await client.subscribe("a/#", qos=2, subscription_id=3)
        found = [await client.message() for _ in range(3)]
        assert {(one.topic, one.payload, int(one.qos)) for one in found} == {
            ("a/0", b"new", 0),
            ("a/1", b"new", 1),
            ("a/2", b"new", 2),
        }
        assert all(one.retain and one.subscription_ids == [3] for one in found)
        assert all(one.user_properties == [("n", "1")] for one in found)
        await publisher.publish("a/1", b"live", retain=False)
        assert not (await client.message()).retain


@pytest.mark.parametrize("way", ["stopped", "crashed"])
def test_retained_messages_survive_a_restart(way: str, tmp_path: Path) -> None:
    @scenario
    async def run(path: Path) -> None:
        first = opened if way == "stopped" else crashed
        async with first(path) as front:
            publisher = await front.connect("publisher")
            await publisher.publish("a", b"kept", retain=True)
            await publisher.publish("b", b"gone", retain=True)
            await publisher.publish("b", b"", retain=True)
        async with opened(path) as front:
            client = await front.connect("client")
            await client.subscribe("#", qos=0)
            message = await client.message()
            assert (message.topic, message.payload) == ("a", b"kept")
            await client.silent()

    run(tmp_path)


@scenario
async def test_an_empty_payload_removes_and_is_delivered_as_any_other(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client")
        await client.publish("a", b"1", retain=True)
        await client.subscribe("a", qos=0)
        assert (await client.message()).payload == b"1"
        client.send(mqtt5.PublishPacket("a", b"", retain=True))
        assert (await client.message()).payload == b""
        other = await front.connect("other")
        await other.subscribe("a")
        await other.silent()
        assert len(front.server.retained) == 0


@scenario
async def test_retain_handling_says_when_they_come(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client")
        await client.publish("a", b"1", retain=True)

        async def comes(handling: RetainHandling) -> bool:
            await client.subscribe(TopicFilter("a", max_qos=QoS.AT_MOST_ONCE, retain_handling=handling))
            client.send(mqtt5.PingReqPacket())
            packet = await client.receive()
            if isinstance(packet, mqtt5.PublishPacket):
                await client.expect(mqtt5.PingRespPacket)
                return True
            return False

        assert not await comes(RetainHandling.SEND_NEVER)
        await client.unsubscribe("a")
        assert await comes(RetainHandling.SEND_IF_SUBSCRIPTION_NOT_EXISTS)
        assert not await comes(RetainHandling.SEND_IF_SUBSCRIPTION_NOT_EXISTS)
        assert await comes(RetainHandling.SEND_ALWAYS)


@scenario
async def test_a_retained_message_expires(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        publisher = await front.connect("publisher")
        await publisher.publish("a", b"1", retain=True, message_expiry_interval=1)
        await publisher.publish("b", b"2", retain=True, message_expiry_interval=100)
        await until(lambda: len(front.server.retained) == 2, "both are known")
        await until(lambda: len(front.server.retained) == 1, "the first has expired")
        client = await front.connect("client")
        await client.subscribe("#", qos=1)
        message = await client.message()
        assert message.topic == "b"
        assert 90 <= message.message_expiry_interval <= 100
        await client.silent()


@scenario
async def test_a_retained_delivery_of_qos_1_is_repeated_until_it_is_acknowledged(tmp_path: Path) -> None:
    async with crashed(tmp_path) as front:
        client = await front.connect("client", expiry=60)
        await client.publish("a", b"1", retain=True)
        await client.subscribe("a", qos=1)
        await client.message(answer=False)
    async with opened(tmp_path) as front:
        client = await front.connect("client", clean=False, expiry=60)
        message = await client.message()
        assert (message.payload, message.retain, message.duplicate) == (b"1", True, True)


# Wills -----------------------------------------------------------------------------------------------------


async def watcher(front: object) -> Client:
    client: Client = await front.connect("watcher")  # type: ignore[attr-defined]
    await client.subscribe("wills/#", qos=1)
    return client


@scenario
async def test_a_will_is_published_when_the_connection_is_lost(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        watching = await watcher(front)
        will = Will(
            "wills/1",
            payload=b"gone",
            qos=QoS.AT_LEAST_ONCE,
            retain=True,
            content_type="text/plain",
            user_properties=[("a", "b")],
        )
        client = await front.connect("client", will=will)
        client.cut()
        message = await watching.message()
        assert (message.topic, message.payload, message.qos) == ("wills/1", b"gone", QoS.AT_LEAST_ONCE)
        assert (message.content_type, message.user_properties) == ("text/plain", [("a", "b")])
        late = await front.connect("late")
        await late.subscribe("wills/1", qos=0)
        assert (await late.message()).retain


@scenario
async def test_a_goodbye_takes_the_will_back_unless_it_asks_for_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        watching = await watcher(front)
        for reason, expected in ((0, False), (4, True), (0x80, True)):
            client = await front.connect("client", will=Will("wills/1", payload=b"%d" % reason))
            await client.disconnect(reason)
            await front.gone("client")
            if expected:
                assert (await watching.message()).payload == b"%d" % reason
            await watching.silent()


@scenario
async def test_a_delayed_will_waits_and_a_client_that_comes_back_takes_it_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        watching = await watcher(front)
        delayed = Will("wills/1", payload=b"late", will_delay_interval=1)
        for client_id in ("back", "gone"):
            client = await front.connect(client_id, expiry=60, will=delayed)
            client.cut()
            await front.gone(client_id)
        await watching.silent()
        await front.connect("back", clean=False, expiry=60)
        assert (await watching.message()).payload == b"late"
        publisher = await front.connect("publisher")
        await publisher.publish("wills/end", b"")
        assert (await watching.message()).topic == "wills/end"  # and no other will


@scenario
async def test_a_delayed_will_comes_with_the_end_of_the_session(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        watching = await watcher(front)
        client = await front.connect("expires", expiry=1, will=Will("wills/1", payload=b"1", will_delay_interval=60))
        client.cut()
        client = await front.connect("cleaned", expiry=60, will=Will("wills/2", payload=b"2", will_delay_interval=60))
        client.cut()
        await front.gone("cleaned")
        await front.connect("cleaned", clean=True)
        assert (await watching.message()).topic == "wills/2"
        assert (await watching.message()).topic == "wills/1"


@scenario
async def test_wills_survive_a_crash(tmp_path: Path) -> None:
    async with crashed(tmp_path) as front:
        client = await front.connect("watcher", expiry=60)
        await client.subscribe("wills/#", qos=1)
        await front.connect("at-once", will=Will("wills/at-once", payload=b"1"))
        await front.connect("later", expiry=60, will=Will("wills/later", payload=b"2", will_delay_interval=1))
        await front.connect("back", expiry=60, will=Will("wills/back", payload=b"3", will_delay_interval=60))
    async with opened(tmp_path) as front:
        client = await front.connect("watcher", clean=False, expiry=60)
        assert {(await client.message()).topic for _ in range(2)} == {"wills/at-once", "wills/later"}
        await front.connect("back", clean=False)
        await client.silent()
        await until(lambda: set(front.server.sessions.documents.all) == {"watcher", "later", "back"}, "one is over")


@scenario
async def test_a_will_into_a_queue_is_there(tmp_path: Path) -> None:
    async with opened(tmp_path) as front:
        client = await front.connect("client", will=Will("$queue/wills/key", payload=b"1"))
        client.cut()
        await until(lambda: front.broker.knows_queue("wills", "browse"), "the queue is declared")
        claim = await front.broker.claim("wills", wait=5, ack=True)
        assert [(one.key, one.payload) for one in claim.messages] == [("key", b"1")]
